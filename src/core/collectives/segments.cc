#include "src/core/collectives/segments.h"

#include <algorithm>
#include <vector>

#include "src/core/collectives/estimate.h"
#include "src/core/collectives/moving_steps.h"
#include "src/core/collectives/rounding_steps.h"
#include "src/core/collectives/segment_buffers.h"
#include "src/core/collectives/step_builder.h"
#include "src/core/collectives/summing_steps.h"

namespace hetcomm::collectives {
namespace {

bool has_result(const Problem& problem) {
  if (!reduces(problem.kind) || problem.rounds) return false;
  if (problem.kind == Kind::kReduce) return problem.rank == problem.root;
  return problem.kind != Kind::kScan || !problem.exclusive || problem.rank != 0;
}

// Adds the steps of an operation with a single rank, whose result depends only on its own input.
void copy_own(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  if (problem.kind == Kind::kBroadcast || (problem.kind == Kind::kScan && problem.exclusive)) {
    return;
  }
  if (problem.rounds) {
    steps.reduce(buffers.received(0), std::vector{buffers.sent(0)});
  } else {
    steps.copy(buffers.received(0), buffers.sent(0));
  }
}

void build(const SegmentBuffers& buffers, StepBuilder& steps) {
  const bool rounds = buffers.problem().rounds;
  switch (buffers.problem().kind) {
    case Kind::kBarrier:
      return add_barrier(buffers, steps);
    case Kind::kBroadcast:
      return add_broadcast(buffers, steps);
    case Kind::kReduce:
      return rounds ? add_rounding_reduce(buffers, steps) : add_reduce(buffers, steps);
    case Kind::kAllreduce:
      return rounds ? add_rounding_allreduce(buffers, steps) : add_allreduce(buffers, steps);
    case Kind::kAllgather:
    case Kind::kAllgatherv:
      return add_allgather(buffers, steps);
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
      return rounds ? add_rounding_reduce_scatter(buffers, steps)
                    : add_reduce_scatter(buffers, steps);
    case Kind::kAlltoall:
    case Kind::kAlltoallv:
      return add_alltoall(buffers, steps);
    case Kind::kGather:
    case Kind::kGatherv:
      return add_gather(buffers, steps);
    case Kind::kScatter:
    case Kind::kScatterv:
      return add_scatter(buffers, steps);
    case Kind::kScan:
      return rounds ? add_rounding_scan(buffers, steps) : add_scan(buffers, steps);
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

void make_steps(const Problem& problem, uint64_t segment, Steps* steps) {
  Problem chosen = problem;
  chosen.algorithm = choose(problem);
  const SegmentBuffers buffers(chosen, segment);
  StepBuilder builder(chosen, *steps);
  if (has_result(chosen)) builder.set_result(buffers.received(0));
  if (chosen.ranks == 1 && chosen.kind != Kind::kBarrier) {
    copy_own(buffers, builder);
  } else {
    build(buffers, builder);
  }
}

}  // namespace hetcomm::collectives
