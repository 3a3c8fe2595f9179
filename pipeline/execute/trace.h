// RunRecord records the timing of a run. to_json() and to_chrome_trace() format it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/execute/program.h"

namespace hetcomm::pipeline {

// One step of a run. Times are relative to the beginning of the run.
struct StepRecord {
  uint64_t start_ns = 0;  // when the callback was called
  uint64_t end_ns = 0;
  uint64_t data_wait_ns = 0;  // time spent waiting for the input; 0 if it had arrived
  uint64_t room_wait_ns = 0;  // time spent waiting for free output buffers
};

struct RunRecord {
  uint64_t step = 0;
  RunKind kind = RunKind::kTrain;
  uint64_t total_ns = 0;
  std::vector<StepRecord> steps;  // in the order of Program::steps; fewer if the run has failed
};

// Returns the steps with their times, as a JSON document.
std::string to_json(const Program& program, const RunRecord& record);
// Returns a Chrome trace: a JSON document for chrome://tracing or Perfetto.
std::string to_chrome_trace(const Program& program, const RunRecord& record);

}  // namespace hetcomm::pipeline
