// Choice of the algorithm: how long each one takes, by the latency and the rate of links.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"

namespace hetcomm::collectives {

// Up to this length the number of rounds counts, and not the bytes, where nothing else decides.
inline constexpr uint64_t kShortBytes = 16u << 10;
// Length of a segment: large enough for a link, small enough that several of them overlap and that
// their scratch memory stays small.
inline constexpr uint64_t kSegmentBytes = 1u << 20;

// The algorithm for |problem|: its own if it has one, else the one that is estimated to take least.
Algorithm choose(const Problem& problem);
// How long |algorithm| takes, roughly; only good for comparing algorithms of one problem.
uint64_t estimate_ns(const Problem& problem, Algorithm algorithm);

}  // namespace hetcomm::collectives
