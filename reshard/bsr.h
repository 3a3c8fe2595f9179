// Plans a batched send-receive (Hetu v2, section 4.2): the best holder of each piece of the tensor
// sends it to the ranks that need it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// SendLoads counts the bytes that each rank sends, over all tensors that are planned together.
// plan_bsr() lengthens |bytes| as needed.
struct SendLoads {
  std::vector<uint64_t> bytes;  // by rank
};

// Cuts the tensor at the boundaries of all boxes. A rank that holds a piece copies it from its own
// memory. Otherwise the holder with the fastest link sends it. Ties go to the rank that has sent
// least so far, and then to the holder that is listed first in |source|. Pieces are visited in the
// order of their indices, and the ranks that need a piece in the order of |destination|.
// If |links| is null, all links count as equal. |loads| accumulates over tensors. If |rank| is
// given, the plan has only the moves of this rank. Fails with UNSUPPORTED if a layout is a sum of
// several terms.
Result<MovePlan> plan_bsr(const Layout& source, const Layout& destination, uint64_t element_bytes,
                          const Links* links, SendLoads& loads,
                          std::optional<int> rank = std::nullopt);

}  // namespace hetcomm::reshard
