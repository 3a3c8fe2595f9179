// CallCheck checks in the arena that the ranks of a team make the same call. Each rank writes its
// own call next to its first chunk, and compares the calls of the other ranks with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/base/baton_role.h"
#include "src/core/collectives/call.h"
#include "src/core/collectives/shared_arena.h"
#include "src/core/collectives/task.h"

namespace hetcomm::collectives {

class CallCheck {
 public:
  // A call of another rank that does not match this rank's call.
  struct Mismatch {
    uint32_t peer = 0;
    uint64_t sequence = 0;
    Call call;
    // If true, the calls match, but the peer sends |sent| bytes to this rank, which expects
    // |expected|.
    bool in_length = false;
    uint64_t sent = 0;
    uint64_t expected = 0;
  };

  // Starts the checks for |task|. |checks| is true if calls are compared.
  void start(const Task& task, bool checks) HETCOMM_UNDER_BATON {
    checks_ = checks;
    // Data is accepted only from ranks with the same call history.
    hash_ = checks ? task.history() : 0;
  }
  void write(const Task& task, ChunkSlot& own) const HETCOMM_UNDER_BATON {
    if (!checks_) return;
    own.hash = hash_;
    own.sequence = task.sequence();
    std::memcpy(&own.call, &task.call(), sizeof(Call));
  }
  // Returns whether the calls match. If false, mismatch() describes the difference.
  bool is_same_call(uint32_t peer, const ChunkSlot& theirs) {
    if (!checks_ || theirs.hash == hash_) return true;
    mismatch_ = {.peer = peer, .sequence = theirs.sequence};
    std::memcpy(&mismatch_.call, &theirs.call, sizeof(Call));
    if (static_cast<size_t>(mismatch_.call.kind) >= kKinds) mismatch_.call = Call();
    return false;
  }
  bool is_same_length(uint32_t peer, uint64_t sent, uint64_t expected) {
    if (sent == expected) return true;
    mismatch_ = {.peer = peer, .in_length = true, .sent = sent, .expected = expected};
    return false;
  }
  const Mismatch& mismatch() const { return mismatch_; }

 private:
  bool checks_ = true;
  uint64_t hash_ = 0;
  Mismatch mismatch_;
};

}  // namespace hetcomm::collectives
