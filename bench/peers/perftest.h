// The part of the perftest peer that can be tested without a network adapter.
#pragma once

#include <string>
#include <string_view>

#include "bench/loops/workload.h"

namespace bench {

// Parses a line of a perftest tool's table for |workload|'s only point. Returns false for other
// lines.
bool parse_perftest(const Workload& workload, std::string_view line, Measurement* out_measurement);

// Returns the tool for |test|, with its options, or "" if there is none.
std::string perftest_tool(const std::string& test);

}  // namespace bench
