// Chooses the strategies for a list of tensors, whose transfers share the links.
#pragma once

#include <vector>

#include "reshard/auto.h"
#include "reshard/by_strategy.h"

namespace hetcomm::reshard {

struct ListChoice {
  // The lists that were compared, by tensor. The first one is chosen, and the order decides ties.
  // kAuto only where nothing was chosen.
  std::vector<std::vector<Strategy>> lists;
  // With the forecasts of the whole list. A strategy that is refused for some tensors counts with
  // the strategies that these tensors have instead.
  std::vector<Considered> considered;
};

// Chooses by the forecast of the whole list, in which the loads of all tensors add up on every
// resource of the links. Compares the lists in which all tensors use one strategy, and a list in
// which each kind of tensors has its own, the kinds with the most bytes first. Tensors are of one
// kind if the same ranks hold the same fractions of them, whatever their sizes; the largest tensor
// stands for its kind. Only the kinds with the most bytes are compared. The others use the best
// strategy for all. A kind that a strategy does not cover, or of which it would send a second copy
// to a cluster, uses what plan_auto() chooses for it. Forecasts are estimates, since one tensor
// stands for its kind, and copies are chosen as if no kind used another strategy.
// |wishes| has links. Nothing is chosen for tensors without elements, or with two shapes. Fails as
// plan_auto() does. The text names the tensor.
Result<ListChoice> choose_for_list(const std::vector<Tensor>& tensors, const Wishes& wishes);

}  // namespace hetcomm::reshard
