// Declares an interface and a counting function that mapped_access.h and direct_access.h share.
// Both units access remote memory without the owner's help. Callers hold the baton.
#pragma once

#include <cstdint>
#include <utility>

#include <hetcomm/communicator.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/access_state.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Takes operations back when a direct path has finished them or cannot continue them.
class DirectPathUser {
 public:
  // Called when all of |operation| has been performed (kOk), or when it has failed with |code|.
  virtual void finish_direct(Operation& operation, Code code) HETCOMM_UNDER_BATON = 0;
  // Called when the direct path cannot continue. The bytes after the first |placed| are then sent
  // by message, so the owner can report an error of its memory.
  virtual void go_by_message(Operation& operation, uint64_t placed) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DirectPathUser() = default;
};

// Counts |operation| when it is first sent or performed. Later calls for it have no effect.
// Operations that this rank carries out for a peer are not counted.
inline void count_access(Operation& operation, hetcomm_counters_t& counters) {
  if (access_of(operation).remote == nullptr || std::exchange(access_of(operation).counted, true))
    return;
  if (operation.kind == OperationKind::kPut) {
    ++counters.puts;
  } else if (operation.kind == OperationKind::kGet) {
    ++counters.gets;
  } else {
    ++counters.atomics;
  }
}

}  // namespace hetcomm
