// Describes the tensors to move, and the options of the move. All ranks specify the same tensors
// and options.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "reshard/element_types.h"
#include "reshard/layout.h"
#include "reshard/links.h"
#include "reshard/plans.h"
#include "src/base/status.h"

namespace hetcomm::reshard {

// A TensorOrder is a request to move one tensor from its source layout to its destination layout.
struct TensorOrder {
  std::shared_ptr<const Layout> source;
  std::shared_ptr<const Layout> destination;
  TypePair types;
};

// Options of the move, on which the plans of all ranks depend.
struct DraftOptions {
  Strategy strategy = Strategy::kAuto;
  uint64_t outer = 0;        // as in plan_gather_p2p_scatter()
  uint64_t slice_bytes = 0;  // approximate bytes of each message; 0: the default
  bool prove = false;
};

// Return the ranks that hold parts, in ascending order.
std::set<int> ranks_of(const Layout& layout);
std::vector<int> ranks_of(const std::vector<TensorOrder>& orders);

// Checks element types and destinations. Calls |check_ranks| with each tensor first. If there are
// several tensors, an error names the tensor.
Status check(const std::vector<TensorOrder>& orders,
             const std::function<Status(const TensorOrder&)>& check_ranks);

// Returns the input of make_plans() for |orders|. It refers to the layouts in |orders|.
std::vector<Tensor> tensors_of(const std::vector<TensorOrder>& orders);

// Returns the bytes of a bundle: |slice_bytes| times the number of ranks on the largest side of a
// tensor. Each message of a bundle then has about |slice_bytes|. If |slice_bytes| is 0, the default
// is used.
uint64_t bundle_bytes_of(const std::vector<TensorOrder>& orders, uint64_t slice_bytes);

// Returns the preferences that all plans of |orders| share. |links| is null if the links are not
// known.
Wishes wishes_of(const std::vector<TensorOrder>& orders, const DraftOptions& options,
                 const Links* links);

// Proves the plans of all ranks. Fails with INTERNAL if a proof fails, and with OUT_OF_RESOURCES if
// a plan has too many cells to prove.
Status prove_all(const std::vector<Choice>& choices);

// Returns the orders for the surviving ranks, as described at layout_of_survivors(). If there are
// several tensors, an error names the tensor.
Result<std::vector<TensorOrder>> orders_of_survivors(const std::vector<TensorOrder>& tensors,
                                                     const std::vector<int>& rank_now);

}  // namespace hetcomm::reshard
