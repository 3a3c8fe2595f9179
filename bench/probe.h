// Measures the distance between the first two usable cores: the time that a cache line takes to
// move from one to the other. Virtual machines migrate between real cores while they run, which
// changes the latency of every library. Figures from different placements cannot be compared.
#pragma once

#include <string>

namespace bench {

// Returns the one-way time in microseconds, or kUnknown if there is only one usable core or the
// measurement fails. Takes about 10 ms, at most 100 ms.
double probe_hand_over_us();

// Returns "near" (below 0.12 us), "far" (below 0.37 us), "remote", or "unknown".
const char* placement_of(double hand_over_us);

// Returns the placement for a measurement between two probes, or "mixed" if they differ.
const char* placement_between(double before_us, double after_us);

}  // namespace bench
