#include "reshard/plans.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "reshard/faults.h"
#include "reshard/forecast.h"
#include "reshard/list_auto.h"

namespace hetcomm::reshard {
namespace {

// Returns the plan of a tensor without elements, which has no moves with any strategy.
MovePlan plan_of_nothing(const Tensor& tensor, Strategy strategy) {
  MovePlan plan;
  plan.strategy = name_of(strategy == Strategy::kAuto ? Strategy::kDirect : strategy);
  plan.source = *tensor.source;
  plan.hops.push_back({.to = *tensor.destination, .scratch = {}, .moves = {}});
  return plan;
}

Strategy without_links(const Tensor& tensor) {
  const bool sums = tensor.source->terms != 1 || tensor.destination->terms != 1;
  return sums ? Strategy::kDirect : Strategy::kBsr;
}

// Makes the plans of one list.
class Maker {
 public:
  Maker(const Wishes& wishes, std::optional<int> rank)
      : wishes_(wishes), rank_(rank), loads_(wishes.links) {}

  Result<Choice> make(const Tensor& tensor, Strategy strategy) {
    if (tensor.source->shape != tensor.destination->shape) {
      return invalid("source and destination are layouts of tensors with different shapes");
    }
    if (strategy == Strategy::kAuto && wishes_.links != nullptr && !is_empty(tensor)) {
      return plan_auto(*tensor.source, *tensor.destination, tensor.element_bytes, *wishes_.links,
                       slices_for(bytes_of(tensor), 3, wishes_.bundle_bytes), rank_,
                       wishes_.slice_bytes);
    }
    if (strategy == Strategy::kAuto) strategy = without_links(tensor);
    Result<MovePlan> plan =
        is_empty(tensor) ? plan_of_nothing(tensor, wishes_.strategy)
                         : plan_with(strategy, tensor, wishes_, loads_, rank_, turn_of(tensor));
    if (!plan.ok()) return plan.status();
    Choice choice;
    choice.plan = std::move(plan).value();
    if (wishes_.links != nullptr && !rank_) {
      choice.forecast =
          forecast(choice.plan, tensor.element_bytes, *wishes_.links,
                   slices_for(bytes_of(tensor), choice.plan.hops.size(), wishes_.bundle_bytes));
    }
    return choice;
  }

 private:
  // Tensors whose source has several copies take turns.
  uint64_t turn_of(const Tensor& tensor) {
    if (tensor.source != last_source_) has_copies_ = has_copies(*tensor.source);
    last_source_ = tensor.source;
    return has_copies_ ? turn_++ : 0;
  }

  const Wishes& wishes_;
  const std::optional<int> rank_;
  SendLoads loads_;
  uint64_t turn_ = 0;
  const Layout* last_source_ = nullptr;
  bool has_copies_ = false;
};

Result<ListChoice> strategies_of(const std::vector<Tensor>& tensors, const Wishes& wishes) {
  if (tensors.size() > 1 && wishes.strategy == Strategy::kAuto && wishes.links != nullptr) {
    return choose_for_list(tensors, wishes);
  }
  return ListChoice{.strategies = std::vector<Strategy>(tensors.size(), wishes.strategy),
                    .considered = {}};
}

}  // namespace

Result<std::vector<Choice>> make_plans(const std::vector<Tensor>& tensors, const Wishes& wishes,
                                       std::optional<int> rank) {
  Result<ListChoice> list = strategies_of(tensors, wishes);
  if (!list.ok()) return list.status();
  std::vector<Choice> choices;
  choices.reserve(tensors.size());
  Maker maker(wishes, rank);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Result<Choice> choice = maker.make(tensors[i], list->strategies[i]);
    if (!choice.ok() && list->strategies[i] != wishes.strategy) {
      choice = maker.make(tensors[i], wishes.strategy);
    }
    if (!choice.ok()) {
      return tensors.size() == 1 ? choice.status()
                                 : choice.status().annotate(fmt::format("tensor {}", i));
    }
    if (choice->considered.empty()) choice->considered = list->considered;
    choices.push_back(std::move(choice).value());
  }
  return choices;
}

Forecast forecast_of_list(const std::vector<Tensor>& tensors, const std::vector<Choice>& choices,
                          const Wishes& wishes) {
  JointForecast list(*wishes.links);
  uint64_t bytes = 0;
  size_t hops = 1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t own = bytes_of(tensors[i]);
    bytes = own > UINT64_MAX - bytes ? UINT64_MAX : bytes + own;
    hops = std::max(hops, choices[i].plan.hops.size());
    const uint64_t shared =
        tensors.size() == 1 ? 1 : wishes.bundle_bytes / std::max<uint64_t>(own, 1);
    list.add(choices[i].plan, tensors[i].element_bytes, 1, std::max<uint64_t>(shared, 1));
  }
  return list.forecast(slices_for(bytes, hops, wishes.bundle_bytes));
}

}  // namespace hetcomm::reshard
