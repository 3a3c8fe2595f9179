// A DirectAccess is a put or get that connections perform directly, in pieces. A connection that
// has finished a piece takes the next one. The size of a piece depends on the connection's rate, so
// all connections finish at about the same time. Pieces that were in flight on a failed connection
// are moved over the remaining ones. If no remaining connection can access the memory, the rest is
// sent by message.
//
// Bytes that were sent over a failed connection may still arrive later. They do no harm until the
// put that they belong to has completed. Therefore no put completes, successfully or cancelled,
// before the peer has reported that it has also abandoned the failed connection (the failure
// barrier of DirectAccesses). Callers hold the baton.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/access/direct_path.h"
#include "src/core/peer/association.h"
#include "src/core/progress/graveyard.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class DirectAccesses;

class DirectAccess final : public BulkOwner, public Mortal {
 public:
  DirectAccess(DirectAccesses& all, Association& association, Operation& operation);

  // DirectAccesses owns these fields.
  size_t position = 0;  // position in DirectAccesses' list
  uint64_t round = 0;   // last round of go_on() that included this access

  // Starts the access over the pair's connections that can access the memory.
  void start() HETCOMM_UNDER_BATON;
  // Cancels the access, and every piece in flight. Returns true if bytes of a put may still arrive
  // over a failed connection. The access then completes later, with |code| and |*text|, unless
  // lose() is called first.
  bool cancel(Code code, std::string* text) HETCOMM_UNDER_BATON;
  // Cancels all pieces, without waiting for the barrier, because the pair is lost. If the access
  // was cancelled before, stores that outcome in |*code| and |*text|.
  void lose(Code* code, std::string* text) HETCOMM_UNDER_BATON;
  // Marks the pieces in flight on |rail| as missing. go_on() reassigns them.
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  // Resumes after the set of connections has changed or the barrier was lifted. May complete the
  // access.
  void go_on() HETCOMM_UNDER_BATON;
  // Removes this access from the list, and frees it once none of its upcalls is on the stack.
  void retire() HETCOMM_UNDER_BATON;

  // Returns whether a piece is in flight on |rail|, or |rail| is about to fail because a piece on
  // it was cancelled.
  bool uses(const Rail& rail) HETCOMM_UNDER_BATON {
    return running_on(rail) > 0 || is_breaking(rail);
  }

 private:
  struct Range {
    uint64_t offset;
    uint64_t length;
  };
  static constexpr size_t kMaxRails = 8;
  static constexpr size_t kDepth = 2;  // pieces in flight on one connection
  static constexpr size_t kMaxPieces = kMaxRails * kDepth;
  static constexpr uint64_t kMinPiece = 64 << 10;
  static constexpr uint64_t kMaxPiece = 4 << 20;
  static constexpr uint64_t kPieceUnit = 4 << 10;
  // The number of failed connections after which the rest of an access is sent by message. The
  // operation itself may have broken them, and the owner then reports the reason. For a short
  // access the number is 1.
  static constexpr uint32_t kMaxFailures = 2;

  void on_bulk(Bulk& bulk, Code code) override HETCOMM_UNDER_BATON;
  bool may_fail_again() const HETCOMM_UNDER_BATON {
    return failures_ < (operation_.length < 2 * kMinPiece ? 1 : kMaxFailures);
  }
  bool is_missing_some() const HETCOMM_UNDER_BATON {
    return missing_count_ > 0 || next_ < operation_.length;
  }
  size_t running_on(const Rail& rail) HETCOMM_UNDER_BATON;
  bool is_breaking(const Rail& rail) const HETCOMM_UNDER_BATON;
  void feed() HETCOMM_UNDER_BATON;
  Range take(size_t rails, double share) HETCOMM_UNDER_BATON;
  void issue(Rail& rail, Range range) HETCOMM_UNDER_BATON;
  void settle() HETCOMM_UNDER_BATON;
  void drop_pieces() HETCOMM_UNDER_BATON;
  uint64_t placed_in_front() const HETCOMM_UNDER_BATON;
  OwnedBulk* pieces() HETCOMM_UNDER_BATON { return reinterpret_cast<OwnedBulk*>(storage_.data()); }

  DirectAccesses& all_;
  Association& association_;
  Operation& operation_;
  const RailMasks near_;  // transports that are used while connections between them exist
  // Holds |count_| pieces. Most accesses have one. The rest of the storage is never touched.
  alignas(OwnedBulk) std::array<std::byte, kMaxPieces * sizeof(OwnedBulk)> storage_;
  size_t count_ = 0;
  size_t running_ = 0;
  uint64_t next_ = 0;  // offset of the first byte that was not given to a connection
  // Ranges that were in flight on failed connections. They are whole pieces, so there are never
  // more ranges than pieces.
  std::array<Range, kMaxPieces> missing_;
  size_t missing_count_ = 0;
  uint32_t failures_ = 0;
  Code code_ = Code::kOk;
  // The access was cancelled, and waits for its connections to fail and then for the barrier.
  bool cancelled_ = false;
  std::array<const Rail*, kMaxPieces> breaking_{};
  size_t breaking_count_ = 0;
  std::string text_;
};

