// Creates the works that a command line requests.
#pragma once

#include <vector>

#include "bench/options.h"
#include "bench/work.h"

namespace bench {

// Rounds of --compare and --interleave, unless the command line sets another number.
inline constexpr int kRounds = 15;

// Returns the works that |options| request. With --interleave each work occurs once per round. If
// the ranks run |elsewhere|, on other hosts or under another launcher, hetcomm chooses the
// transport unless it was given.
std::vector<Work> make_works(const Options& options, bool elsewhere);

}  // namespace bench
