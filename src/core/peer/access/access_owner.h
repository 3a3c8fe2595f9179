// AccessOwner performs one peer's accesses to this rank's memory. Every request is checked against
// this rank's table of registrations. Callers hold the baton.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/baton_role.h"
#include "src/core/memory/access_state.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/access/turn_queue.h"
#include "src/core/peer/association.h"
#include "src/core/peer/transfer/message_receiver.h"
#include "src/core/peer/transfer/transfer.h"
#include "src/core/peer/wire/permits.h"

namespace hetcomm {

class AccessOwner {
 public:
  // |ledger| counts the operations that this rank starts for the peer.
  AccessOwner(Association& association, TransferTable& transfers, MessageReceiver& receiver,
              const AccessServices& services, AccessLedger& ledger)
      : association_(association),
        transfers_(transfers),
        receiver_(receiver),
        services_(services),
        permits_(association.permits()),
        ledger_(ledger),
        waiting_(association) {}
  AccessOwner(const AccessOwner&) = delete;
  AccessOwner& operator=(const AccessOwner&) = delete;

  // --- requests of the initiator ---
  void receive_put(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_announced_put(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_get(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_atomic(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_ask(uint64_t id) HETCOMM_UNDER_BATON;

  // Sends or announces the data for |answer|, the owner's side of a get. |answer| is in no list.
  // Requires that the association can send. Returns false if the caller must try again later. May
  // throw std::bad_alloc.
  bool start(Operation& answer) HETCOMM_UNDER_BATON;
  // Starts the answers that the connection could not accept before. They do not wait behind the
  // outbox, whose first operation may be waiting for the peer.
  void start_waiting() HETCOMM_UNDER_BATON;
  bool has_to_start() const HETCOMM_UNDER_BATON { return !waiting_.empty(); }
  // Completes |answer|, which is waiting or has not been sent yet, with |code|.
  void end(Operation& answer, Code code, std::string text) HETCOMM_UNDER_BATON;
  void fail_everything(const Status& why) HETCOMM_UNDER_BATON;

  // Delivers the notification, if any, of a put whose receive, |accept|, is about to complete. If
  // the receive has failed, returns the notification's credit instead. May throw std::bad_alloc.
  void accepted(const Operation& accept) HETCOMM_UNDER_BATON;
  // Notifies the initiator that its get has failed here. |answer|'s permit passes to the message.
  void refuse(Operation& answer) HETCOMM_UNDER_BATON;

 private:
  bool hold() HETCOMM_UNDER_BATON;
  void refuse(uint64_t id, Code code) HETCOMM_UNDER_BATON;
  Registration* find(const AccessBody& range, uint32_t right, Code* code) HETCOMM_UNDER_BATON;
  // Returns kOk, or the reason why |registration| cannot be used. |registration| may be null.
  static Code check(const Registration* registration) HETCOMM_UNDER_BATON;
  void note_refusal(const char* why) HETCOMM_UNDER_BATON;
  Operation* begin(OperationKind kind, Registration& registration,
                   const AccessBody& range) HETCOMM_UNDER_BATON;
  void finish_put(Registration& registration, const AccessBody& range,
                  const WireHeader& header) HETCOMM_UNDER_BATON;
  void submit(Operation& answer) HETCOMM_UNDER_BATON;

  Association& association_;
  TransferTable& transfers_;
  MessageReceiver& receiver_;
  const AccessServices& services_;
  Permits& permits_;
  AccessLedger& ledger_;
  TurnQueue waiting_;  // answers that the connection could not accept yet
};

}  // namespace hetcomm
