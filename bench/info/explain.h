// `hetcomm_info explain`: which path leads from here to another rank, and why.
#pragma once

#include <cstdint>
#include <optional>

namespace hetcomm_info {

// Joins the job that a launcher (mpirun, torchrun) started, or starts two ranks on this host where
// there is none. Rank 0 prints how each rank reaches |peer|, or all others. Returns the exit
// status.
int explain(std::optional<int32_t> peer, bool json);

}  // namespace hetcomm_info
