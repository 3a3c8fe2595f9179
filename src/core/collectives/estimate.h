// Choice of the algorithm: estimates how long each one takes from the latency and rate of links.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"

namespace hetcomm::collectives {

// Up to this length the number of rounds decides, not the bytes, unless something else does.
inline constexpr uint64_t kShortBytes = 16u << 10;
// Length of a segment: large enough for a link, and small enough that several segments overlap and
// their scratch memory stays small.
inline constexpr uint64_t kSegmentBytes = 1u << 20;

// The algorithm for |problem|: its own if it has one, else the quickest by estimate.
Algorithm choose(const Problem& problem);
// Rough estimate of how long |algorithm| takes; only good for comparing algorithms of one problem.
uint64_t estimate_ns(const Problem& problem, Algorithm algorithm);

}  // namespace hetcomm::collectives
