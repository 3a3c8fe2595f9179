// MessageReceiver delivers messages from the peer's user to their receives.
//
// No input from the peer is trusted. A message without a receive is kept in the match table of its
// channel, with its bytes if it is eager. All callers hold the baton.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/matching/match.h"
#include "src/core/peer/transfer/pull_chooser.h"
#include "src/core/peer/transfer/transfer.h"
#include "src/core/progress/id_chains.h"
#include "src/system/clock.h"

namespace hetcomm {

// A list of eager messages with missing bytes. At most one of them began with a kEagerFirst. The
// sender pushes the others, which could not be pulled.
class ArrivingList {
 public:
  bool empty() const HETCOMM_UNDER_BATON { return first_ == nullptr; }
  void add(Incoming& message) HETCOMM_UNDER_BATON {
    message.arriving = true;
    message.next_arriving = first_;
    first_ = &message;
  }
  // Finds the message of the sender's transfer |sender_id| or, if that is 0, the one that began
  // with a kEagerFirst. Returns null if there is none.
  Incoming* find(uint64_t sender_id) const HETCOMM_UNDER_BATON {
    Incoming* at = first_;
    while (at != nullptr && at->sender_id != sender_id) at = at->next_arriving;
    return at;
  }
  // Finds the message matched with |receive|. Returns null if there is none.
  Incoming* find(const Operation& receive) const HETCOMM_UNDER_BATON {
    Incoming* at = first_;
    while (at != nullptr && at->operation != &receive) at = at->next_arriving;
    return at;
  }
  void remove(Incoming& message) HETCOMM_UNDER_BATON {
    Incoming** at = &first_;
    while (*at != &message) at = &(*at)->next_arriving;
    *at = message.next_arriving;
    message.arriving = false;
  }
  Incoming& pop() HETCOMM_UNDER_BATON {
    Incoming& message = *first_;
    remove(message);
    return message;
  }

 private:
  Incoming* first_ = nullptr;
};

class MessageReceiver final : public IncomingOwner {
 public:
  // May throw std::bad_alloc.
  MessageReceiver(Association& association, TransferTable& transfers, PairListener& listener);
  ~MessageReceiver();
  MessageReceiver(const MessageReceiver&) = delete;
  MessageReceiver& operator=(const MessageReceiver&) = delete;

