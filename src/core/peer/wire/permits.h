// Permits counts the one-sided operations that this rank has requested from one peer, and those
// that it holds for the peer. Both counts are bounded.
//
// The initiator takes a permit for each operation that it requests from the owner, and has at most
// kMaxAsked permits. Cancelling the operation does not free its permit. A permit is returned
//
//   for kPut          when the owner has acknowledged the message
//   for kGet, kAtomic when the owner has answered, and the operation has ended
//   for kAnnouncePut  when the transfer has ended; if the initiator withdrew it, when the owner
//                     has acknowledged the withdrawal
//
// The owner holds a get, an atomic and an announced put until the initiator has acknowledged the
// answer, or has ended the transfer. It holds a refused put until the initiator has acknowledged
// the refusal. An initiator that makes it hold more than kMaxHeld violates the protocol.
//
// Both counts depend only on messages that arrive once and in order, so failing connections do not
// change them. They have no meaning once the pair is lost. All callers hold the baton.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/memory/access_state.h"
#include "src/core/peer/wire/wire.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// The side whose permit a message of this rank holds until the peer has acknowledged the message.
enum class Permit : uint8_t { kNone, kInitiator, kOwner };

class Permits {
 public:
  // The initiator uses the following functions.
  bool is_free() const HETCOMM_UNDER_BATON { return asked_ < kMaxAsked; }
  void take() HETCOMM_UNDER_BATON { ++asked_; }
  void give_back() HETCOMM_UNDER_BATON { --asked_; }
  uint32_t asked() const HETCOMM_UNDER_BATON { return asked_; }

  // The owner uses the following functions. hold() counts one more held operation, and returns
  // false if the peer has exceeded its limit.
  [[nodiscard]] bool hold() HETCOMM_UNDER_BATON {
    if (held_ >= kMaxHeld) return false;
    ++held_;
    return true;
  }
  void drop() HETCOMM_UNDER_BATON { --held_; }
  // Records that the answer to a held operation was sent as message |sequence|.
  void answered(uint32_t sequence) HETCOMM_UNDER_BATON { answers_.push_back(sequence); }
  bool has_answers() const HETCOMM_UNDER_BATON { return !answers_.empty(); }
  // Handles the peer's acknowledgement of all messages up to |sequence|.
  void acknowledged(uint32_t sequence) HETCOMM_UNDER_BATON {
    while (!answers_.empty() && static_cast<int32_t>(sequence - answers_.front()) >= 0) {
      answers_.pop_front();
      --held_;
    }
  }
  uint32_t held() const HETCOMM_UNDER_BATON { return held_; }

 private:
  uint32_t asked_ = 0;
  uint32_t held_ = 0;
  std::deque<uint32_t> answers_;  // sequence numbers that the peer has not acknowledged
};

// Takes the permit from |operation| and returns it, or kNone if there is none to take. The caller
// passes it to the message that ends the transfer.
inline Permit hand_over_permit(Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kPut:
    case OperationKind::kAccept:
    case OperationKind::kAnswer:
      if (!std::exchange(access_of(operation).holds_permit, false)) return Permit::kNone;
      return operation.kind == OperationKind::kPut ? Permit::kInitiator : Permit::kOwner;
    default:
      return Permit::kNone;  // a get frees its permit when it ends; kMaxHeld allows for that
  }
}

}  // namespace hetcomm
