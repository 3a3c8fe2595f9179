// Strategies to move a tensor from one layout to another. Each function makes the plan of one
// strategy. A plan for one rank has only the moves in which that rank takes part. |turn| selects
// the copy of the source with which the receivers begin (redistribute.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The values are the same as in the C ABI.
enum class Strategy : int32_t {
  kAuto = 0,
  kDirect,
  kLeader,
  kGatherP2pScatter,
  kSendrecvAllgather,
  kBsr,
};
inline constexpr int32_t kStrategies = 6;

std::string_view name_of(Strategy strategy);
std::optional<Strategy> strategy_named(std::string_view name);

// Sends one message from each rank that holds elements to each rank that needs them (HetAuto,
// section 5.2, strategy 1).
Result<MovePlan> plan_direct(const Layout& source, const Layout& destination,
                             std::optional<int> rank = std::nullopt, uint64_t turn = 0);

// Collects the tensor at the first source rank. That rank sends it to the first destination rank,
// which distributes it (HetAuto, strategy 2).
Result<MovePlan> plan_leader(const Layout& source, const Layout& destination,
                             std::optional<int> rank = std::nullopt, uint64_t turn = 0);

// Cuts the first dimension (the batch) into |outer| slabs. In each slab, the ranks that hold the
// same range of the other dimensions send their data to the first of them. These first ranks send
// it to the corresponding ranks of the destination, which scatter it (HetAuto, strategy 3 and
// appendix E). If |outer| is 0, it is the greatest common divisor of the numbers of pieces into
// which the two layouts cut the batch. Fails with UNSUPPORTED if |outer| does not divide the batch,
// a box crosses a slab boundary, or the ranks of a group do not hold a slab without holes.
Result<MovePlan> plan_gather_p2p_scatter(const Layout& source, const Layout& destination,
                                         uint64_t outer = 0, std::optional<int> rank = std::nullopt,
                                         uint64_t turn = 0);

// Divides data that several destination ranks need. Each of them receives a distinct piece, and the
// pieces come from all source ranks that hold the data. The destination ranks then gather the other
// pieces among themselves (H2, section 5: send-receive and all-gather).
Result<MovePlan> plan_sendrecv_allgather(const Layout& source, const Layout& destination,
                                         std::optional<int> rank = std::nullopt, uint64_t turn = 0);

}  // namespace hetcomm::reshard
