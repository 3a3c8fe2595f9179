// Plans a batched send-receive (Hetu v2, section 4.2): the best holder of each piece of the tensor
// sends it to the ranks that need it.
#pragma once

#include <cstdint>
#include <optional>

#include "reshard/move_plan.h"
#include "reshard/send_loads.h"

namespace hetcomm::reshard {

// Cuts the tensor into pieces at the boundaries of all boxes. The holder of a piece with the least
// cost (SendLoads::Cost) sends it. Ties go to the holder that is listed first in |source|. Pieces
// are visited in the order of their indices, and the ranks that need a piece in the order of
// |destination|. If a piece has more than |slice_bytes| and several holders, none of them on the
// host of the receiver, the holders divide it among themselves. With a |slice_bytes| of 0, no piece
// is divided in this way. |loads| accumulates over tensors. If |rank| is given, the plan has only
// the moves of this rank. Fails with INVALID_ARGUMENT if the shapes differ or the links of |loads|
// lack a rank, and with UNSUPPORTED if a layout is a sum of several terms.
Result<MovePlan> plan_bsr(const Layout& source, const Layout& destination, uint64_t element_bytes,
                          SendLoads& loads, std::optional<int> rank = std::nullopt,
                          uint64_t slice_bytes = 0);

}  // namespace hetcomm::reshard
