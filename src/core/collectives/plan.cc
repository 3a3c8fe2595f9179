#include "src/core/collectives/plan.h"

#include <algorithm>
#include <vector>

#include "src/core/collectives/estimate.h"
#include "src/core/collectives/plan_builder.h"
#include "src/core/collectives/plan_moves.h"
#include "src/core/collectives/plan_rounding.h"
#include "src/core/collectives/plan_sums.h"
#include "src/core/collectives/segment_buffers.h"

namespace hetcomm::collectives {
namespace {

bool has_result(const Problem& problem) {
  if (!reduces(problem.kind) || problem.rounds) return false;
  if (problem.kind == Kind::kReduce) return problem.rank == problem.root;
  return problem.kind != Kind::kScan || !problem.exclusive || problem.rank != 0;
}

// The only rank has its result already, but for where it lies.
void copy_own(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  if (problem.kind == Kind::kBroadcast || (problem.kind == Kind::kScan && problem.exclusive)) {
    return;
  }
  if (problem.rounds) {
    plan.reduce(buffers.received(0), std::vector{buffers.sent(0)});
  } else {
    plan.copy(buffers.received(0), buffers.sent(0));
  }
}

void build(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const bool rounds = buffers.problem().rounds;
  switch (buffers.problem().kind) {
    case Kind::kBarrier:
      return plan_barrier(buffers, plan);
    case Kind::kBroadcast:
      return plan_broadcast(buffers, plan);
    case Kind::kReduce:
      return rounds ? plan_rounding_reduce(buffers, plan) : plan_reduce(buffers, plan);
    case Kind::kAllreduce:
      return rounds ? plan_rounding_allreduce(buffers, plan) : plan_allreduce(buffers, plan);
    case Kind::kAllgather:
    case Kind::kAllgatherv:
      return plan_allgather(buffers, plan);
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
      return rounds ? plan_rounding_reduce_scatter(buffers, plan)
                    : plan_reduce_scatter(buffers, plan);
    case Kind::kAlltoall:
    case Kind::kAlltoallv:
      return plan_alltoall(buffers, plan);
    case Kind::kGather:
    case Kind::kGatherv:
      return plan_gather(buffers, plan);
    case Kind::kScatter:
    case Kind::kScatterv:
      return plan_scatter(buffers, plan);
    case Kind::kScan:
      return rounds ? plan_rounding_scan(buffers, plan) : plan_scan(buffers, plan);
  }
}

}  // namespace

uint64_t count_segments(const Problem& problem) {
  const uint64_t slice = bytes_per_segment(problem);
  if (slice == UINT64_MAX) return 1;
  const uint64_t length = longest_block(problem);
  return std::max<uint64_t>(1, (length + slice - 1) / slice);
}

uint64_t end_of_segment(const Problem& problem, uint64_t segment) {
  const uint64_t slice = bytes_per_segment(problem);
  const uint64_t longest = longest_block(problem);
  return slice == UINT64_MAX || (segment + 1) * slice >= longest ? UINT64_MAX
                                                                 : (segment + 1) * slice;
}

void make_plan(const Problem& problem, uint64_t segment, Plan* plan) {
  Problem chosen = problem;
  chosen.algorithm = choose(problem);
  const SegmentBuffers buffers(chosen, segment);
  PlanBuilder builder(chosen, *plan);
  if (has_result(chosen)) builder.set_result(buffers.received(0));
  if (chosen.ranks == 1 && chosen.kind != Kind::kBarrier) {
    copy_own(buffers, builder);
  } else {
    build(buffers, builder);
  }
}

}  // namespace hetcomm::collectives
