// Chooses the algorithm of an operation. The duration of each algorithm is estimated from the
// latency and rate of the links.
#pragma once

#include <cstdint>

#include "src/core/collectives/problem.h"

namespace hetcomm::collectives {

// Up to this length, the number of rounds usually matters more than the number of bytes.
inline constexpr uint64_t kShortBytes = 16u << 10;
// The length of a segment. It is long enough to use a link well, and short enough that several
// segments overlap and their scratch memory stays small.
inline constexpr uint64_t kSegmentBytes = 1u << 20;

// Returns the algorithm for |problem|: the requested one if there is one, and otherwise the one
// with the shortest estimate among those that suit |problem|. An alltoallv always uses the linear
// one unless another is requested.
Algorithm choose(const Problem& problem);
// Roughly estimates the duration of |algorithm|. The result is suitable only for comparing
// algorithms for the same problem.
uint64_t estimate_ns(const Problem& problem, Algorithm algorithm);

}  // namespace hetcomm::collectives
