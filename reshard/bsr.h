// Batched send-receive (Hetu v2, section 4.2): every piece of the tensor is sent to each rank that
// needs it by its best holder.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The bytes that each rank sends, over all tensors that are planned together. The list grows to the
// highest rank.
struct SendLoads {
  std::vector<uint64_t> bytes;  // by rank
};

// Cuts the tensor at the boundaries of all boxes. Each piece is taken from the rank itself, else
// over the fastest link, else from the rank that has sent least so far, else from the holder that
// is listed first in |source|. Pieces are visited in the order of their indices, and the ranks that
// need a piece in the order of |destination|.
// |links|: null: all links are equal. |loads|: accumulates over tensors.
// UNSUPPORTED: a layout is a sum of several terms.
Result<MovePlan> plan_bsr(const Layout& source, const Layout& destination, uint64_t element_bytes,
                          const Links* links, SendLoads& loads,
                          std::optional<int> rank = std::nullopt);

}  // namespace hetcomm::reshard
