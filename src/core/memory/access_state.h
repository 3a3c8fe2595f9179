// State that the protocol of one-sided operations keeps with each of them.
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
  // Releases what |operation|, which is about to complete, holds of the pair.
  virtual void ending(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Records that an operation counted in |batch| has completed with |code|.
  virtual void ended(uint64_t batch, Code code) HETCOMM_UNDER_BATON = 0;

 protected:
  ~AccessLedger() = default;
};

// State of a one-sided operation. Others may find here what the slot's last user has left.
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
  bool asked = false;    // the owner may have done it
  bool notify = false;
  bool placed = false;  // all bytes are in place; the owner does not know yet
  bool counted = false;
  bool direct_failed = false;  // the owner has to carry it out
  bool waiting = false;        // in a TurnQueue
  bool had_turn = false;       // has waited for its turn to be asked
  bool holds_permit = false;   // counted in Permits
  bool awaits_credit = false;  // in a list, for its notification
};

inline AccessState& access_of(Operation& operation) { return body_of<AccessState>(operation); }
inline const AccessState& access_of(const Operation& operation) {
  return body_of<AccessState>(operation);
}
// Whether |operation| is one-sided, and so has an AccessState of its own.
inline bool has_access(const Operation& operation) {
  return operation.kind > OperationKind::kReceive && operation.kind != OperationKind::kCollective;
}
// Begins a one-sided operation for the bytes from |offset| on.
inline void begin_access(Operation& operation, uint64_t offset, const AccessState& state) {
  operation.target = {.offset = offset};
  access_of(operation) = state;
}

}  // namespace hetcomm
