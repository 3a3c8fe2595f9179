// An Association holds the state that the protocols of one pair share: the rails, the order of
// messages, the credit, queued protocol messages, bulk data and pending operations. SCTP uses the
// same term for two endpoints that are joined by several network paths.
//
// Three protocols use an association: rendezvous (transfer.h), messages (message_sender.h and
// message_receiver.h) and one-sided operations (remote_access.h). They call the pair, which is
// above them, through PairBase. All callers hold the baton.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/peer/pair_services.h"
#include "src/core/peer/rails/bulks.h"
#include "src/core/peer/rails/rail_needs.h"
#include "src/core/peer/rails/rail_set.h"
#include "src/core/peer/wire/credit.h"
#include "src/core/peer/wire/protocol_queue.h"
#include "src/core/peer/wire/sequencer.h"
#include "src/core/progress/operation_queue.h"
#include "src/system/clock.h"

namespace hetcomm {

// The interface that a pair offers to the units below it. None of these functions is called often.
class PairBase : public ListedPair, public OperationCarrier {
 public:
  // Fails |rail| because the peer violated the protocol on it. |what| describes the violation.
  virtual void violated(Rail& rail, std::string_view what) HETCOMM_UNDER_BATON = 0;
  // Sends pending messages and operations. Called when the connection may be writable again, or
  // when credit or a new connection may be available.
  virtual void pump() HETCOMM_UNDER_BATON = 0;
  // Records that message number Sequencer::sent() was just sent. Called for a kRailDown, and for a
  // message that holds one of this rank's permits until the peer has acknowledged it.
  virtual void protocol_message_left(MessageKind kind) HETCOMM_UNDER_BATON = 0;
  // Handles a message that manages connections, such as a kRailDown.
  virtual void receive_connection_message(const WireHeader& header) HETCOMM_UNDER_BATON = 0;
  // Makes connections between the transports of |masks|. Called when data needs them for the first
  // time.
  virtual void rails_needed(const RailMasks& masks) HETCOMM_UNDER_BATON = 0;
  // Closes |rail|, which neither side uses.
  virtual void close_unused(Rail& rail) HETCOMM_UNDER_BATON = 0;
  // Declares the peer lost by a decision of this rank alone, and ends the pair.
  virtual void give_up(const Status& why) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PairBase() = default;
};

class Association final : public NotificationSource {
 public:
  // |credit|: bytes that the peer lets this rank send before they are matched.
  Association(const PairServices& services, PairBase& pair, int rank, uint32_t credit);
  Association(const Association&) = delete;
  Association& operator=(const Association&) = delete;

  int rank() const HETCOMM_UNDER_BATON { return rank_; }  // the peer's rank in the job
  int own_rank() const HETCOMM_UNDER_BATON { return terms_.rank; }
  // Returns whether this rank is higher than the peer's.
  bool is_higher() const HETCOMM_UNDER_BATON { return terms_.rank > rank_; }
  // Returns whether data for the peer stays on this host, regardless of the transport.
  bool is_beside() const HETCOMM_UNDER_BATON { return directory_.is_beside(rank_); }
  uint64_t now_ns() const HETCOMM_UNDER_BATON { return engine_.coarse_now(); }
  PairBase& pair() HETCOMM_UNDER_BATON { return pair_; }
  PairState state() const HETCOMM_UNDER_BATON { return state_; }
  void set_state(PairState state) HETCOMM_UNDER_BATON { state_ = state; }
  bool is_ready() const HETCOMM_UNDER_BATON { return state_ == PairState::kReady; }
  bool is_lost() const HETCOMM_UNDER_BATON { return state_ == PairState::kLost; }

