// `hetcomm_info explain`: which path leads from here to another rank, and why.
#pragma once

#include <cstdint>
#include <optional>

namespace hetcomm_info {

struct Question {
  std::optional<int32_t> peer;  // none: all others
  int32_t device = 0;           // whose data is sent, as an index of the context's devices
  bool json = false;
};

// Joins the job that a launcher (mpirun, torchrun) started, or starts two ranks on this host where
// there is none. Rank 0 prints how each rank reaches the peer. Returns the exit status.
int explain(const Question& question);

}  // namespace hetcomm_info
