// RunRecord records a run. to_json() and to_chrome_trace() write the record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/execute/program.h"

namespace hetcomm::pipeline {

// One step of a run. Times count from the beginning of the run.
struct StepRecord {
  uint64_t start_ns = 0;  // when its callback was called
  uint64_t end_ns = 0;
  uint64_t data_wait_ns = 0;  // wait before the step for what it reads; 0: that was there
  uint64_t room_wait_ns = 0;  // wait before the step for room for what it writes
};

struct RunRecord {
  uint64_t step = 0;
  RunKind kind = RunKind::kTrain;
  uint64_t total_ns = 0;
  std::vector<StepRecord> steps;  // as in Program::steps; fewer if the run has failed
};

// Returns the steps with their times, as a JSON document.
std::string to_json(const Program& program, const RunRecord& record);
// Returns a Chrome trace: a JSON document for chrome://tracing or Perfetto.
std::string to_chrome_trace(const Program& program, const RunRecord& record);

}  // namespace hetcomm::pipeline
