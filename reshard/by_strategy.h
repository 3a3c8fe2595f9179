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

// The default number of bytes of a message.
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

// Returns the number of slices into which a plan with |hops| cuts a tensor of |bytes|. Slices have
// at most |bundle_bytes|, as far as the limits allow. With several hops they can be smaller, so
// that the hops overlap. The result is at most 65,536, and exceeds 64 only if each slice has 64 KiB
// or more. It is 8 if |bundle_bytes| is 0 (unknown).
uint64_t slices_for(uint64_t bytes, size_t hops, uint64_t bundle_bytes);

// Returns the size of the whole tensor in bytes.
uint64_t bytes_of(const Tensor& tensor);
bool is_empty(const Tensor& tensor);
// Returns how many tensors of the size of |tensor| fit in one message, at least 1.
uint64_t tensors_a_message(const Tensor& tensor, const Wishes& wishes);

// Makes the plan of |tensor|, which is not empty. |strategy| is not |kAuto|. Only batched
// send-receive uses and changes |loads|. The other strategies use |turn| (redistribute.h).
Result<MovePlan> plan_with(Strategy strategy, const Tensor& tensor, const Wishes& wishes,
                           SendLoads& loads, std::optional<int> rank, uint64_t turn);

}  // namespace hetcomm::reshard
