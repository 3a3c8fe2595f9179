// DirectAccess: a put or get that connections do by themselves, in pieces. Each connection takes
// the next piece when it is done with one, of a size by its rate, so that all end together. What
// was under way on one that fails goes over the others; where none is left that reaches the memory,
// the rest goes by message.
//
// A connection that fails may have written bytes into the network that still arrive. They are those
// of the put, so that nothing is wrong until it has completed; no put completes, well or cancelled,
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

  // These are those of DirectAccesses.
  size_t place = 0;    // in its list
  uint64_t round = 0;  // of go_on(), the last that it had

  // Over the pair's connections that reach the memory.
  void start() HETCOMM_UNDER_BATON;
  // Nothing is under way afterwards. True: bytes of it may still arrive, so that it ends later,
  // with |code| and |*text|, unless lose() comes first.
  bool cancel(Code code, std::string* text) HETCOMM_UNDER_BATON;
  // The pair is lost: nobody waits for the barrier any more. Cancelled before, it keeps that end.
  void lose(Code* code, std::string* text) HETCOMM_UNDER_BATON;
  // The pieces that were under way on |rail| are missing now. go_on() gives them to other
  // connections.
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  // There are other connections than before, or no barrier any more. May end it.
  void go_on() HETCOMM_UNDER_BATON;
  // Frees itself.
  void retire() HETCOMM_UNDER_BATON;

  // Some part of it is under way there, or was when it was cancelled.
  bool uses(const Rail& rail) HETCOMM_UNDER_BATON {
    return running_on(rail) > 0 || is_breaking(rail);
  }

 private:
  struct Range {
    uint64_t offset;
    uint64_t length;
  };
  static constexpr size_t kMaxRails = 8;
  static constexpr size_t kDepth = 2;  // pieces that a connection has at a time
  static constexpr size_t kMaxParts = kMaxRails * kDepth;
  static constexpr uint64_t kMinPiece = 64 << 10;
  static constexpr uint64_t kMaxPiece = 4 << 20;
  static constexpr uint64_t kPieceUnit = 4 << 10;
  // The cause may be the operation itself: the owner says so when it goes by message. Other
  // connections shall not fail for it, too, where there is little to lose by that.
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
  const RailMasks near_;  // between these it goes, while there are such connections
  // The first |count_| parts; most have one, and the rest is not touched.
  alignas(OwnedBulk) std::array<std::byte, kMaxParts * sizeof(OwnedBulk)> storage_;
  size_t count_ = 0;
  size_t running_ = 0;
  uint64_t next_ = 0;  // from here on nothing was given to anybody yet
  // Was under way on a connection that failed; whole pieces, so that there are never more than
  // parts.
  std::array<Range, kMaxParts> missing_;
  size_t missing_count_ = 0;
  uint32_t failures_ = 0;
  Code code_ = Code::kOk;
  // Cancelled, and waits for these connections to fail, and then for the barrier.
  bool cancelled_ = false;
  std::array<const Rail*, kMaxParts> breaking_{};
  size_t breaking_count_ = 0;
  std::string text_;
};

// DirectAccesses has those of one pair that are under way, and the barrier that follows a failed
// connection: the peer may still hold it, so that bytes that were written to it may arrive.
class DirectAccesses {
 public:
  DirectAccesses(Association& association, DirectPathUser& user)
      : association_(association), user_(user) {}
  DirectAccesses(const DirectAccesses&) = delete;
  DirectAccesses& operator=(const DirectAccesses&) = delete;

  // The connection reaches the memory of |operation| on both sides by itself.
  bool may_go(const Operation& operation, const Rail& rail) HETCOMM_UNDER_BATON;
  // Some connection does, or is being made that may. |rail|: the current one.
  bool may_start(const Operation& operation, const Rail& rail) HETCOMM_UNDER_BATON {
    return may_go(operation, rail) || may_go_beside(operation, rail);
  }
  // Between these transports |operation| goes, while there are such connections.
  RailMasks near(const Operation& operation) HETCOMM_UNDER_BATON;
  // Begins |operation|; may_start() is true. May throw std::bad_alloc.
  void start(Operation& operation) HETCOMM_UNDER_BATON;
  // Ends |operation|, which is one of these. True: its bytes may still arrive, so that it ends
  // later, with |code| and |*text|.
  bool cancel(Operation& operation, Code code, std::string* text) HETCOMM_UNDER_BATON;
  // The pair is lost, for |why|: all of them end.
  void lose_all(const Status& why) HETCOMM_UNDER_BATON;
  // The pieces that were under way on |rail| go on with go_on(). |peer_has_to_know|: the failure
  // counts as untold until told_of_failure().
  void rail_failed(const Rail& rail, bool peer_has_to_know) HETCOMM_UNDER_BATON;
  // A message that tells of a failed connection has left, with the sequence |sent|.
  void told_of_failure(uint32_t sent) HETCOMM_UNDER_BATON;
  // The peer has dealt with all messages up to |sequence|.
  void acknowledged(uint32_t sequence) HETCOMM_UNDER_BATON;
  bool awaits_acknowledgement() const HETCOMM_UNDER_BATON {
    return barrier_ == FailureBarrier::kAsked;
  }
  bool is_barrier_up() const HETCOMM_UNDER_BATON { return barrier_ != FailureBarrier::kNone; }
  // There are other connections than before.
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
  uint32_t untold_failures_ = 0;   // of connections, which the peer has to know
  uint32_t barrier_sequence_ = 0;  // asked: gone when the peer has dealt with that message
};

}  // namespace hetcomm
