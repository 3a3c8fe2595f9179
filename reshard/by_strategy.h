// Makes the plan of one tensor with a given strategy.
#pragma once

#include <cstdint>
#include <optional>

#include "reshard/links.h"
#include "reshard/move_plan.h"
#include "reshard/send_loads.h"
#include "reshard/strategies.h"

namespace hetcomm::reshard {

// A tensor that moves from one layout to another.
struct Tensor {
  const Layout* source = nullptr;
  const Layout* destination = nullptr;
  uint64_t element_bytes = 0;
};

// Bytes of a message where the caller does not say how many it wants.
inline constexpr uint64_t kSliceBytes = 16u << 20;
inline uint64_t slice_bytes_or_default(uint64_t wanted) {
  return wanted != 0 ? wanted : kSliceBytes;
}

// A caller's preferences for a plan.
struct Wishes {
  Strategy strategy = Strategy::kAuto;
  uint64_t outer = 0;            // as in plan_gather_p2p_scatter()
  uint64_t bundle_bytes = 0;     // see slices_for()
  uint64_t slice_bytes = 0;      // as in plan_bsr()
  const Links* links = nullptr;  // null: the links are unknown
};

// Returns the number of slices into which a plan with |hops| cuts a tensor of |bytes|. With several
// hops, slices may be smaller than |bundle_bytes|, so that the hops overlap. Returns at most
// 65,536, more than 64 only if slices have 64 KiB, and 8 if |bundle_bytes| is 0 (unknown).
uint64_t slices_for(uint64_t bytes, size_t hops, uint64_t bundle_bytes);

// Returns the bytes of the whole tensor.
uint64_t bytes_of(const Tensor& tensor);
bool is_empty(const Tensor& tensor);
// Returns how many tensors like |tensor| have room in one message; at least 1.
uint64_t tensors_a_message(const Tensor& tensor, const Wishes& wishes);

// Makes the plan of |tensor|, which has elements. |strategy| is not |kAuto|. Only batched
// send-receive uses and changes |loads|; the other strategies use |turn| (redistribute.h).
Result<MovePlan> plan_with(Strategy strategy, const Tensor& tensor, const Wishes& wishes,
                           SendLoads& loads, std::optional<int> rank, uint64_t turn);

}  // namespace hetcomm::reshard
