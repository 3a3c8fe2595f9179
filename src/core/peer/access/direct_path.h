// The interface and the counting shared by the two ways to remote memory that do not need the
// owner's help: mapped_access.h and direct_access.h. Under the baton.
#pragma once

#include <cstdint>
#include <utility>

#include <hetcomm/communicator.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/access_state.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Takes over operations when a direct path has finished.
class DirectPathUser {
 public:
  // Called when the connection has done all of |operation|, or has failed with |code|.
  virtual void finish_direct(Operation& operation, Code code) HETCOMM_UNDER_BATON = 0;
  // Called when the direct path cannot continue. The rest goes by message, so that the owner
  // reports the state of its memory. The first |placed| bytes are in place.
  virtual void go_by_message(Operation& operation, uint64_t placed) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DirectPathUser() = default;
};

// Counts |operation|, once, when it first leaves.
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
