// Makes the layout that remains after ranks were lost. Surviving ranks may have new numbers. Data
// of a lost rank is replaced by another copy, if there is one.
#pragma once

#include <vector>

#include "reshard/layout.h"
#include "src/base/status.h"

namespace hetcomm::reshard {

// Returns |layout|, which has passed check(), without the lost ranks. rank_now[r] is the new number
// of rank r, or -1 if r is lost. The result passes check(), and every surviving rank holds the same
// elements at the same addresses of its memory. If only lost ranks held some box, fails with
// PEER_LOST, and names the first such box and one of these ranks. Fails with INVALID_ARGUMENT if a
// rank of the layout has no entry in |rank_now|, or if two ranks have the same number.
Result<Layout> layout_of_survivors(const Layout& layout, const std::vector<int>& rank_now);

}  // namespace hetcomm::reshard
