// Makes plans with a given strategy, for one or many tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "reshard/auto.h"
#include "reshard/bsr.h"
#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The values are those of the C ABI.
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

// A caller's preferences for a plan.
struct Wishes {
  Strategy strategy = Strategy::kAuto;
  uint64_t outer = 0;            // as in plan_gather_p2p_scatter()
  uint64_t bundle_bytes = 0;     // see slices_for()
  const Links* links = nullptr;  // null: the links are unknown
};

// Returns the number of slices into which a plan with |hops| cuts a tensor of |bytes|. With several
// hops, slices may be smaller than |bundle_bytes|, so that the hops overlap. Returns at most 64,
// and 8 if |bundle_bytes| is 0 (unknown).
uint64_t slices_for(uint64_t bytes, size_t hops, uint64_t bundle_bytes);

// A tensor that moves from one layout to another.
struct Tensor {
  const Layout* source = nullptr;
  const Layout* destination = nullptr;
  uint64_t element_bytes = 0;
};

// Makes a plan. Without links, |kAuto| is batched send-receive, or direct for sums. The choice has
// a forecast if links are given, and either |rank| is not given or |kAuto| has chosen the strategy.
// |loads| accumulates, as for plan_bsr().
Result<Choice> make_plan(const Tensor& tensor, const Wishes& wishes, SendLoads& loads,
                         std::optional<int> rank = std::nullopt);

// Makes a plan for each of |tensors|. With links, |kAuto| is decided for the tensor with the most
// bytes. The other tensors use that strategy if it covers them. If there are several tensors, an
// error names the tensor.
Result<std::vector<Choice>> make_plans(const std::vector<Tensor>& tensors, const Wishes& wishes,
                                       std::optional<int> rank = std::nullopt);

}  // namespace hetcomm::reshard
