// Association: the state that the protocols of a pair send over and share. It has the rails, the
// order of messages, credit, protocol messages, bulk data, and the operations that wait for their
// turn.
// (The word is SCTP's, for the relation of two ends that have several connections.)
//
// The protocols above it are rendezvous (transfer.h), messages (message_sender.h and
// message_receiver.h) and one-sided operations (remote_access.h). They reach the pair itself, above
// them, through PairBase. Under the baton.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/peer/pair_commons.h"
#include "src/core/peer/rails/bulks.h"
#include "src/core/peer/rails/rail_needs.h"
#include "src/core/peer/rails/rail_set.h"
#include "src/core/peer/wire/credit.h"
#include "src/core/peer/wire/protocol_queue.h"
#include "src/core/peer/wire/sequencer.h"
#include "src/core/progress/operation_queue.h"

namespace hetcomm {

enum class PairState : uint8_t { kIdle, kConnecting, kReady, kLost };

// The interface of a pair for the units below it. None of these calls is frequent.
class PairBase : public ListedPair {
 public:
  // The peer has broken the protocol on |rail|, which fails.
  virtual void violated(Rail& rail, std::string_view what) HETCOMM_UNDER_BATON = 0;
  // Sends what is pending. Called when there may be room, credit, or a connection.
  virtual void pump() HETCOMM_UNDER_BATON = 0;
  // Message number Sequencer::sent() has just left. It is a kRailDown, or it keeps the permit of an
  // operation of this rank until the peer has acknowledged it.
  virtual void protocol_message_left(MessageKind kind) HETCOMM_UNDER_BATON = 0;
  // Ends an operation of this pair in any phase. Its memory is quiet when it has completed. Works
  // without memory.
  virtual void end(Operation& operation, Code code, std::string text) HETCOMM_UNDER_BATON = 0;
  // A message about connections has arrived.
  virtual void receive_connection_message(const WireHeader& header) HETCOMM_UNDER_BATON = 0;
  // |masks| have just become a need of the association: their first data has come up.
  virtual void rails_needed(const RailMasks& masks) HETCOMM_UNDER_BATON = 0;
  // Closes |rail|, which neither side uses.
  virtual void close_unused(Rail& rail) HETCOMM_UNDER_BATON = 0;
  // This side alone has decided that the peer is lost.
  virtual void give_up(const Status& why) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PairBase() = default;
};

class Association {
 public:
  // |credit|: bytes that the peer lets this rank send unasked.
  Association(PairCommons& common, PairBase& pair, int rank, uint32_t credit);
  Association(const Association&) = delete;
  Association& operator=(const Association&) = delete;

  int rank() const HETCOMM_UNDER_BATON { return rank_; }  // the peer, in the job
  PairCommons& common() HETCOMM_UNDER_BATON { return common_; }
  PairBase& pair() HETCOMM_UNDER_BATON { return pair_; }
  PairState state() const HETCOMM_UNDER_BATON { return state_; }
  void set_state(PairState state) HETCOMM_UNDER_BATON { state_ = state; }
  bool is_ready() const HETCOMM_UNDER_BATON { return state_ == PairState::kReady; }
  bool is_lost() const HETCOMM_UNDER_BATON { return state_ == PairState::kLost; }

