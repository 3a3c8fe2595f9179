// A plan as JSON, for users' programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/auto.h"
#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// Returns a plan as
// {"version": 1, "strategy", "shape", "element_bytes",
//  "stages": [{"messages", "bytes",
//              "moves": [{"from", "to", "box": [[begin, end], ...], "adds"}]}]}
// with ranks as "from" and "to". A move from a rank to itself is a copy in its memory.
std::string to_json(const MovePlan& plan, uint64_t element_bytes);

// Returns the plan as above with costs: "forecast_ns", "ns" and "slowest" (a resource's name) of
// each hop, "resources": [{"name", "bytes"}] without unused ones, and "considered": [{"strategy",
// "forecast_ns", "refused"}].
std::string to_json(const Choice& choice, uint64_t element_bytes, const Links& links);

}  // namespace hetcomm::reshard
