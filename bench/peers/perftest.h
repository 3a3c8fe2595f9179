// This part of the perftest peer can be tested without a network adapter.
#pragma once

#include <string>
#include <string_view>

#include "bench/loops/workload.h"

namespace bench {

// A line of a perftest tool's table, of |workload|'s only point. False for all other lines.
bool parse_perftest(const Workload& workload, std::string_view line, Measurement* out_measurement);

// The tool that does what |test| does, with its own options; "" when there is none.
std::string perftest_tool(const std::string& test);

}  // namespace bench
