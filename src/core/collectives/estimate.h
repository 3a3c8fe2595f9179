// Chooses the algorithm: estimates how long each one takes from the latency and rate of links.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"

namespace hetcomm::collectives {

// Up to this length, the number of rounds usually matters more than the number of bytes.
inline constexpr uint64_t kShortBytes = 16u << 10;
// Length of a segment: large enough for a link, and small enough that several segments overlap and
// their scratch memory stays small.
inline constexpr uint64_t kSegmentBytes = 1u << 20;

// Returns the algorithm for |problem|: the requested one if any, else the fastest by estimate.
Algorithm choose(const Problem& problem);
// Estimates roughly how long |algorithm| takes. Suitable only to compare algorithms for one
// problem.
uint64_t estimate_ns(const Problem& problem, Algorithm algorithm);

}  // namespace hetcomm::collectives
