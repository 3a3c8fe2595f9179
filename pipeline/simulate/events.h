// Simulates pipelines by discrete events. It serves what longest paths (longest_path.h) cannot
// express: several pipelines at once, links and NICs that transfers share, staging through host
// memory, and reductions and gathers that use the same links.
//
// A resource serves one transfer at a time, in the order in which they become ready. Each direction
// of a link that works in both at once is a resource of its own.
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
  // By the stage before the boundary, or none. Transfers within a rank take no time.
  std::vector<Route> forward;
  std::vector<Route> backward;
  std::vector<Route> gathers;       // by stage, or none; UNSHARD starts them, steps wait for them
  std::vector<uint32_t> in_flight;  // as SimulateOptions::in_flight (longest_path.h)
  // True for boundaries over which nothing comes back. Backward steps do not wait for those of the
  // next stage there. By the stage before the boundary; empty: none. For schedules of level 1.
  std::vector<bool> one_way;
};

// A reduction of the gradients of items that all its members hold. It starts when all members have
// come to REDUCE_GRAD. No step waits for it.
struct ReductionGroup {
  struct Member {
    uint32_t pipeline = 0;
    uint32_t stage = 0;
    auto operator<=>(const Member&) const = default;
  };
  std::vector<Member> members;  // all different; a stage may be in several groups
  Route route;
};

struct EventInput {
  std::vector<EventPipeline> pipelines;
  std::vector<ReductionGroup> reductions;
  uint32_t resources = 0;    // the number of resources; routes name them from 0
  uint32_t overlap_ppm = 0;  // as PipelineTimes::overlap_ppm (times.h)
};

struct EventForecast {
  uint64_t total_ns = 0;  // until the last step and the last reduction has ended
  std::vector<Forecast> pipelines;
  std::vector<Span> reductions;
  std::vector<uint64_t> resource_busy_ns;
};

// Fails with kInvalidArgument if the input is inconsistent, or a pipeline cannot go on.
Result<EventForecast> simulate_events(const EventInput& input, bool keeps_spans = false);

}  // namespace hetcomm::pipeline