  // --- messages that arrive on Association::receiving_on() ---
  void receive_eager(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON {
    if (length_of(header) != payload.size()) [[unlikely]] {
      association_.violated("eager message of a wrong length");
      return;
    }
    const bool sampled = payload.size() >= PullClass::kMinBytes && samples(payload.size());
    const uint64_t started_ns = sampled ? now_ns() : 0;
    const bool copied = take_eager(header, payload);
    if (sampled && copied) [[unlikely]]
      took(payload.size(), now_ns() - started_ns, 1);
  }
  void receive_first(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_more(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_pull(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_announced(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_withdraw(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;

  // --- messages that are matched later ---
  // Matches |message| with |receive|, which gets its bytes now or when they arrive. If |message| is
  // queued as unexpected, removes it from the queue. If this throws std::bad_alloc, |message| stays
  // where it was.
  void attach(Incoming& message, Operation& receive) HETCOMM_UNDER_BATON;
  // Matches |receive| with the message that |body| announces. If memory runs out, fails |receive|,
  // and may throw std::bad_alloc.
  void attach_announced(Operation& receive, const AnnounceBody& body,
                        uint64_t length) HETCOMM_UNDER_BATON;
  // Detaches a receive whose eager fragments are still arriving. The remaining fragments are
  // dropped.
  void detach(Operation& receive) HETCOMM_UNDER_BATON;
  enum class Tell : uint8_t { kSender, kNobody };
  // Drops |message|, which will never be received and is in no match table. |tell| says whether to
  // notify the sender if it still has the data. A message with missing bytes is freed only when
  // they have arrived.
  void drop(Incoming& message, Tell tell) HETCOMM_UNDER_BATON;
  // Frees |message|, which is no longer in any list and whose credit no longer counts.
  void free(Incoming& message) HETCOMM_UNDER_BATON;
  // Fails the receives whose bytes are arriving, and frees all messages with missing bytes, because
  // the pair is lost.
  void fail_everything(const Status& why) HETCOMM_UNDER_BATON;

  // Returns whether no eager message has missing bytes.
  bool is_whole() const HETCOMM_UNDER_BATON { return arriving_.empty(); }
  // Returns whether match tables hold messages whose data is still at the sender.
  bool holds_announced() const HETCOMM_UNDER_BATON { return announced_.count() > 0; }

 private:
  enum class Keeps : uint8_t { kNothing, kBytes };

  DataServices& data() HETCOMM_UNDER_BATON { return transfers_.data(); }
  int rank() const HETCOMM_UNDER_BATON { return association_.rank(); }
  // Returns the match table for a message, or null if the message will never be received.
  MatchTable* table_for(const WireHeader& header) HETCOMM_UNDER_BATON {
    return data().channels.match_table(channel_of(header), (header.flags & kFlagCollective) != 0);
  }
  void count_received(uint64_t length) HETCOMM_UNDER_BATON {
    hetcomm_counters_t& counters = association_.receiving_on().counters();
    ++counters.messages_received;
    counters.bytes_received += length;
  }
  // Delivers an eager message, or keeps it for a later receive. Returns whether all of it was
  // copied to host memory.
  bool take_eager(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON {
    count_received(payload.size());
    const uint64_t credit = payload.size() + kMessageCost;
    if (!association_.take_credit(credit)) return false;
    MatchTable* table = table_for(header);
    if (table == nullptr) {
      association_.give_back_credit(credit);
      return false;
    }
    Operation* receive = table->match_message(rank(), header.tag);
    if (receive == nullptr) [[unlikely]]
      return keep_eager(header, payload, *table);
    const bool copied = receive->buffers.on_host && payload.size() <= receive->length;
    data().delivery.deliver(*receive, rank(), header.tag, payload, payload.size());
    association_.give_back_credit(credit);
    return copied;
  }
  bool keep_eager(const WireHeader& header, ConstByteSpan payload,
                  MatchTable& table) HETCOMM_UNDER_BATON;
  Operation* match(MatchTable* table, uint64_t tag) HETCOMM_UNDER_BATON;
  Incoming* new_message(uint64_t tag, uint64_t length, uint64_t credit,
                        Keeps keeps) HETCOMM_UNDER_BATON;
  void announce(Incoming& message, const AnnounceBody& announcement) HETCOMM_UNDER_BATON;
  void hand_over(Incoming& message, MatchTable& table, Operation* receive,
                 const WireHeader& header) HETCOMM_UNDER_BATON;
  void attach_new(Incoming& message, Operation& receive) HETCOMM_UNDER_BATON;
  void await_bytes(Incoming& message, MatchTable* table, Operation* receive,
                   const WireHeader& header) HETCOMM_UNDER_BATON;
  void finish_arriving(Incoming& message) HETCOMM_UNDER_BATON;
  void queue_unexpected(MatchTable& table, Incoming& message,
                        const WireHeader& header) HETCOMM_UNDER_BATON;
  void refuse_announced(uint32_t channel, uint64_t sender_id) HETCOMM_UNDER_BATON;
  void drop_withdrawn(uint64_t sender_id) HETCOMM_UNDER_BATON;
  Code pull(const PullBody& from, Extents into, uint64_t length) HETCOMM_UNDER_BATON;
  bool samples(uint64_t bytes) HETCOMM_UNDER_BATON;
  void took(uint64_t bytes, uint64_t elapsed_ns, uint64_t fragments) HETCOMM_UNDER_BATON;
  void tell_pull_pause(uint64_t bytes) HETCOMM_UNDER_BATON;

  Association& association_;
  TransferTable& transfers_;
  PairListener& listener_;
  ArrivingList arriving_;
  IdChains<Incoming> announced_;     // messages that the peer has announced and that are unmatched
  bool arriving_sampled_ = false;    // the message that began with a kEagerFirst is sampled
  uint64_t arriving_fragments_ = 0;  // fragments of a sampled message so far
  uint64_t arriving_ns_ = 0;         // time spent on copying |arriving_fragments_|
  PullChooser pull_chooser_;
};

// Returns the receiver that created |message|.
inline MessageReceiver& receiver_of(const Incoming& message) {
  return static_cast<MessageReceiver&>(*message.owner);
}

}  // namespace hetcomm
