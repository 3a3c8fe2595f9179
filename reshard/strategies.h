// Strategies to move a tensor from one layout to another. Each function makes a plan of one kind. A
// plan for one rank has only the moves in which that rank takes part.
#pragma once

#include <cstdint>
#include <optional>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// One message from each rank that holds something to each that needs it (HetAuto, section 5.2,
// strategy 1).
Result<MovePlan> plan_direct(const Layout& source, const Layout& destination,
                             std::optional<int> rank = std::nullopt);

// The first rank of the source collects the tensor and sends it to the first rank of the
// destination, which distributes it (HetAuto, strategy 2).
Result<MovePlan> plan_leader(const Layout& source, const Layout& destination,
                             std::optional<int> rank = std::nullopt);

// The first dimension (the batch) is cut into |outer| slabs. In each slab, the ranks that hold the
// same range of the other dimensions gather at the first of them. These exchange their data with
// the same ranks of the other side, which scatter it (HetAuto, strategy 3 and appendix E).
// |outer| 0: the greatest common divisor of the numbers of pieces into which the two layouts cut
// the batch.
// UNSUPPORTED: a box crosses the border of a slab, or the ranks of a group do not hold a slab
// without holes.
Result<MovePlan> plan_gather_p2p_scatter(const Layout& source, const Layout& destination,
                                         uint64_t outer = 0,
                                         std::optional<int> rank = std::nullopt);

// Ranks of the destination that hold the same data each receive a distinct piece, from as many
// ranks of the source as hold it. They gather the rest among themselves (H2, section 5:
// send-receive and all-gather).
Result<MovePlan> plan_sendrecv_allgather(const Layout& source, const Layout& destination,
                                         std::optional<int> rank = std::nullopt);

}  // namespace hetcomm::reshard