  RailSet& rails() HETCOMM_UNDER_BATON { return rails_; }
  const RailSet& rails() const HETCOMM_UNDER_BATON { return rails_; }
  // Returns the index, in LinkShares, of the network interface that |rail| sends through.
  size_t link_of(const Rail& rail) const HETCOMM_UNDER_BATON {
    return LinkShares::index_of(rail.ends.own, is_beside());
  }
  // Records that |bytes| were sent over |rail|. Ignores data that stays on this host.
  void note_left(const Rail& rail, uint64_t bytes) HETCOMM_UNDER_BATON {
    const size_t link = link_of(rail);
    if (link != LinkShares::kWithinHost) links_[link].left(bytes, now_ns());
  }
  // Returns the connection for new messages, or null while the pair is not ready.
  Rail* rail() HETCOMM_UNDER_BATON { return is_ready() ? rails_.current() : nullptr; }
  // Calls |use(rail)| for each connection that carries data of |masks|. These are the connections
  // between the transports of |masks| or, if there are none, all connections for bulk data. While
  // the first connection between those transports is being made, no connection carries the data.
  template <typename Use>
  void for_each_bulk_rail(const RailMasks& masks, Use&& use) HETCOMM_UNDER_BATON {
    if (!is_ready()) return;
    const RailMasks chosen = choose_rails(masks);
    rails_.for_each_bulk([&](Rail& rail) HETCOMM_UNDER_BATON {
      if (chosen.admit(rail.ends)) use(rail);
    });
  }
  size_t count_bulk_rails(const RailMasks& masks) HETCOMM_UNDER_BATON;
  // Returns the transports whose connections currently carry data of |masks|. Requires that the
  // association is ready.
  RailMasks choose_rails(const RailMasks& masks) HETCOMM_UNDER_BATON {
    return masks.cover(rails_.current()->kin) ? RailMasks{} : choose_near_rails(masks);
  }
  // Returns whether data of |masks| waits until its first connection has been made or has failed.
  bool waits_for_rails(const RailMasks& masks) HETCOMM_UNDER_BATON {
    return is_ready() && choose_rails(masks) == kNoRails;
  }
  // Requests connections for data of |masks|. Does nothing if they were requested before, if the
  // current connection is lossless, or if the association is not ready.
  void need_rails(const RailMasks& masks) HETCOMM_UNDER_BATON;
  RailNeeds& needs() HETCOMM_UNDER_BATON { return needs_; }
  // Records that bulk data will have |count| connections by |until_ns|, unless some cannot be made.
  void expect_rails(size_t count, uint64_t until_ns) HETCOMM_UNDER_BATON {
    expected_rails_ = count;
    expected_until_ns_ = until_ns;
  }
  // Records that one of the expected connections cannot be made.
  void expect_one_less() HETCOMM_UNDER_BATON {
    if (expected_rails_ != 0) --expected_rails_;
  }
  // Returns the time until which connections are expected; kForever if none are.
  uint64_t expected_until_ns() const HETCOMM_UNDER_BATON { return expected_until_ns_; }
  // Returns whether further connections for bulk data are expected soon.
  bool expects_rails() HETCOMM_UNDER_BATON {
    return expected_rails_ != 0 && now_ns() < expected_until_ns_ && is_ready() &&
           !rails_.current()->capabilities().lossless &&
           count_bulk_rails(RailMasks{}) < expected_rails_;
  }

  // --- messages ---
  Sequencer& sequencer() HETCOMM_UNDER_BATON { return sequencer_; }
  SendCredit& send_credit() HETCOMM_UNDER_BATON { return send_credit_; }
  ReceiveCredit& receive_credit() HETCOMM_UNDER_BATON { return sequencer_.receive_credit(); }
  // Returns whether a user message can be sent now. It must not overtake a queued protocol message.
  bool may_send() const HETCOMM_UNDER_BATON { return is_ready() && protocol_.empty(); }
  // Sends a small protocol message, or queues it if it cannot be sent now. Never throws: if memory
  // runs out, no later message is sent, and the pair is lost at the end of the pass. |permit| is
  // the side whose permit the message holds until the peer has acknowledged it.
  void send_protocol(MessageKind kind, uint64_t tag, uint64_t value, const void* body = nullptr,
                     size_t size = 0, Permit permit = Permit::kNone) HETCOMM_UNDER_BATON;
  void send_protocol(MessageKind kind, uint64_t tag, Code code,
                     Permit permit = Permit::kNone) HETCOMM_UNDER_BATON {
    send_protocol(kind, tag, static_cast<uint64_t>(code), nullptr, 0, permit);
  }
  // Sends a kStop or kWithdraw with the reason |why|.
  void send_reason(MessageKind kind, uint64_t tag, const Status& why,
                   Permit permit = Permit::kNone) HETCOMM_UNDER_BATON;
  // Sends the queued protocol messages. Returns whether all of them were sent.
  bool send_waiting_protocol() HETCOMM_UNDER_BATON;
  ProtocolQueue& protocol() HETCOMM_UNDER_BATON { return protocol_; }
  // Returns the counts of one-sided operations between the two ranks.
  Permits& permits() HETCOMM_UNDER_BATON { return permits_; }
  // Sends a kUpdate, which carries only an acknowledgement and credit. Returns false if the
  // connection did not accept it.
  bool send_update(uint8_t flags) HETCOMM_UNDER_BATON;

