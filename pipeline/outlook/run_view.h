// RunView compares a run with its forecast: the duration of the run, the times that differ from the
// given ones, and the schedules that would be faster.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/outlook/measured.h"
#include "pipeline/outlook/outlook.h"
#include "pipeline/outlook/question.h"
#include "pipeline/schedule/named.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// A time that differs from the one in the question.
struct MovedTime {
  std::string what;  // for example "forward of stage 1"
  uint64_t from_ns = 0;
  uint64_t to_ns = 0;
};

// A schedule that matches the stages of the run, with a forecast based on the times of the run.
struct Candidate {
  std::string name;
  ScheduleParameters parameters;
  std::vector<std::vector<Action>> actions;  // by rank, of an arranged schedule; otherwise empty
  uint64_t total_ns = 0;
  std::vector<int64_t> peaks;       // indexed by rank
  std::vector<uint32_t> in_flight;  // indexed by boundary: enough that their number costs no time
};

struct RunView {
  Outlook outlook;  // outlook of the schedule that ran, with the times of the run
  MeasuredRun run;
  // The simulated time of the run, with the measured length of each step and only boundaries
  // between steps. The items in flight are those of the question. If it has none, no step waits for
  // a free buffer.
  uint64_t replayed_ns = 0;
  bool had_times = false;        // true if the question had times
  std::vector<MovedTime> moved;  // times that differ by more than a tenth
  int64_t limit = 0;             // maximum memory that a rank of a candidate may hold
  bool may_split = false;
  std::vector<Candidate> candidates;  // fastest first
  // True if the first candidate is at least 1 % faster than the schedule that ran, and times have
  // changed or were not known.
  bool proposes = false;
};

// Measures the run of |question|, which has traces, and searches for better schedules: known ones,
// and one that is arranged within the limits. Each assigns stages to ranks as the current schedule
// does, stays within the limits, and splits backward steps only if the current schedule does or
// |question| allows it. Without limits, every rank may hold as much as the rank that holds most
// now. Fails as check_size(), check(), measure() and look_at() do.
Result<RunView> look_at_run(ScheduleQuestion question);

std::string to_text(const RunView& view);
// Returns the outlook with "run", "moved", "candidates" and "proposal". The proposal is the
// schedule in the form of a plan, with its items in flight, or null.
std::string to_json(const RunView& view);
// Returns a Gantt chart that shows the run below the forecast of each rank.
Result<std::string> to_svg(const RunView& view);

}  // namespace hetcomm::pipeline
