// Makes routes over the links of a model for all that a pipeline plan moves: the items of
// boundaries, the gradients of items that several ranks hold, and weights that are gathered.
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

// The size of a whole item of the model. The ranks of a stage may share it.
struct ItemBytes {
  uint64_t gradient = 0;
  uint64_t weight = 0;
};
// The most bytes of all items together.
inline constexpr uint64_t kMaxItemBytes = uint64_t{1} << 56;

struct PlanRoutes {
  // The routes of one pipeline, as in EventPipeline (events.h).
  struct OfPipeline {
    std::vector<Route> forward;
    std::vector<Route> backward;
    std::vector<Route> gathers;
  };
  std::vector<OfPipeline> pipelines;
  // One for each range of items with the same holders, if these are several ranks and the items
  // have gradients.
  std::vector<ReductionGroup> reductions;
  std::vector<std::string> resources;
};

// Returns the routes of |plan|. |views|: check_plan(). |items| has the size of each item, together
// at most kMaxItemBytes.
//
// A boundary moves as the plan of its strategy does. Ranks add up gradients in a ring: each rank
// passes 2 (n - 1) / n of what it holds to the next one, and those of a cluster follow each other.
// They gather weights in a ring of the ranks that hold the same part of a stage, (n - 1) / n each.
// Where tensor degrees differ, gradients are cut as finely as the finest. Boundaries between stages
// that are no neighbours take no time. Fails as plans of resharding do; the text names the
// boundary. Fails with kOutOfResources if there are too many sums.
Result<PlanRoutes> routes_of(const PipelinePlan& plan, const std::vector<PipelineView>& views,
                             const reshard::Links& links, const std::vector<ItemBytes>& items);

}  // namespace hetcomm::pipeline
