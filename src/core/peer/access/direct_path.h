// Declares the interface and the counting that mapped_access.h and direct_access.h share. Both
// units reach remote memory without the owner's help. Callers hold the baton.
#pragma once

#include <cstdint>
#include <utility>

#include <hetcomm/communicator.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/access_state.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Takes over operations when a direct path has finished with them.
class DirectPathUser {
 public:
  // Called when the connection has done all of |operation|, or has failed with |code|.
  virtual void finish_direct(Operation& operation, Code code) HETCOMM_UNDER_BATON = 0;
  // Called when the direct path cannot continue. The bytes after the first |placed| then go by
  // message, so that the owner can report what is wrong with its memory.
  virtual void go_by_message(Operation& operation, uint64_t placed) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DirectPathUser() = default;
};

// Counts |operation| when it first leaves. Later calls for it change nothing.
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
