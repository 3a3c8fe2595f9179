// Makes routes over the links of a model for all transfers of a pipeline plan: the items of
// boundaries, the gradients of items that several ranks hold, and the weights that are gathered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan.h"
#include "pipeline/simulate/events.h"
#include "reshard/links.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// The size of a whole item of the model. The ranks of a stage may divide it among them.
struct ItemBytes {
  uint64_t gradient = 0;
  uint64_t weight = 0;
};
// The maximum size of all items together.
inline constexpr uint64_t kMaxItemBytes = uint64_t{1} << 56;

struct PlanRoutes {
  // The routes of one pipeline, as in EventPipeline (events.h).
  struct OfPipeline {
    std::vector<Route> forward;
    std::vector<Route> backward;
    std::vector<Route> gathers;
  };
  std::vector<OfPipeline> pipelines;
  // One for each range of items that have gradients and the same holders, if these are several
  // ranks.
  std::vector<ReductionGroup> reductions;
  std::vector<std::string> resources;
};

// Returns the routes of |plan|. |views| is the result of check_plan(). |items| has the size of each
// item. The total may be at most kMaxItemBytes.
//
// The data of a boundary moves as the plan of the boundary's strategy says. Gradients are added in
// a ring: each rank sends 2 (n - 1) / n of its part to the next rank, and the ranks of a cluster
// are consecutive. Weights are gathered in a ring of the ranks that hold the same part of a stage,
// (n - 1) / n each. Where tensor degrees differ, gradients are cut as finely as the finest of them.
// Boundaries between stages that are not consecutive take no time. Fails as reshard plans do. The
// error text names the boundary. Fails with kOutOfResources if there are too many sums.
Result<PlanRoutes> routes_of(const PipelinePlan& plan, const std::vector<PipelineView>& views,
                             const reshard::Links& links, const std::vector<ItemBytes>& items);

}  // namespace hetcomm::pipeline
