// The probe measures how near the first two usable cores lie to each other: the time in which a
// cache line goes from one to the other. Virtual machines are moved between real cores while they
// run, and the latency of every library follows; figures from different placements cannot be
// compared.
#pragma once

#include <string>

namespace bench {

// One way, in microseconds; kUnknown with a single core. Takes about 10 ms, at most 100.
double probe_hand_over_us();

// "near" (below 0.12 us), "far" (below 0.37 us), "remote", or "unknown".
const char* placement_of(double hand_over_us);

// The placement of something that was measured between two probes; "mixed" when they differ.
const char* placement_between(double before_us, double after_us);

}  // namespace bench
