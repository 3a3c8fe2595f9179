// MessageSender sends the user's messages to one peer.
//
// A short message is copied into the connection (eager), in fragments if it is longer than one
// transport message. The receiver can read a longer eager message from the sender's memory instead
// (pulled). If it does not read the message soon, the sender copies the message into the connection
// (pushed). Eager messages cost credit. If there is not enough credit, or if the message is large
// or in device memory, it is announced first (rendezvous). All callers hold the baton.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/transfer/pull_chooser.h"
#include "src/core/peer/transfer/transfer.h"
#include "src/system/clock.h"

namespace hetcomm {

class MessageSender {
 public:
  MessageSender(Association& association, TransferTable& transfers)
      : association_(association), transfers_(transfers) {}
  MessageSender(const MessageSender&) = delete;
  MessageSender& operator=(const MessageSender&) = delete;

  // Sends a short message immediately if the connection accepts it, and returns true. The send is
  // then complete. Otherwise sends nothing and returns false. The caller then has to use start().
  bool send_at_once(uint32_t channel, uint64_t tag, iovec bytes) HETCOMM_UNDER_BATON;
  // Starts |send|, which is in no list. Requires that the association may send. Returns true if
  // |send| has completed or continues as a transfer. Returns false if the caller must try again
  // later. May throw std::bad_alloc.
  bool start(Operation& send) HETCOMM_UNDER_BATON {
    if ((send.run.sent | send.run.pull_id) != 0) return send_fragments(send);
    const uint64_t cost = send.length + kMessageCost;
    if (send.buffers.on_host && send.length <= current().capabilities().eager_limit_bytes &&
        cost <= association_.send_credit().available()) [[likely]] {
      return send.length < PullClass::kMinBytes ? start_copied(send) : start_long(send);
    }
    return start_rendezvous(send);
  }

  // Records the receiver's decision that messages of |pull_class| are pulled if they begin more
  // than |pause| after the previous one. See kPullAll for the unit.
  void learn_pause(size_t pull_class, uint64_t pause) HETCOMM_UNDER_BATON {
    rule_.told(pull_class, pause);
  }
  // Records that the receiver has read a message of |bytes|.
  void pull_answered(uint64_t bytes) HETCOMM_UNDER_BATON;
  // Puts the message of |transfer|, which the receiver has not read, back into the outbox, so it is
  // copied into the connection.
  void push(SendTransfer& transfer) HETCOMM_UNDER_BATON;
  // Pushes the messages that were not pulled in time or can no longer be pulled.
  void push_overdue(uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Returns when push_overdue() must be called next, or kForever if it need not be called.
  uint64_t push_at_ns() const HETCOMM_UNDER_BATON { return push_at_ns_; }
  // Stops pushing permanently.
  void stop_pushing() HETCOMM_UNDER_BATON { push_at_ns_ = kForever; }

 private:
  Rail& current() HETCOMM_UNDER_BATON { return *association_.rails().current(); }
  // Returns the header of |send|'s message, or of its announcement.
  static WireHeader header_of(MessageKind kind, const Operation& send) {
    return {.kind = kind,
            .flags = send.options.collective ? kFlagCollective : uint8_t{0},
            .channel = static_cast<uint16_t>(send.channel),
            .tag = send.tag,
            .value = addressee_value(send.channel, send.length)};
  }
  bool start_copied(Operation& send) HETCOMM_UNDER_BATON {
    return send.length > current().capabilities().max_payload_bytes ? send_fragments(send)
                                                                    : start_eager(send);
  }
  bool start_eager(Operation& send) HETCOMM_UNDER_BATON {
    const Code code = association_.sequencer().send(header_of(MessageKind::kEager, send),
                                                    ExtentView{send.extents(), 0, send.length});
    if (code != Code::kOk) [[unlikely]]
      return association_.refused(send, code);
    association_.send_credit().use(send.length + kMessageCost);
    finish(send);
    return true;
  }
  void finish(Operation& send) HETCOMM_UNDER_BATON {
    if (send.run.pull_id == 0) note_sent(send.length, true);
    send.outcome.bytes_sent = send.length;
    send.outcome.bytes_received = send.length;
    transfers_.data().completer.complete(send);
  }
  void note_sent(uint64_t length, bool eager) HETCOMM_UNDER_BATON {
    hetcomm_counters_t& counters = current().counters();
    ++counters.messages_sent;
    counters.bytes_sent += length;
    ++(eager ? counters.eager_sent : counters.rendezvous_sent);
  }
  bool start_long(Operation& send) HETCOMM_UNDER_BATON;
  bool start_pulled(Operation& send, PoolPtr<SendTransfer> transfer,
                    const AnnounceBody& announcement) HETCOMM_UNDER_BATON;
  bool send_fragments(Operation& send) HETCOMM_UNDER_BATON;
  bool start_rendezvous(Operation& send) HETCOMM_UNDER_BATON;

  Association& association_;
  TransferTable& transfers_;
  PullRule rule_;
  uint64_t pull_answered_ns_ = 0;   // when the peer last read a message
  uint64_t push_at_ns_ = kForever;  // when to check for messages that were not pulled
  bool push_grace_ = false;         // some messages were late, and are checked a second time
};

}  // namespace hetcomm
