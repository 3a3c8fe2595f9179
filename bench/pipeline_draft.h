// Creates the plan of a pipeline, and forecasts its runs with the simulator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

// A stage's computation has three parts of equal length: the forward step, the gradients of the
// inputs, and the gradients of the weights.
inline constexpr double kThird = 1.0 / 3;

struct LinkTime {
  double busy_us = 0;
  double latency_us = 0;
};

// Returns the links between the stages of |rank_of|. |links| holds the links between neighbouring
// ranks. For ranks that are not neighbours, the slowest link between them is used. A link within a
// rank takes no time.
std::vector<LinkTime> by_stage(const std::vector<uint32_t>& rank_of,
                               const std::vector<LinkTime>& links);

// A Case is a schedule with the information about the job that the simulator needs.
struct Case {
  std::string schedule;
  int ranks = 0;
  int micro_batches = 0;
  double stage_us = 0;          // computation of one stage for a micro-batch
  std::vector<LinkTime> links;  // links[i] joins stages i and i + 1; empty: links take no time
};

// A Draft is the simulator's answer about one Case: the ranks of the stages, the numbers of
// micro-batches in flight, and the forecast.
struct Draft {
  std::vector<uint32_t> rank_of;
  std::vector<uint32_t> in_flight;
  size_t actions = 0;  // actions of the rank with the most
  double total_us = 0;
};

// Simulates a run. With an empty |in_flight| the simulator chooses the numbers. Exits the process
// if the simulator reports an error.
Draft draft(const Case& of, const std::vector<uint32_t>& in_flight = {});
// Returns the forecast of a run in which each step takes as long as recorded in the |traces| of all
// ranks. Exits the process if the simulator reports an error.
double replayed_us(const Case& of, const std::vector<uint32_t>& in_flight,
                   const std::vector<std::string>& traces);

// Returns the plan of a pipeline with |bytes| at each boundary.
std::string plan_of(const Case& of, const Draft& draft, const std::vector<uint32_t>& in_flight,
                    uint64_t bytes);

}  // namespace bench
