// Measures a run by the traces of its ranks (hetcomm_pipeline_trace).
//
// Each trace counts from the beginning of the run on its rank, so two clocks differ by the time
// between these beginnings. If a step waited for a transfer, the transfer lasted from the end of
// the step that made the data to the start of the step that waited. That measure is too long by the
// difference of the two clocks. In the opposite direction it is too short by as much. Both
// directions of a boundary are assumed to take equally long. So the transfer takes half of the sum
// of both measures, and the clocks differ by half of their difference.
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

// Reads a trace in JSON. Reports wrong entries, and a trace of an evaluation, by |fields|.
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
  // By the stage before the boundary: from the end of a step until its data has arrived. None: no
  // step waited for it in one of the directions, so the schedule hides it.
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
