// Implements the command `explain`, which shows the path from each rank to other ranks, and the
// reasons for it.
#pragma once

#include <cstdint>
#include <optional>

namespace hetcomm_info {

struct Question {
  std::optional<int32_t> peer;  // the rank to reach; none: all other ranks
  int32_t device = 0;           // device whose data is sent, as an index of the context's devices
  bool json = false;
};

// Joins the job that a launcher (mpirun, torchrun) started, or starts two ranks on this host if
// there is no launcher. Rank 0 prints how each rank reaches the peer, or all other ranks. Returns
// the exit status.
int explain(const Question& question);

}  // namespace hetcomm_info