  RailSet& rails() HETCOMM_UNDER_BATON { return rails_; }
  const RailSet& rails() const HETCOMM_UNDER_BATON { return rails_; }
  // Returns the link that |rail| leaves through.
  size_t link_of(const Rail& rail) const HETCOMM_UNDER_BATON {
    return LinkShares::index_of(rail.ends.own, common_.paths.directory.is_beside(rank_));
  }
  // |bytes| have left over |rail|.
  void note_left(const Rail& rail, uint64_t bytes) HETCOMM_UNDER_BATON {
    const size_t link = link_of(rail);
    if (link != LinkShares::kWithinHost) common_.links[link].left(bytes, common_.now_ns());
  }
  // The connection for new data; null while there is none.
  Rail* rail() HETCOMM_UNDER_BATON { return is_ready() ? rails_.current() : nullptr; }
  // Calls |use(rail)| for each connection that carries data of |masks|: those between such
  // transports, or all while there are none such. Calls it for none while the first of them is
  // being made.
  template <typename Use>
  void for_each_bulk_rail(const RailMasks& masks, Use&& use) HETCOMM_UNDER_BATON {
    if (!is_ready()) return;
    const RailMasks chosen = choose_rails(masks);
    rails_.for_each_bulk([&](Rail& rail) HETCOMM_UNDER_BATON {
      if (chosen.admit(rail.ends)) use(rail);
    });
  }
  size_t count_bulk_rails(const RailMasks& masks) HETCOMM_UNDER_BATON;
  // Returns the transports whose connections currently carry data of |masks|. The association is
  // ready.
  RailMasks choose_rails(const RailMasks& masks) HETCOMM_UNDER_BATON {
    return masks.cover(rails_.current()->kin) ? RailMasks{} : choose_near_rails(masks);
  }
  // Data of |masks| waits until the first of its connections has been made, or has failed.
  bool waits_for_rails(const RailMasks& masks) HETCOMM_UNDER_BATON {
    return is_ready() && choose_rails(masks) == kNoRails;
  }
  // Data of |masks| exists: makes its connections, unless that was done before.
  void need_rails(const RailMasks& masks) HETCOMM_UNDER_BATON;
  RailNeeds& needs() HETCOMM_UNDER_BATON { return needs_; }

  // --- messages ---
  Sequencer& sequencer() HETCOMM_UNDER_BATON { return sequencer_; }
  SendCredit& send_credit() HETCOMM_UNDER_BATON { return send_credit_; }
  ReceiveCredit& receive_credit() HETCOMM_UNDER_BATON { return receive_credit_; }
  // A user message may leave now: it overtakes no protocol message.
  bool may_send() const HETCOMM_UNDER_BATON { return is_ready() && protocol_.empty(); }
  // Sends the next message, over the current rail. As Sequencer::send().
  [[gnu::always_inline]] inline Code send(const WireHeader& header,
                                          const ExtentView& payload) HETCOMM_UNDER_BATON {
    return sequencer_.send(*rails_.current(), header, payload, sequencer_.received(),
                           receive_credit_);
  }
  // Sends a small protocol message, or queues it if there is no room. Never fails: if memory runs
  // out, nothing more leaves, and the pair is lost at the end of the pass.
  // |permit|: whose permit the message keeps until the peer has acknowledged it.
  void send_protocol(MessageKind kind, uint64_t tag, uint64_t value, const void* body = nullptr,
                     size_t size = 0, Permit permit = Permit::kNone) HETCOMM_UNDER_BATON;
  void send_protocol(MessageKind kind, uint64_t tag, Code code,
                     Permit permit = Permit::kNone) HETCOMM_UNDER_BATON {
    send_protocol(kind, tag, static_cast<uint64_t>(code), nullptr, 0, permit);
  }
  // Sends a kStop or kWithdraw, with the reason that the peer is told of |why|.
  void send_reason(MessageKind kind, uint64_t tag, const Status& why,
                   Permit permit = Permit::kNone) HETCOMM_UNDER_BATON;
  // Sends the pending protocol messages. True: none is left.
  bool send_waiting_protocol() HETCOMM_UNDER_BATON;
  ProtocolQueue& protocol() HETCOMM_UNDER_BATON { return protocol_; }
  // Counts the one-sided operations between the two ranks.
  Permits& permits() HETCOMM_UNDER_BATON { return permits_; }
  // Sends acknowledgement and credit in a message of their own. False: there was no room.
  bool send_update(uint8_t flags) HETCOMM_UNDER_BATON;

