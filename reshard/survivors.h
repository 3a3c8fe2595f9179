// Layouts after ranks were lost. Surviving ranks may have other numbers, and copies take over the
// data of lost ranks, if there are any.
#pragma once

#include <vector>

#include "reshard/layout.h"
#include "src/base/status.h"

namespace hetcomm::reshard {

// |layout| has passed check(). rank_now[r] is the new number of rank r; -1: it is lost. The result
// passes check(), and every surviving rank holds in it what it held, in the same places of its
// memory. PEER_LOST names the first box that only lost ranks held, and one of them.
// INVALID_ARGUMENT: a rank of the layout has no number in |rank_now|, or two have the same.
Result<Layout> layout_of_survivors(const Layout& layout, const std::vector<int>& rank_now);

}  // namespace hetcomm::reshard
