// Measures a run from the traces of its ranks (hetcomm_pipeline_trace).
//
// The times of a trace are relative to the beginning of the run on its rank, so the clocks of two
// ranks differ by the time between these beginnings. If a step waited for a transfer, the transfer
// lasted from the end of the step that produced the data to the start of the step that waited. The
// measured time is too long by the difference of the two clocks, and in the opposite direction it
// is too short by the same amount. Both directions of a boundary are assumed to take equally long.
// The transfer time is then half of the sum of the two measured times, and the clocks differ by
// half of their difference.
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
  uint32_t rank = 0;   // rank in the communicator
  uint32_t group = 0;  // rank in the schedule
  uint64_t total_ns = 0;
  std::vector<TracedStep> steps;
};

// Reads a trace in JSON. Reports wrong entries, and a trace of an evaluation, through |fields|.
RankTrace read_trace(present::Fields fields);

// Returns the schedule that the traces record. Fails with kInvalidArgument if they belong to
// different pipelines or training steps, if a rank of the schedule has none, or if they do not form
// a schedule.
Result<Schedule> schedule_of(const std::vector<RankTrace>& traces);

struct MeasuredRun {
  uint64_t total_ns = 0;          // maximum over all ranks
  std::vector<StageTime> stages;  // medians; the maximum over the ranks of a stage
  std::vector<bool> is_split;     // indexed by stage: true if measured in two parts
  // The fraction of the shorter step of a pair that was hidden, in millionths, if a callback ran
  // pairs.
  std::optional<uint32_t> overlap_ppm;
  // Indexed by the stage before the boundary: the time from the end of a step until its data has
  // arrived. Absent if both stages are on one rank, or if no step waited for data in one of the
  // directions, because the schedule hid the transfer.
  std::vector<std::optional<uint64_t>> transfer_ns;
  // Indexed by rank and action, the maximum over the ranks of a stage. 0 for actions that are not
  // computations.
  StepLengths lengths;
  // Indexed by rank and action, on a common clock, from the first trace of each rank. Empty spans
  // for actions that are not computations.
  std::vector<std::vector<Span>> spans;
};

// Measures the run from |traces|. |schedule| must be sound. Fails with kInvalidArgument if the
// traces belong to different pipelines or training steps, or if a rank of the schedule has no trace
// or performed other steps.
Result<MeasuredRun> measure(const Schedule& schedule, const std::vector<RankTrace>& traces);

}  // namespace hetcomm::pipeline
