// DirectAccess: a put or get that connections do directly, in pieces. A connection that has
// finished a piece takes the next one. The size of a piece depends on the connection's rate, so
// that all end together. Pieces in flight on a connection that fails go over the others. If no
// connection is left that reaches the memory, the rest goes by message.
//
// A connection that fails may have written bytes into the network that still arrive. They belong to
// the put, so they do no harm until it has completed. No put completes, successfully or cancelled,
// before the peer has said that it has given up that connection, too (the failure barrier of
// DirectAccesses). Under the baton.
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
  size_t place = 0;    // in its list
  uint64_t round = 0;  // the last round of go_on() that included it

  // Starts over the pair's connections that reach the memory.
  void start() HETCOMM_UNDER_BATON;
  // Cancels it; nothing is in flight afterwards. True: bytes of it may still arrive, so it ends
  // later, with |code| and |*text|, unless lose() comes first.
  bool cancel(Code code, std::string* text) HETCOMM_UNDER_BATON;
  // The pair is lost, so nothing waits for the barrier any more. An access that was cancelled
  // before keeps that outcome.
  void lose(Code* code, std::string* text) HETCOMM_UNDER_BATON;
  // The pieces that were in flight on |rail| are now missing. go_on() gives them to other
  // connections.
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  // The set of connections has changed, or the barrier is gone. May end the access.
  void go_on() HETCOMM_UNDER_BATON;
  // Frees itself.
  void retire() HETCOMM_UNDER_BATON;

  // Part of it is in flight on |rail|, or was when it was cancelled.
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
  static constexpr size_t kMaxParts = kMaxRails * kDepth;
  static constexpr uint64_t kMinPiece = 64 << 10;
  static constexpr uint64_t kMaxPiece = 4 << 20;
  static constexpr uint64_t kPieceUnit = 4 << 10;
  // The operation itself may be the cause: the owner says so when it goes by message. This limit
  // keeps it from breaking further connections where that has little cost.
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
  void drop_parts() HETCOMM_UNDER_BATON;
  uint64_t placed_in_front() const HETCOMM_UNDER_BATON;
  OwnedBulk* parts() HETCOMM_UNDER_BATON { return reinterpret_cast<OwnedBulk*>(storage_.data()); }

  DirectAccesses& all_;
  Association& association_;
  Operation& operation_;
  const RailMasks near_;  // it uses connections between these while there are some
  // The first |count_| parts; most have one, and the rest is not touched.
  alignas(OwnedBulk) std::array<std::byte, kMaxParts * sizeof(OwnedBulk)> storage_;
  size_t count_ = 0;
  size_t running_ = 0;
  uint64_t next_ = 0;  // nothing from here on was given to a connection yet
  // Ranges that were in flight on a connection that failed. They are whole pieces, so there are
  // never more of them than parts.
  std::array<Range, kMaxParts> missing_;
  size_t missing_count_ = 0;
  uint32_t failures_ = 0;
  Code code_ = Code::kOk;
  // It was cancelled, and waits for these connections to fail, and then for the barrier.
  bool cancelled_ = false;
  std::array<const Rail*, kMaxParts> breaking_{};
  size_t breaking_count_ = 0;
  std::string text_;
};

// DirectAccesses: the direct accesses of one pair that are in flight, and the barrier that follows
// a failed connection. The peer may still hold that connection, so bytes that were written to it
// may arrive.
class DirectAccesses {
 public:
  DirectAccesses(Association& association, DirectPathUser& user)
      : association_(association), user_(user) {}
  DirectAccesses(const DirectAccesses&) = delete;
  DirectAccesses& operator=(const DirectAccesses&) = delete;

  // |rail| reaches the memory of |operation| directly on both sides.
  bool may_go(const Operation& operation, const Rail& rail) HETCOMM_UNDER_BATON;
  // Some connection does, or one is being made that may. |rail|: the current one.
  bool may_start(const Operation& operation, const Rail& rail) HETCOMM_UNDER_BATON {
    return may_go(operation, rail) || may_go_beside(operation, rail);
  }
  // The transports between which |operation| goes while there are such connections.
  RailMasks near(const Operation& operation) HETCOMM_UNDER_BATON;
  // Begins |operation|. Requires may_start(). May throw std::bad_alloc.
  void start(Operation& operation) HETCOMM_UNDER_BATON;
  // Ends |operation|, which is in this list. True: its bytes may still arrive, so it ends later,
  // with |code| and |*text|.
  bool cancel(Operation& operation, Code code, std::string* text) HETCOMM_UNDER_BATON;
  // The pair is lost because of |why|: all of them end.
  void lose_all(const Status& why) HETCOMM_UNDER_BATON;
  // The pieces that were in flight on |rail| continue with go_on(). |peer_has_to_know|: the failure
  // counts as untold until told_of_failure().
  void rail_failed(const Rail& rail, bool peer_has_to_know) HETCOMM_UNDER_BATON;
  // A message that tells the peer of a failed connection has left, as number |sent|.
  void told_of_failure(uint32_t sent) HETCOMM_UNDER_BATON;
  // The peer has handled all messages up to |sequence|.
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

  // DirectAccess calls these.
  void forget(Operation& operation) HETCOMM_UNDER_BATON;
  DirectPathUser& user() HETCOMM_UNDER_BATON { return user_; }

 private:
  enum class FailureBarrier : uint8_t { kNone, kWanted, kAsked };

  void lose(Operation& operation, const Status& why) HETCOMM_UNDER_BATON;
  bool may_go_beside(const Operation& operation, const Rail& rail) HETCOMM_UNDER_BATON;

  Association& association_;
  DirectPathUser& user_;
  std::vector<Operation*> operations_;
  uint64_t round_ = 0;
  FailureBarrier barrier_ = FailureBarrier::kNone;
  uint32_t untold_failures_ = 0;   // failures that the peer has to know and was not told of
  uint32_t barrier_sequence_ = 0;  // the barrier is gone when the peer has handled this message
};

}  // namespace hetcomm
