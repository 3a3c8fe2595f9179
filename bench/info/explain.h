// `hetcomm_info explain`: which path leads from here to another rank, and why.
#pragma once

#include <cstdint>
#include <optional>

namespace hetcomm_info {

// Joins as the rank that the environment names, or starts two ranks on this host where it names
// none. Returns the exit status.
int explain(std::optional<int32_t> peer, bool json);

}  // namespace hetcomm_info
