// Outlook holds the properties of a sound schedule: its memory, and its forecast time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/outlook/measured.h"
#include "pipeline/outlook/question.h"
#include "pipeline/schedule/memory.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/forecast.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct Outlook {
  Schedule schedule;
  std::vector<uint32_t> exposed;  // as ScheduleQuestion::exposed
  // Indexed by boundary: the given items in flight, or enough that their number costs no time.
  // Empty at the levels that have transfers. 0 between pipelines.
  std::vector<uint32_t> in_flight;
  std::vector<int64_t> peaks;      // indexed by rank, in the unit of the question's memory
  std::vector<StepMemory> memory;  // as CheckOptions::memory
  bool has_times = false;          // false: each F, I and W takes 1, and transfers take no time
  PipelineTimes times;
  Forecast forecast;  // with the spans of all actions
  // The links that transfers share, and the reductions. Set only if the question has routes.
  struct Resource {
    std::string name;
    uint64_t busy_ns = 0;
  };
  struct Reduction {
    std::vector<uint32_t> stages;
    Span span;              // begins when all its stages have reached it
    uint64_t alone_ns = 0;  // the time that it takes without other load on its links
  };
  std::vector<Resource> resources;
  std::vector<Reduction> reductions;
  // The beginning of one of several pipelines. Ranks and stages are numbered consecutively over all
  // pipelines. The schedule has the number of micro-batches of the pipeline with the most.
  struct Part {
    uint32_t first_rank = 0;
    uint32_t first_stage = 0;
    uint32_t micro_batches = 0;
  };
  std::vector<Part> pipelines;          // empty: there is only one
  std::vector<std::string> rank_names;  // empty: ranks are named by number

  std::string rank_name(uint32_t rank) const {
    return rank_names.empty() ? std::to_string(rank) : rank_names[rank];
  }
};

// Fails with kOutOfResources if stages times micro-batches exceed kMaxQuestionSteps.
Status check_size(const Schedule& schedule);
// Checks and simulates the schedule of |question|. If the items in flight are not given, determines
// how many are needed. Fails as check_size(), check() and simulate() do.
Result<Outlook> look_at(ScheduleQuestion question);

// A step on the longest path. It could not start before the previous one had ended.
struct CriticalStep {
  uint32_t rank = 0;
  size_t action = 0;  // index in Schedule::actions[rank]
  // The time from the end of the previous step to the start of this one. The transfer may itself
  // have waited, for its receive or for the link.
  uint64_t transfer_ns = 0;
  // The stage before the boundary whose transfer this step waited for.
  uint32_t boundary = 0;
  bool is_gather = false;  // true if the step waited for weights and not for a boundary
};
// Returns the longest path to the step that ends last, in chronological order.
std::vector<CriticalStep> critical_path(const Outlook& outlook);

// Returns a table of the ranks, and the time of an iteration.
std::string to_text(const Outlook& outlook);
// Returns the schedule, its memory and its forecast as a JSON document.
std::string to_json(const Outlook& outlook);
// Returns a Chrome trace: a JSON document for chrome://tracing or Perfetto, with a track for each
// rank and a counter of the memory that it holds.
std::string to_chrome_trace(const Outlook& outlook);
// Returns a Gantt chart. Fails with kUnsupported if there is too much to draw.
Result<std::string> to_svg(const Outlook& outlook);
// Returns a Gantt chart that shows |run| below the forecast of each rank. Fails as to_svg() above.
Result<std::string> to_svg(const Outlook& outlook, const MeasuredRun& run);

}  // namespace hetcomm::pipeline
