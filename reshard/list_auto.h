// Chooses the strategies for a list of tensors, whose transfers share the links.
#pragma once

#include <vector>

#include "reshard/auto.h"
#include "reshard/by_strategy.h"

namespace hetcomm::reshard {

struct ListChoice {
  // The assignments of strategies that were compared. Each list has one strategy for each tensor.
  // The first list is the chosen one, and earlier lists win ties. kAuto means that no choice was
  // made for the tensor.
  std::vector<std::vector<Strategy>> lists;
  // Each candidate strategy with a forecast of the whole list. Tensors for which the strategy is
  // refused are counted with the strategy that replaces it.
  std::vector<Considered> considered;
};

// Chooses by the forecast of the whole list, in which the loads of all tensors add up on every
// resource of the links. Compares the lists in which all tensors use one strategy with a list in
// which each kind of tensors has its own strategy. The latter is built kind by kind, the kinds with
// the most bytes first. Tensors are of one kind if the same ranks hold the same fractions of them,
// regardless of size. The largest tensor represents its kind. Only the kinds with the most bytes
// are compared. The others use the strategy that is best for the compared ones. If a strategy does
// not cover a kind, or would send a second copy of it to a cluster, the kind uses the choice of
// plan_auto() instead. Forecasts are estimates, since one tensor represents its kind, and copies
// are chosen as if every kind used the same strategy. |wishes.links| is not null. No choice is made
// for tensors that are empty or whose shapes differ. Fails as plan_auto() does. The error text
// names the tensor.
Result<ListChoice> choose_for_list(const std::vector<Tensor>& tensors, const Wishes& wishes);

}  // namespace hetcomm::reshard