  // Returns the connection whose message is being handled.
  Rail& receiving_on() HETCOMM_UNDER_BATON { return *receiving_on_; }
  void set_receiving_on(Rail& rail) HETCOMM_UNDER_BATON { receiving_on_ = &rail; }
  // Fails the connection of the current message, which violates the protocol. |what| is for the
  // log.
  void violated(std::string_view what) HETCOMM_UNDER_BATON { pair_.violated(*receiving_on_, what); }
  // Deducts |bytes| of an eager message from the peer's credit. If the peer had less, fails the
  // connection and returns false.
  bool take_credit(uint64_t bytes) HETCOMM_UNDER_BATON {
    if (receive_credit().take(bytes)) [[likely]]
      return true;
    violated("more eager data than was granted");
    return false;
  }
  void give_back_credit(uint64_t bytes) override HETCOMM_UNDER_BATON {
    if (receive_credit().give_back(bytes)) update_due();
  }
  // Records that the peer is waiting for an acknowledgement of the current message, and schedules
  // that acknowledgement.
  void acknowledgement_due() HETCOMM_UNDER_BATON {
    sequencer_.owe();
    turns_.acknowledgement_due(pair_);
  }

  // --- work at the end of a pass ---
  // Schedules Traffic::send_update() for the end of the pass.
  void update_due() HETCOMM_UNDER_BATON { turns_.update_due(pair_); }
  // Schedules MappedAccess::copy_some() for the end of every pass until it has copied everything.
  void copies_due() HETCOMM_UNDER_BATON { turns_.copies_due(pair_); }
  void note_timer(uint64_t at_ns) HETCOMM_UNDER_BATON { turns_.note_timer(at_ns); }

  // --- operations ---
  OperationQueue& outbox() HETCOMM_UNDER_BATON { return outbox_; }
  void enqueue(Operation& operation) HETCOMM_UNDER_BATON {
    operation.phase = OperationPhase::kQueued;
    outbox_.push_back(operation);
  }
  // Fails |operation|, which is in no list, because memory ran out while it was being started.
  void end_started(Operation& operation) HETCOMM_UNDER_BATON;
  // Handles |code|, the error with which a connection refused the message of |operation|. Returns
  // false if the caller must try again later. Otherwise fails |operation|, since another attempt
  // would be refused too, and returns true.
  bool refused(Operation& operation, Code code) HETCOMM_UNDER_BATON;
  // Completes |send| with |code|. |send| is in no list and was not sent completely. If a part of it
  // was sent, notifies the peer.
  void end_unsent(Operation& send, Code code, std::string text) HETCOMM_UNDER_BATON;
  // Fails |operation| with kOutOfMemory if it is pending.
  void end_out_of_memory(Operation& operation) HETCOMM_UNDER_BATON;

  // --- bulk data ---
  Bulks& bulks() HETCOMM_UNDER_BATON { return bulks_; }

  // --- memory ---
  // Records that a message could not be sent because memory ran out. The pair is lost at the end of
  // the pass, since it cannot be ended here. Until then no later message is sent.
  void starve() HETCOMM_UNDER_BATON;
  bool is_starved() const HETCOMM_UNDER_BATON { return starved_; }

 private:
  static constexpr RailMasks kNoRails{0, 0};

  RailMasks choose_near_rails(const RailMasks& masks) HETCOMM_UNDER_BATON;
  bool try_send(const WireHeader& header, const void* body, size_t size, uint32_t acknowledged,
                Permit permit) HETCOMM_UNDER_BATON;

  const PairTerms& terms_;
  Engine& engine_;
  const TransportDirectory& directory_;
  PairTurns& turns_;
  LinkShares& links_;
  Completer& completer_;
  PairBase& pair_;
  const int rank_;
  PairState state_ = PairState::kIdle;
  bool starved_ = false;
  Rail* receiving_on_ = nullptr;
  RailSet rails_;
  RailNeeds needs_;
  size_t expected_rails_ = 0;
  uint64_t expected_until_ns_ = kForever;
  Sequencer sequencer_;
  SendCredit send_credit_;
  Permits permits_;
  ProtocolQueue protocol_;
  OperationQueue outbox_;
  Bulks bulks_;
};

}  // namespace hetcomm
