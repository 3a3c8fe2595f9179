// Measures a run by the traces of its ranks (hetcomm_pipeline_trace).
//
// Each trace counts from the beginning of the run on its rank, so clocks differ by as much as ranks
// began apart. A transfer that a step waited for took from the end of the step that made it to the
// start of the one that waited. That is off by the difference of two clocks, but in the opposite
// direction by as much less: half of the sum is the transfer, half of the difference is that of the
// clocks. Both directions of a boundary are taken for alike.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/forecast.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"
#include "src/present/json_fields.h"

namespace hetcomm::pipeline {

struct TracedStep {
  Action action;
  Span span;
  bool waited_for_data = false;
};

struct RankTrace {
  uint64_t training_step = 0;
  uint32_t pipeline = 0;
  uint32_t rank = 0;   // of the communicator
  uint32_t group = 0;  // the rank of the schedule
  uint64_t total_ns = 0;
  std::vector<TracedStep> steps;
};

// Reads a trace in JSON. Reports wrong entries by |fields|, also that it is of an evaluation.
RankTrace read_trace(present::Fields fields);

// Returns the schedule that the traces show. Fails with kInvalidArgument if they are of different
// pipelines or steps of the training, if a rank of the schedule has none, or if they make no
// schedule.
Result<Schedule> schedule_of(const std::vector<RankTrace>& traces);

struct MeasuredRun {
  uint64_t total_ns = 0;          // the longest of any rank
  std::vector<StageTime> stages;  // medians; of several ranks of a stage the longest
  std::vector<bool> is_split;     // by stage: measured in parts, not in whole backward steps
  // The part of the shorter step of a pair that was hidden, where a callback performed pairs.
  std::optional<uint32_t> overlap_ppm;
  // By the stage before the boundary: from the end of a step until its data has arrived. None if
  // no step waited for it in one of the directions: then the schedule hides it.
  std::vector<std::optional<uint64_t>> transfer_ns;
  // By rank and action; of several ranks of a stage the longest. 0 for steps that are no
  // computation.
  StepLengths lengths;
  // By rank and action, on one clock, for the first trace of each rank. Steps that are no
  // computation have none.
  std::vector<std::vector<Span>> spans;
};

// Compares |traces| with |schedule|, which is sound, and measures. Fails with kInvalidArgument if
// they are of different pipelines or steps of the training, and if a rank of the schedule has none
// or performed other steps.
Result<MeasuredRun> measure(const Schedule& schedule, const std::vector<RankTrace>& traces);

}  // namespace hetcomm::pipeline
