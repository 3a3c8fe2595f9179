#include "reshard/plans.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "reshard/capped.h"
#include "reshard/copy_turns.h"
#include "reshard/faults.h"
#include "reshard/forecast.h"
#include "reshard/list_auto.h"

namespace hetcomm::reshard {
namespace {

// Returns the plan of an empty tensor. It has no moves with any strategy.
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
      return plan_auto(tensor, wishes_, rank_);
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
  uint64_t turn_of(const Tensor& tensor) {
    return turns_.take(*tensor.source, *tensor.destination, tensor.element_bytes);
  }

  const Wishes& wishes_;
  const std::optional<int> rank_;
  SendLoads loads_;
  CopyTurns turns_;
};

// Makes the plans of |tensors| with |strategies|. If the strategy of a tensor fails, tries the
// caller's strategy.
Result<std::vector<Choice>> plans_with(const std::vector<Strategy>& strategies,
                                       const std::vector<Tensor>& tensors, const Wishes& wishes,
                                       std::optional<int> rank) {
  std::vector<Choice> choices;
  choices.reserve(tensors.size());
  Maker maker(wishes, rank);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Result<Choice> choice = maker.make(tensors[i], strategies[i]);
    if (!choice.ok() && strategies[i] != wishes.strategy) {
      choice = maker.make(tensors[i], wishes.strategy);
    }
    if (!choice.ok()) {
      return tensors.size() == 1 ? choice.status()
                                 : choice.status().annotate(fmt::format("tensor {}", i));
    }
    choices.push_back(std::move(choice).value());
  }
  return choices;
}

// Returns whether |tensors| are few enough to make complete plans for every compared list.
bool are_few(const std::vector<Tensor>& tensors) {
  constexpr size_t kMaxParts = 16'384;
  size_t parts = 0;
  for (const Tensor& tensor : tensors) {
    parts += tensor.source->parts.size() + tensor.destination->parts.size();
    if (parts > kMaxParts) return false;
  }
  return true;
}

// Keeps only the list whose plans have the shortest forecast. Ties go to the list that comes first.
Status choose_by_plans(const std::vector<Tensor>& tensors, const Wishes& wishes,
                       ListChoice& choice) {
  std::set<std::vector<Strategy>> seen;
  uint64_t least_ns = UINT64_MAX;
  std::vector<Strategy> best;
  for (std::vector<Strategy>& each : choice.lists) {
    if (!seen.insert(each).second) continue;
    const Result<std::vector<Choice>> choices = plans_with(each, tensors, wishes, std::nullopt);
    if (!choices.ok()) return choices.status();
    const uint64_t ns = forecast_of_list(tensors, choices.value(), wishes).ns;
    if (ns >= least_ns) continue;
    least_ns = ns;
    best = std::move(each);
  }
  choice.lists = {std::move(best)};
  return {};
}

Result<ListChoice> strategies_of(const std::vector<Tensor>& tensors, const Wishes& wishes) {
  if (tensors.size() <= 1 || wishes.strategy != Strategy::kAuto || wishes.links == nullptr) {
    ListChoice plain;
    plain.lists.emplace_back(tensors.size(), wishes.strategy);
    return plain;
  }
  Result<ListChoice> list = choose_for_list(tensors, wishes);
  if (list.ok() && are_few(tensors)) {
    HETCOMM_RETURN_IF_ERROR(choose_by_plans(tensors, wishes, list.value()));
  }
  return list;
}

}  // namespace

Result<std::vector<Choice>> make_plans(const std::vector<Tensor>& tensors, const Wishes& wishes,
                                       std::optional<int> rank) {
  Result<ListChoice> list = strategies_of(tensors, wishes);
  if (!list.ok()) return list.status();
  Result<std::vector<Choice>> choices = plans_with(list->lists.front(), tensors, wishes, rank);
  if (!choices.ok() || tensors.size() <= 1) return choices;
  for (Choice& choice : choices.value()) choice.considered = list->considered;
  return choices;
}

Forecast forecast_of_list(const std::vector<Tensor>& tensors, const std::vector<Choice>& choices,
                          const Wishes& wishes) {
  JointForecast list(*wishes.links);
  uint64_t bytes = 0;
  size_t hops = 1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    bytes = capped_sum(bytes, bytes_of(tensors[i]));
    hops = std::max(hops, choices[i].plan.hops.size());
    const uint64_t shared = tensors.size() == 1 ? 1 : tensors_a_message(tensors[i], wishes);
    list.add(choices[i].plan, tensors[i].element_bytes, 1, shared);
  }
  return list.forecast(slices_for(bytes, hops, wishes.bundle_bytes));
}

}  // namespace hetcomm::reshard
