// AccessInitiator carries out this rank's one-sided operations on the memory of one peer. Callers
// hold the baton.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "src/base/baton_role.h"
#include "src/core/peer/access/direct_access.h"
#include "src/core/peer/access/mapped_access.h"
#include "src/core/peer/access/turn_queue.h"
#include "src/core/peer/association.h"
#include "src/core/peer/transfer/message_receiver.h"
#include "src/core/peer/transfer/transfer.h"
#include "src/core/peer/wire/permits.h"
#include "src/core/progress/operation_queue.h"
#include "src/core/progress/slot_table.h"

namespace hetcomm {

class AccessInitiator final : public DirectPathUser {
 public:
  AccessInitiator(Association& association, TransferTable& transfers, MessageReceiver& receiver,
                  Log& log)
      : association_(association),
        transfers_(transfers),
        receiver_(receiver),
        permits_(association.permits()),
        mapped_(association, transfers.data().completer, log, *this),
        direct_(association, transfers.data(), *this),
        waiting_(association) {}

  // Starts a put, a get or an atomic, which is in no list. Requires that the association can send.
  // Returns false if the caller must try again later. May throw std::bad_alloc.
  bool start(Operation& operation) HETCOMM_UNDER_BATON;
  // Ends an operation that is in flight (OperationPhase::kAwaiting or kDirect). Nothing accesses
  // its buffer after it has completed.
  void end(Operation& operation, Code code, std::string text) HETCOMM_UNDER_BATON;
  // Releases the permit of an operation that has completed.
  void free_permit() HETCOMM_UNDER_BATON;

  // --- answers of the owner ---
  void receive_get_data(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_announced_get(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_atomic_done(const WireHeader& header) HETCOMM_UNDER_BATON;
  void receive_refused(const WireHeader& header) HETCOMM_UNDER_BATON;
  // Handles the owner's acknowledgement of all messages up to |sequence|.
  void acknowledged(uint32_t sequence) HETCOMM_UNDER_BATON;
  bool awaits_acknowledgement() const HETCOMM_UNDER_BATON {
    return !sent_puts_.empty() || direct_.awaits_acknowledgement();
  }
  // Records that message number Sequencer::sent() was just sent. The message reports a failed
  // connection (kRailDown), or withdraws a put.
  void protocol_message_left(MessageKind kind) HETCOMM_UNDER_BATON;

  // --- pending operations ---
  void credit_came() HETCOMM_UNDER_BATON;
  bool waits_for_credit() const HETCOMM_UNDER_BATON { return !awaiting_credit_.empty(); }
  bool has_to_start() const HETCOMM_UNDER_BATON { return !waiting_.empty() && permits_.is_free(); }
  // Starts the operations that wait for a permit.
  void start_waiting() HETCOMM_UNDER_BATON;
  // Returns false while a submitted operation waits for credit or a permit.
  bool has_all_started() const HETCOMM_UNDER_BATON {
    return awaiting_credit_.empty() && waiting_.empty();
  }
  bool is_idle() const HETCOMM_UNDER_BATON;

  // --- connections ---
  MappedAccess& mapped() HETCOMM_UNDER_BATON { return mapped_; }
  DirectAccesses& direct() HETCOMM_UNDER_BATON { return direct_; }
  // Stops everything in flight on |rail|. The caller then reports the failure to the peer, and
  // calls start_again().
  void rail_failed(const Rail& rail, bool peer_has_to_know) HETCOMM_UNDER_BATON;
  // Restarts operations whose copies were interrupted, as messages. If one of them caused the
  // failure, the owner then reports the error.
  void start_again() HETCOMM_UNDER_BATON;
  // Fails all operations with |why| because the pair is lost, except those in the outbox.
  void fail_everything(const Status& why) HETCOMM_UNDER_BATON;

 private:
  struct SentPut {
    uint32_t sequence;
    uint64_t id;  // the put's id in |asked_|; 0: the withdrawal of a put
  };

  void finish_direct(Operation& operation, Code code) override HETCOMM_UNDER_BATON;
  void go_by_message(Operation& operation, uint64_t placed) override HETCOMM_UNDER_BATON;

  Completer& completer() HETCOMM_UNDER_BATON { return transfers_.data().completer; }
  bool start_put(Operation& put, Rail& rail) HETCOMM_UNDER_BATON;
  bool pay_for_notification(Operation& put) HETCOMM_UNDER_BATON;
  bool start_put_message(Operation& put) HETCOMM_UNDER_BATON;
  bool announce_put(Operation& put) HETCOMM_UNDER_BATON;
  bool start_get(Operation& get, Rail& rail) HETCOMM_UNDER_BATON;
  bool start_atomic(Operation& atomic) HETCOMM_UNDER_BATON;
  bool may_ask(Operation& operation) HETCOMM_UNDER_BATON;
  bool ask(Operation& operation, WireHeader header, Extents payload,
           uint64_t length) HETCOMM_UNDER_BATON;
  void note_asked(Operation& operation) HETCOMM_UNDER_BATON;
  void send_soon(Operation& operation) HETCOMM_UNDER_BATON;
  void stop_awaiting_credit(Operation& put) HETCOMM_UNDER_BATON;
  Operation* take_asked(uint64_t id) HETCOMM_UNDER_BATON;
  void withdraw_question(Operation& operation) HETCOMM_UNDER_BATON;

  Association& association_;
  TransferTable& transfers_;
  MessageReceiver& receiver_;
  Permits& permits_;
  MappedAccess mapped_;
  DirectAccesses direct_;
  // Operations that wait for the owner's answer. The id of an operation that ended early stays here
  // and keeps its permit.
  SlotTable<Operation> asked_;
  TurnQueue waiting_;               // operations that wait for a permit
  OperationQueue awaiting_credit_;  // puts whose notification waits for credit
  std::deque<SentPut> sent_puts_;   // unacknowledged puts and withdrawals of puts
};

}  // namespace hetcomm
