// RunView compares a run with its forecast: how long the run took, which times differ from the
// known ones, and which schedule would do better.
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
  std::string what;  // "forward of stage 1"
  uint64_t from_ns = 0;
  uint64_t to_ns = 0;
};

// A schedule that fits the stages of the run, with its forecast by the times of the run.
struct Candidate {
  std::string name;
  ScheduleParameters parameters;
  std::vector<std::vector<Action>> actions;  // by rank, of one that was arranged; else empty
  uint64_t total_ns = 0;
  std::vector<int64_t> peaks;       // by rank
  std::vector<uint32_t> in_flight;  // by boundary: enough items that no step waits for room
};

struct RunView {
  Outlook outlook;  // of the schedule that ran, with the times of the run
  MeasuredRun run;
  // The simulated time of the run, with each step as long as it was and only boundaries between
  // steps. The items in flight are those of the question. Without them no step waits for room.
  uint64_t replayed_ns = 0;
  bool had_times = false;        // the question had times
  std::vector<MovedTime> moved;  // by more than a tenth
  int64_t limit = 0;             // most that a rank of a candidate may keep
  bool may_split = false;
  std::vector<Candidate> candidates;  // the fastest first
  // True if the first candidate is at least 1 % faster than the schedule that ran, and times have
  // moved or were not known.
  bool proposes = false;
};

// Measures the run of |question|, which has traces, and looks for better schedules: known ones, and
// one that is arranged within the limits. All deal stages to ranks as the schedule does, keep
// within the limits, and split backward steps only if it does or |question| allows it. Without
// limits a rank may keep as many as the one that keeps most now. Fails as check_size(), check(),
// measure() and look_at() do.
Result<RunView> look_at_run(ScheduleQuestion question);

std::string to_text(const RunView& view);
// Returns the outlook with "run", "moved", "candidates" and "proposal": the schedule as a plan has
// it, and its items in flight, or null.
std::string to_json(const RunView& view);
// Returns a Gantt chart with the run below the forecast of each rank.
Result<std::string> to_svg(const RunView& view);

}  // namespace hetcomm::pipeline
