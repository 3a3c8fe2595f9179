#include "reshard/by_strategy.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/core.h>

#include "reshard/faults.h"
#include "reshard/forecast.h"
#include "reshard/strategies.h"

namespace hetcomm::reshard {
namespace {

constexpr std::array<std::string_view, kStrategies> kNames = {
    "auto", "direct", "leader", "gather_p2p_scatter", "sendrecv_allgather", "bsr"};

Result<MovePlan> plan_as(Strategy strategy, const Tensor& tensor, const Wishes& wishes,
                         SendLoads& loads, std::optional<int> rank) {
  const Layout& source = *tensor.source;
  const Layout& destination = *tensor.destination;
  switch (strategy) {
    case Strategy::kLeader:
      return plan_leader(source, destination, rank);
    case Strategy::kGatherP2pScatter:
      return plan_gather_p2p_scatter(source, destination, wishes.outer, rank);
    case Strategy::kSendrecvAllgather:
      return plan_sendrecv_allgather(source, destination, rank);
    case Strategy::kBsr:
      return plan_bsr(source, destination, tensor.element_bytes, wishes.links, loads, rank);
    case Strategy::kAuto:
    case Strategy::kDirect:
      break;
  }
  return plan_direct(source, destination, rank);
}

// Returns the index of the tensor with the most bytes.
size_t largest_of(const std::vector<Tensor>& tensors) {
  size_t largest = 0;
  uint64_t most = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].source->whole().elements() * tensors[i].element_bytes;
    if (bytes <= most) continue;
    most = bytes;
    largest = i;
  }
  return largest;
}

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

}  // namespace

uint64_t slices_for(uint64_t bytes, size_t hops, uint64_t bundle_bytes) {
  constexpr uint64_t kOverlap = 16;
  constexpr uint64_t kSmallest = 64;
  constexpr uint64_t kMax = 64;
  constexpr uint64_t kUsual = 8;
  if (bundle_bytes == 0) return kUsual;
  uint64_t slice = bundle_bytes;
  if (hops > 1) {
    slice = std::clamp(bytes / kOverlap, std::max<uint64_t>(slice / kSmallest, 1), slice);
  }
  return std::clamp<uint64_t>((bytes + slice - 1) / slice, 1, kMax);
}

std::string_view name_of(Strategy strategy) { return kNames[static_cast<size_t>(strategy)]; }

std::optional<Strategy> strategy_named(std::string_view name) {
  for (int32_t i = 0; i < kStrategies; ++i) {
    if (kNames[static_cast<size_t>(i)] == name) return static_cast<Strategy>(i);
  }
  return std::nullopt;
}

Result<Choice> make_plan(const Tensor& tensor, const Wishes& wishes, SendLoads& loads,
                         std::optional<int> rank) {
  if (tensor.source->shape != tensor.destination->shape) {
    return invalid("source and destination are layouts of tensors with different shapes");
  }
  const bool is_empty = tensor.source->whole().is_empty();
  const uint64_t bytes = tensor.source->whole().elements() * tensor.element_bytes;
  const auto slices = [&](size_t hops) { return slices_for(bytes, hops, wishes.bundle_bytes); };
  if (wishes.strategy == Strategy::kAuto && wishes.links != nullptr && !is_empty) {
    return plan_auto(*tensor.source, *tensor.destination, tensor.element_bytes, *wishes.links,
                     slices(3), rank);
  }
  const Strategy strategy =
      wishes.strategy == Strategy::kAuto ? without_links(tensor) : wishes.strategy;
  Result<MovePlan> plan = is_empty ? plan_of_nothing(tensor, wishes.strategy)
                                   : plan_as(strategy, tensor, wishes, loads, rank);
  if (!plan.ok()) return plan.status();
  Choice choice;
  choice.plan = std::move(plan).value();
  if (wishes.links != nullptr && !rank) {
    choice.forecast =
        forecast(choice.plan, tensor.element_bytes, *wishes.links, slices(choice.plan.hops.size()));
  }
  return choice;
}

Result<std::vector<Choice>> make_plans(const std::vector<Tensor>& tensors, const Wishes& wishes,
                                       std::optional<int> rank) {
  std::vector<Choice> choices;
  choices.reserve(tensors.size());
  SendLoads loads;
  Wishes own = wishes;
  if (tensors.size() > 1 && wishes.strategy == Strategy::kAuto && wishes.links != nullptr) {
    const size_t largest = largest_of(tensors);
    Result<Choice> choice = make_plan(tensors[largest], wishes, loads, rank);
    if (!choice.ok()) return choice.status().annotate(fmt::format("tensor {}", largest));
    own.strategy = strategy_named(choice->plan.strategy).value_or(Strategy::kDirect);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    Result<Choice> choice = make_plan(tensors[i], own, loads, rank);
    if (!choice.ok() && own.strategy != wishes.strategy) {
      choice = make_plan(tensors[i], wishes, loads, rank);
    }
    if (!choice.ok()) {
      return tensors.size() == 1 ? choice.status()
                                 : choice.status().annotate(fmt::format("tensor {}", i));
    }
    choices.push_back(std::move(choice).value());
  }
  return choices;
}

}  // namespace hetcomm::reshard
