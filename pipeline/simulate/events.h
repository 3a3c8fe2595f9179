// Simulates pipelines by discrete events. It supports features that longest paths (longest_path.h)
// cannot express: several pipelines at once, links and NICs that transfers share, staging through
// host memory, and reductions and gathers over the same links.
//
// A resource serves one transfer at a time, in the order in which transfers become ready. Each
// direction of a full-duplex link is a separate resource.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/forecast.h"
#include "pipeline/simulate/route.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct EventPipeline {
  Schedule schedule;  // sound (check.h), of any level
  std::vector<StageTime> stages;
  // Indexed by the stage before the boundary, or empty. Transfers within a rank take no time.
  std::vector<Route> forward;
  std::vector<Route> backward;
  std::vector<Route> gathers;       // indexed by stage, or empty; started by UNSHARD
  std::vector<uint32_t> in_flight;  // as SimulateOptions::in_flight (longest_path.h)
  // True for boundaries over which no gradient is sent back. Backward steps do not wait for those
  // of the next stage there. Indexed by the stage before the boundary, or empty if there are none.
  // For schedules of level 1.
  std::vector<bool> one_way;
};

// A reduction of the gradients of items that all its members hold. It starts when all members have
// reached REDUCE_GRAD. No step waits for it.
struct ReductionGroup {
  struct Member {
    uint32_t pipeline = 0;
    uint32_t stage = 0;
    auto operator<=>(const Member&) const = default;
  };
  std::vector<Member> members;  // all distinct; a stage may be in several groups
  Route route;
};

struct EventInput {
  std::vector<EventPipeline> pipelines;
  std::vector<ReductionGroup> reductions;
  uint32_t resources = 0;    // number of resources; routes refer to them by index
  uint32_t overlap_ppm = 0;  // as PipelineTimes::overlap_ppm (times.h)
};

struct EventForecast {
  uint64_t total_ns = 0;  // end of the last step and the last reduction
  std::vector<Forecast> pipelines;
  std::vector<Span> reductions;
  std::vector<uint64_t> resource_busy_ns;
};

// Fails with kInvalidArgument if the input is inconsistent, or a pipeline deadlocks.
Result<EventForecast> simulate_events(const EventInput& input, bool keeps_spans = false);

}  // namespace hetcomm::pipeline
