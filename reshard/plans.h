// Makes the plans for a list of tensors.
#pragma once

#include <optional>
#include <vector>

#include "reshard/auto.h"
#include "reshard/by_strategy.h"

namespace hetcomm::reshard {

// Makes a plan for each of |tensors|. Without links, |kAuto| stands for batched send-receive, or
// direct for sums. With links, |kAuto| is resolved for the whole list (list_auto.h). For a short
// list, the candidates are compared by forecasts of the complete plans. The loads of batched
// send-receive accumulate over the list. A choice has a forecast if links are given and |rank| is
// not. If there are several tensors, an error names the tensor.
Result<std::vector<Choice>> make_plans(const std::vector<Tensor>& tensors, const Wishes& wishes,
                                       std::optional<int> rank = std::nullopt);

// Forecasts the whole list, whose transfers share the links. |choices| come from make_plans() for
// all ranks, and |wishes.links| is not null.
Forecast forecast_of_list(const std::vector<Tensor>& tensors, const std::vector<Choice>& choices,
                          const Wishes& wishes);

}  // namespace hetcomm::reshard
