// AccessState is the state that the protocol of one-sided operations keeps with each operation.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/registration.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Is notified when one-sided operations between this rank and a peer end.
class AccessLedger {
 public:
  // Handles the end of |operation|, which is about to complete. Releases its permit. On the owner's
  // side, also delivers the notification of a put, or reports a failed get to the initiator.
  virtual void ending(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Records that an operation counted in |batch| has completed with |code|.
  virtual void ended(uint64_t batch, Code code) HETCOMM_UNDER_BATON = 0;

 protected:
  ~AccessLedger() = default;
};

// The state of a one-sided operation. In other operations it is meaningless: a previous operation
// in the same slot may have left it.
struct AccessState {
  static constexpr auto kRoom = &Operation::Bodies::access;
  RemoteMemory* remote = nullptr;
  AccessLedger* ledger = nullptr;        // the pair's ledger, once the operation is in it
  Registration* registration = nullptr;  // on the owner's side
  uint64_t operand = 0;                  // addend or new value; put: notification value
  uint64_t compare = 0;
  uint64_t* result = nullptr;
  uint64_t id = 0;       // the id that the initiator gave the operation, once the owner was asked
  uint64_t batch = 0;    // identifies the operations between two flushes
  bool started = false;  // counted in its batch
  bool asked = false;    // the owner was asked to execute it, and may have done so
  bool notify = false;
  bool placed = false;  // all bytes are in place; the owner has not been notified yet
  bool counted = false;
  bool direct_failed = false;  // is sent as a message, so that the owner executes it
  bool waiting = false;        // in a TurnQueue
  bool had_turn = false;       // has waited in a TurnQueue and left it
  bool holds_permit = false;   // counted in Permits
  bool awaits_credit = false;  // its notification waits for credit
};

inline AccessState& access_of(Operation& operation) { return body_of<AccessState>(operation); }
inline const AccessState& access_of(const Operation& operation) {
  return body_of<AccessState>(operation);
}
// Returns whether |operation| is one-sided, and so has an AccessState of its own.
inline bool has_access(const Operation& operation) {
  return operation.kind > OperationKind::kReceive && operation.kind != OperationKind::kCollective;
}
// Initializes the state of a one-sided operation on the bytes from |offset| on.
inline void begin_access(Operation& operation, uint64_t offset, const AccessState& state) {
  operation.target = {.offset = offset};
  access_of(operation) = state;
}

}  // namespace hetcomm
