// The ways of the transfers in a question. They say more than one time per boundary: which links
// and NICs transfers share, staging through host memory, and gathers and reductions over the same
// links.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/events.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct QuestionRoute {
  enum class Use : uint8_t { kForward, kBackward, kBothWays, kGather, kReduce };
  // One step of the way. A resource that a route names with kBothWays has two directions, each with
  // its own turns. Gathers and reductions occupy both.
  struct Hop {
    uint64_t busy_ns = 0;
    uint64_t latency_ns = 0;
    std::vector<std::string> resources;
  };
  Use use = Use::kBothWays;
  // The stage before the boundary; the one that gathers its weights; or those whose gradients are
  // reduced together.
  std::vector<uint32_t> stages;
  std::vector<Hop> hops;
  uint32_t slices = 1;
};

// A question for the simulator by events.
struct RoutedInput {
  EventInput input;                    // of one pipeline
  std::vector<std::string> resources;  // names of the resources, by number
};

// Returns what H-1F1B has to hide at each of the boundaries of |stages| stages, the slower
// direction: how long a micro-batch occupies its busiest resource, with all other transfers of a
// micro-batch over it, and the rest of the way. Boundaries without a route keep what |known| has;
// it may be empty.
std::vector<BoundaryTime> boundary_times(const std::vector<QuestionRoute>& routes,
                                         std::vector<BoundaryTime> known, uint32_t stages);

// Gives each transfer of |schedule| its way. A boundary without a route takes what |times| say,
// over a link of its own. Fails with kInvalidArgument if a route is for a stage or a boundary that
// does not exist, or two are for one.
Result<RoutedInput> routed_input(const Schedule& schedule, const PipelineTimes& times,
                                 const std::vector<QuestionRoute>& routes);

}  // namespace hetcomm::pipeline
