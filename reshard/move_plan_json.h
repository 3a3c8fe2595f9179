// Reads and writes move plans as JSON, for user programs and for pictures.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/auto.h"
#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// Returns a plan as
// {"format": "hetcomm move plan", "version": 1, "strategy", "shape", "element_bytes",
//  "stages": [{"messages", "bytes",
//              "moves": [{"from", "to", "box": [[begin, end], ...], "adds"}]}],
//  "layouts": [[{"rank", "box"}]]}
// with ranks as "from" and "to". A move from a rank to itself is a copy in its memory. The layouts
// are the source, those between the hops, and the destination.
std::string to_json(const MovePlan& plan, uint64_t element_bytes);

// Returns the plan of |choice|, which has a forecast, in the same form with costs added:
// "forecast_ns", "ns" and "slowest" (a resource's name) of each hop, "resources": [{"name",
// "bytes"}] without unused ones, and "considered": [{"strategy", "forecast_ns", "refused"}]. If the
// tensor belongs to a list, |considered| has the forecasts of the whole list with each strategy.
std::string to_json(const Choice& choice, uint64_t element_bytes, const Links& links);

// A plan that was read from JSON. It has ranks, boxes and moves, but no positions in memory. It can
// be drawn and counted, but not executed.
struct PlanOutline {
  MovePlan plan;
  uint64_t element_bytes = 0;
};

// Parses a document that to_json() has written, or a list of them. Ignores costs. Fails with
// INVALID_ARGUMENT for a malformed document. The error text names the line of a syntax error, or
// the path of a wrong entry. Fails with UNSUPPORTED if the version of a document is not supported.
Result<std::vector<PlanOutline>> parse_move_plans(std::string_view json);

}  // namespace hetcomm::reshard
