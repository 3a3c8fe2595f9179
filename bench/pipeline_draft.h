// The plan of a pipeline, and the forecasts of its runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

// The forward step takes a third of a stage's computation; half of the rest is the weights'.
inline constexpr double kThird = 1.0 / 3;

struct LinkTime {
  double busy_us = 0;
  double latency_us = 0;
};

// The links between the stages of |rank_of|, by |links|, those between neighbouring ranks. Between
// ranks that are no neighbours the slowest one counts.
std::vector<LinkTime> by_stage(const std::vector<uint32_t>& rank_of,
                               const std::vector<LinkTime>& links);

// A schedule, and what the simulator needs to know of the job.
struct Case {
  std::string schedule;
  int ranks = 0;
  int micro_batches = 0;
  double stage_us = 0;          // computation of one stage for a micro-batch
  std::vector<LinkTime> links;  // by stage before; empty: they take no time
};

// One schedule with one number of micro-batches: what it needs, and its forecast.
struct Draft {
  std::vector<uint32_t> rank_of;
  std::vector<uint32_t> in_flight;
  size_t actions = 0;  // of the rank with the most
  double total_us = 0;
};

// Each ends the process if the simulator refuses.
Draft draft(const Case& of, const std::vector<uint32_t>& in_flight = {});
// Returns the forecast of a run with each step as long as it was, by the |traces| of all ranks.
double replayed_us(const Case& of, const std::vector<uint32_t>& in_flight,
                   const std::vector<std::string>& traces);

// Returns the plan of a pipeline with |bytes| at each boundary.
std::string plan_of(const Case& of, const Draft& draft, const std::vector<uint32_t>& in_flight,
                    uint64_t bytes);

}  // namespace bench
