// AccessState is the state that the protocol of one-sided operations keeps with each operation.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/registration.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Counts the one-sided operations between this rank and a peer.
class AccessLedger {
 public:
  // Handles the end of |operation|, which is about to complete. Releases its permit. On the owner's
  // side, also notifies the user of a put, or refuses a failed get.
  virtual void ending(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Records that an operation counted in |batch| has completed with |code|.
  virtual void ended(uint64_t batch, Code code) HETCOMM_UNDER_BATON = 0;

 protected:
  ~AccessLedger() = default;
};

// State of a one-sided operation. In other operations it is left over from the slot's last user.
struct AccessState {
  static constexpr auto kRoom = &Operation::Bodies::access;
  RemoteMemory* remote = nullptr;
  AccessLedger* ledger = nullptr;        // the pair's ledger, once the operation is in it
  Registration* registration = nullptr;  // on the owner's side
  uint64_t operand = 0;                  // addend or new value; put: notification value
  uint64_t compare = 0;
  uint64_t* result = nullptr;
  uint64_t id = 0;       // initiator's id, once the owner was asked
  uint64_t batch = 0;    // identifies the operations between two flushes
  bool started = false;  // counted in its batch
  bool asked = false;    // was requested; the owner may have done it
  bool notify = false;
  bool placed = false;  // all bytes are in place; the owner does not know yet
  bool counted = false;
  bool direct_failed = false;  // goes by message: the owner has to carry it out
  bool waiting = false;        // in a TurnQueue
  bool had_turn = false;       // has waited in a TurnQueue, and has left it
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
// Begins a one-sided operation for the bytes from |offset| on.
inline void begin_access(Operation& operation, uint64_t offset, const AccessState& state) {
  operation.target = {.offset = offset};
  access_of(operation) = state;
}

}  // namespace hetcomm
