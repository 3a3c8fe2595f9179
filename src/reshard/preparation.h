// Prepares a redistribution. Turns the tensors to move into the plans of all tensors, an optional
// proof of the plans, and the program of this rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/draft.h"
#include "reshard/links.h"
#include "reshard/plans.h"
#include "reshard/tensor_order.h"
#include "src/base/status.h"
#include "src/core/communicator/communicator.h"
#include "src/reshard/execution.h"
#include "src/reshard/redistribution.h"

namespace hetcomm::reshard {

struct OrderOptions {
  DraftOptions plans;
  uint64_t tag = 0;
  uint32_t in_flight = 1;
  Overflow overflow = Overflow::kSaturates;
  // Specific to this rank:
  uint64_t landing_bytes = 0;     // maximum bytes of each Landing; 0: the default
  uint32_t weight = 0;            // for sharing network interfaces; 0: does not take part
  uint64_t bytes_per_second = 0;  // 0: unlimited
};

// Facts about the plans of all ranks.
struct Facts {
  Strategy strategy = Strategy::kAuto;  // the strategy of the first tensor
  bool is_of_all = true;                // true if all other tensors have the same strategy
  uint64_t forecast_ns = 0;             // forecast for all tensors; 0 if the links are unknown
};

// An Order holds the tensors, layouts and options that all ranks have specified. It makes the plans
// and prepares this rank's redistribution.
class Order {
 public:
  // Makes the plans, and proves them if |options| request it. |communicator| outlives this object.
  // Fails with INVALID_ARGUMENT, OUT_OF_RANGE or UNSUPPORTED for ranks that do not exist, shapes
  // that differ, types that cannot be converted, or a strategy that does not cover the layouts. If
  // there are several tensors, the error text names the tensor. Fails with INTERNAL if the proof
  // fails. Sends nothing to other ranks. May throw std::bad_alloc.
  static Result<std::unique_ptr<Order>> create(Communicator& communicator,
                                               std::vector<TensorOrder> tensors,
                                               const OrderOptions& options);
  // Creates this rank's redistribution. May be called only once.
  std::unique_ptr<Redistribution> prepare();
  const std::vector<TensorOrder>& tensors() const { return orders_; }
  const OrderOptions& options() const { return options_; }
  // Returns facts about the plans. May take as long as planning.
  Result<Facts> facts() const;
  // Describes the plans of all ranks. May take as long as planning.
  Result<std::string> describe(PlanFormat format) const;

 private:
  Order(Communicator& communicator, std::vector<TensorOrder> tensors, const OrderOptions& options);
  Status check() const;
  Status find_links();
  Status make_plans();
  uint64_t hash() const;

  Communicator& communicator_;
  const std::vector<TensorOrder> orders_;
  const OrderOptions options_;
  std::optional<Links> links_;
  std::vector<Choice> choices_;  // contain only the moves of this rank
  uint64_t content_ = 0;
};

}  // namespace hetcomm::reshard
