// The works that a command line asks for.
#pragma once

#include <vector>

#include "bench/options.h"
#include "bench/work.h"

namespace bench {

// Rounds of a comparison, or of settings in turn, unless the command line says otherwise.
inline constexpr int kRounds = 15;

// Returns the works that |options| request. Works that are measured in turn are repeated
// accordingly. |elsewhere|: the ranks are on other hosts or have another launcher, so hetcomm
// chooses the transport unless it was given.
std::vector<Work> make_works(const Options& options, bool elsewhere);

}  // namespace bench