// The direct access that carries out a one-sided operation.
struct DirectCarrier {
  static constexpr auto kRoom = &Operation::Bodies::direct;
  DirectAccess* access = nullptr;
};
inline DirectAccess*& direct_of(Operation& operation) {
  return body_of<DirectCarrier>(operation).access;
}
inline DirectAccess* direct_of(const Operation& operation) {
  return body_of<DirectCarrier>(operation).access;
}

// DirectAccesses holds the direct accesses of one pair that are in flight, and the barrier that
// follows a failed connection. While the barrier is up, the peer may still hold the failed
// connection, so bytes written to it may arrive.
class DirectAccesses {
 public:
  DirectAccesses(Association& association, DataServices& data, DirectPathUser& user)
      : association_(association), data_(data), user_(user) {}
  DirectAccesses(const DirectAccesses&) = delete;
  DirectAccesses& operator=(const DirectAccesses&) = delete;

  // Returns whether |rail| can directly access the memory of |operation| on both sides.
  bool may_go(const Operation& operation, const Rail& rail) HETCOMM_UNDER_BATON;
  // Returns whether some connection can access the memory of |operation|, or one that may be able
  // to is being made. |rail| is the current connection.
  bool may_start(const Operation& operation, const Rail& rail) HETCOMM_UNDER_BATON {
    return may_go(operation, rail) || may_go_beside(operation, rail);
  }
  // Returns the transports that |operation| uses while connections between them exist.
  RailMasks near(const Operation& operation) HETCOMM_UNDER_BATON;
  // Starts |operation|. Requires may_start(). May throw std::bad_alloc.
  void start(Operation& operation) HETCOMM_UNDER_BATON;
  // Cancels |operation|, which is in this list. Returns true if bytes of |operation| may still
  // arrive. |operation| then completes later, with |code| and |*text|.
  bool cancel(Operation& operation, Code code, std::string* text) HETCOMM_UNDER_BATON;
  // Fails all accesses with |why| because the pair is lost. Those cancelled before keep that
  // outcome.
  void lose_all(const Status& why) HETCOMM_UNDER_BATON;
  // Stops the pieces in flight on |rail|; go_on() resumes them. If |peer_has_to_know| is true, the
  // failure counts as unreported until told_of_failure().
  void rail_failed(const Rail& rail, bool peer_has_to_know) HETCOMM_UNDER_BATON;
  // Records that message number |sent|, which reports a failed connection, was sent.
  void told_of_failure(uint32_t sent) HETCOMM_UNDER_BATON;
  // Handles the peer's acknowledgement of all messages up to |sequence|.
  void acknowledged(uint32_t sequence) HETCOMM_UNDER_BATON;
  bool awaits_acknowledgement() const HETCOMM_UNDER_BATON {
    return barrier_ == FailureBarrier::kAsked;
  }
  bool is_barrier_up() const HETCOMM_UNDER_BATON { return barrier_ != FailureBarrier::kNone; }
  // Resumes all direct accesses after the set of connections has changed.
  void go_on() HETCOMM_UNDER_BATON;
  bool uses(const Rail& rail) const HETCOMM_UNDER_BATON;
  bool empty() const HETCOMM_UNDER_BATON { return operations_.empty(); }
  void forget_failures() HETCOMM_UNDER_BATON {
    barrier_ = FailureBarrier::kNone;
    untold_failures_ = 0;
  }

  // DirectAccess calls the following functions.
  void forget(Operation& operation) HETCOMM_UNDER_BATON;
  DirectPathUser& user() HETCOMM_UNDER_BATON { return user_; }
  DataServices& data() HETCOMM_UNDER_BATON { return data_; }

 private:
  enum class FailureBarrier : uint8_t { kNone, kWanted, kAsked };

  void lose(Operation& operation, const Status& why) HETCOMM_UNDER_BATON;
  bool may_go_beside(const Operation& operation, const Rail& rail) HETCOMM_UNDER_BATON;

  Association& association_;
  DataServices& data_;
  DirectPathUser& user_;
  std::vector<Operation*> operations_;
  uint64_t round_ = 0;
  FailureBarrier barrier_ = FailureBarrier::kNone;
  uint32_t untold_failures_ = 0;   // failures that must still be reported to the peer
  uint32_t barrier_sequence_ = 0;  // the barrier is lifted when the peer has handled this message
};

}  // namespace hetcomm
