#include "pipeline/arrange/problem.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"

namespace hetcomm::pipeline {

Status check_problem(const ArrangeProblem& problem) {
  const size_t stages = problem.stages();
  const auto fits = [](size_t given, size_t wanted) { return given == 0 || given == wanted; };
  if (stages == 0 || problem.micro_batches == 0) {
    return invalid("there is nothing to arrange without a stage and a micro-batch");
  }
  if (stages > kMaxStages || problem.micro_batches > kMaxMicroBatches ||
      stages * problem.micro_batches > kMaxSteps) {
    return invalid(
        fmt::format("{} stages and {} micro-batches are too many", stages, problem.micro_batches));
  }
  if (problem.times.stages.size() != stages || !fits(problem.times.forward.size(), stages - 1) ||
      !fits(problem.times.backward.size(), stages - 1) || !fits(problem.memory.size(), stages) ||
      !fits(problem.recomputes.size(), stages) || !fits(problem.in_flight.size(), stages - 1)) {
    return invalid(fmt::format(
        "times, memory or items in flight are for another number of stages than {}", stages));
  }
  HETCOMM_RETURN_IF_ERROR(check_length(problem.times, problem.micro_batches));
  // With the lowest possible limit, a rank runs all steps of one micro-batch before the next one.
  std::vector<int64_t> held(problem.ranks());
  for (uint32_t stage = 0; stage < stages; ++stage) {
    const uint32_t rank = problem.rank_of[stage];
    if (rank >= problem.ranks()) {
      return invalid(fmt::format("stage {} is on rank {}, and {} ranks have limits", stage, rank,
                                 problem.ranks()));
    }
    const StepMemory memory = problem.memory_of(stage);
    const int64_t recompute = problem.has_recompute(stage) ? memory.recompute : 0;
    if (!memory.is_in_range()) return invalid("the memory of a step is above 2^38");
    if (memory.forward < 0 || recompute < 0 || memory.input_grad > 0 || memory.weight_grad > 0 ||
        memory.forward + recompute + memory.input_grad + memory.weight_grad != 0) {
      return invalid(fmt::format(
          "the backward steps of stage {} do not free what the others add, or free more", stage));
    }
    // Each stage of the rank holds an activation before the first of them is freed.
    held[rank] += memory.forward;
    const int64_t least = held[rank] + recompute;
    if (least > problem.limits[rank]) {
      return Status(Code::kOutOfRange,
                    fmt::format("rank {} needs {} for one micro-batch, and {} is its limit", rank,
                                least, problem.limits[rank]));
    }
  }
  return {};
}

}  // namespace hetcomm::pipeline
