// Two ways to remote memory need no help of its owner: mapped_access.h and direct_access.h. Both
// use this. Under the baton.
#pragma once

#include <cstdint>
#include <utility>

#include <hetcomm/communicator.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Takes over the operations that such a way is done with.
class DirectPathUser {
 public:
  // The connection has done all of |operation|, or it has failed in |code|.
  virtual void finish_direct(Operation& operation, Code code) HETCOMM_UNDER_BATON = 0;
  // It cannot go on: the rest goes by message, so that the owner says what became of the memory.
  // The first |placed| bytes are where they belong.
  virtual void go_by_message(Operation& operation, uint64_t placed) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DirectPathUser() = default;
};

// Counts |operation|, once, when it leaves for the first time.
inline void count_access(Operation& operation, hetcomm_counters_t& counters) {
  if (operation.access.remote == nullptr || std::exchange(operation.access.counted, true)) return;
  if (operation.kind == OperationKind::kPut) {
    ++counters.puts;
  } else if (operation.kind == OperationKind::kGet) {
    ++counters.gets;
  } else {
    ++counters.atomics;
  }
}

}  // namespace hetcomm
