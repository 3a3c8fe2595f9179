// The route of a transfer in a question. Routes are more detailed than one time per boundary. They
// describe links and NICs that transfers share, staging through host memory, and gathers and
// reductions over the same links.
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
  // One step of the route. A resource in a route with kBothWays has two directions, which are
  // occupied separately. Gathers and reductions occupy both.
  struct Hop {
    uint64_t busy_ns = 0;
    uint64_t latency_ns = 0;
    std::vector<std::string> resources;
  };
  Use use = Use::kBothWays;
  // For a boundary: the stage before it. For a gather: the stage whose weights are gathered. For a
  // reduction: the stages whose gradients are reduced together.
  std::vector<uint32_t> stages;
  std::vector<Hop> hops;
  uint32_t slices = 1;
};

// The input of the event simulator.
struct RoutedInput {
  EventInput input;                    // has a single pipeline
  std::vector<std::string> resources;  // names of the resources, indexed by number
};

// Returns the time that H-1F1B has to hide at each boundary between |stages| stages, in the slower
// direction. It consists of the time for which a micro-batch occupies its busiest resource,
// including all other transfers of a micro-batch over that resource, and of the rest of the route.
// Boundaries without a route keep their entry in |known|, which may be empty.
std::vector<BoundaryTime> boundary_times(const std::vector<QuestionRoute>& routes,
                                         std::vector<BoundaryTime> known, uint32_t stages);

// Assigns a route to each transfer of |schedule|. A boundary without a route has a link of its own,
// with the time in |times|. Fails with kInvalidArgument if a route is for a stage or a boundary
// that does not exist, if two routes are for the same one, or if a stage lacks the action that
// starts its gather or reduction.
Result<RoutedInput> routed_input(const Schedule& schedule, const PipelineTimes& times,
                                 const std::vector<QuestionRoute>& routes);

}  // namespace hetcomm::pipeline