  // The connection whose message is being handled.
  Rail& receiving_on() HETCOMM_UNDER_BATON { return *receiving_on_; }
  void set_receiving_on(Rail& rail) HETCOMM_UNDER_BATON { receiving_on_ = &rail; }
  // The message that is being handled breaks the protocol.
  void violated(std::string_view what) HETCOMM_UNDER_BATON { pair_.violated(*receiving_on_, what); }
  // Eager messages are bounded by what was granted. False after a violation.
  bool take_credit(uint64_t bytes) HETCOMM_UNDER_BATON {
    if (receive_credit_.take(bytes)) [[likely]]
      return true;
    violated("more eager data than was granted");
    return false;
  }
  void give_back_credit(uint64_t bytes) HETCOMM_UNDER_BATON {
    if (receive_credit_.give_back(bytes)) common_.turns.update_due(pair_);
  }
  // The peer waits to hear that its message was dealt with.
  void acknowledgement_due() HETCOMM_UNDER_BATON {
    sequencer_.owe();
    common_.turns.acknowledgement_due(pair_);
  }

  // --- operations ---
  OperationQueue& outbox() HETCOMM_UNDER_BATON { return outbox_; }
  void enqueue(Operation& operation) HETCOMM_UNDER_BATON {
    operation.phase = OperationPhase::kQueued;
    outbox_.push_back(operation);
  }
  // Calls |start(operation)|, which returns false if |operation|, in no list, has to be tried
  // again. Ends |operation| if memory runs out.
  template <typename Start>
  bool start_or_end(Operation& operation, Start&& start) HETCOMM_UNDER_BATON {
    try {
      return start(operation);
    } catch (const std::bad_alloc&) {
      end_started(operation);
      return true;
    }
  }
  // The message of |operation| was not sent. False: the caller tries again later. Without room a
  // retry helps; for any other reason it would be refused again, so |operation| has ended.
  bool refused(Operation& operation, Code code) HETCOMM_UNDER_BATON;
  // Ends |send|, which is in no list and has not left, or not completely.
  void end_unsent(Operation& send, Code code, std::string text) HETCOMM_UNDER_BATON;
  // Ends |operation| because memory ran out, if it is pending.
  void end_out_of_memory(Operation& operation) HETCOMM_UNDER_BATON;

  // --- bulk data ---
  Bulks& bulks() HETCOMM_UNDER_BATON { return bulks_; }
  // Starts |bulk| on |bulk.rail|, now or when there is room.
  void submit_bulk(OwnedBulk& bulk) HETCOMM_UNDER_BATON {
    is_ready() ? bulks_.submit(bulk) : bulks_.wait(bulk);
  }

  // --- memory ---
  // Memory ran out at a point where the pair cannot end at once. Nothing after the gap may leave,
  // and the pair is lost at the end of the pass.
  void starve() HETCOMM_UNDER_BATON;
  bool is_starved() const HETCOMM_UNDER_BATON { return starved_; }

 private:
  static constexpr RailMasks kNoRails{0, 0};

  RailMasks choose_near_rails(const RailMasks& masks) HETCOMM_UNDER_BATON;
  bool try_send(const WireHeader& header, const void* body, size_t size, uint32_t acknowledged,
                Permit permit) HETCOMM_UNDER_BATON;
  void end_started(Operation& operation) HETCOMM_UNDER_BATON;

  PairCommons& common_;
  PairBase& pair_;
  const int rank_;
  PairState state_ = PairState::kIdle;
  bool starved_ = false;
  Rail* receiving_on_ = nullptr;
  RailSet rails_;
  RailNeeds needs_;
  Sequencer sequencer_;
  SendCredit send_credit_;
  ReceiveCredit receive_credit_;
  Permits permits_;
  ProtocolQueue protocol_;
  OperationQueue outbox_;
  Bulks bulks_;
};

}  // namespace hetcomm
