// Chooses the strategies for a list of tensors, whose transfers share the links.
#pragma once

#include <vector>

#include "reshard/auto.h"
#include "reshard/by_strategy.h"

namespace hetcomm::reshard {

struct ListChoice {
  std::vector<Strategy> strategies;    // by tensor; kAuto: plan_auto() decides
  std::vector<Considered> considered;  // with the forecasts of the whole list
};

// Chooses by the forecast of the whole list, in which the loads of all tensors add up on every
// resource of the links. Compares the lists in which all tensors use one strategy, and a list in
// which each kind of tensors has its own, the kinds with the most bytes first. Tensors are of one
// kind if their layouts and elements are alike. Only the kinds with the most bytes are considered;
// the others use the best strategy for all. A kind that a strategy does not cover, or of which it
// would send a second copy to a cluster, is left to plan_auto().
// |wishes| has links, and no tensor is empty. Fails as plan_auto() does. The text names the tensor.
Result<ListChoice> choose_for_list(const std::vector<Tensor>& tensors, const Wishes& wishes);

}  // namespace hetcomm::reshard
