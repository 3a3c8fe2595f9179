// Layouts after ranks were lost: those that are left may have other numbers, and what the lost ones
// held is taken over by copies, where there are some.
#pragma once

#include <vector>

#include "reshard/layout.h"
#include "src/base/status.h"

namespace hetcomm::reshard {

// |layout| has passed check(). rank_now[r] is the number that rank r has from now on; -1: it is
// lost. The result passes check(), and every rank that is left holds in it what it held, in the
// same places of its memory. PEER_LOST names the first box that only lost ranks held, and one of
// them. INVALID_ARGUMENT: a rank of the layout has no number in |rank_now|, or two have the same.
Result<Layout> layout_of_survivors(const Layout& layout, const std::vector<int>& rank_now);

}  // namespace hetcomm::reshard
