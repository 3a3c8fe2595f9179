// hetcomm_bench reshard: measures how long each strategy takes to move a tensor from one layout to
// another, as compared in HetAuto's appendix E.
//
// With a job, the first half of the ranks holds the tensor, and the second half receives it.
// Without a job, plans for two clusters are simulated on link models (tools/links/reshard_flows.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/work.h"
#include "tools/common/reshard_cases.h"
#include "tools/common/session.h"

namespace bench {

struct ReshardOptions {
  std::vector<tools::ReshardCase> cases;  // empty: all cases for half the number of ranks
  std::vector<std::string> strategies;    // empty: all
  uint64_t bytes = uint64_t{64} << 20;
  uint64_t slice_bytes = 0;
  bool simulate = false;  // simulate instead of measuring a job
  double seconds = 0.5;   // time for each strategy in each case
  int rounds = 5;
};

// Results of one strategy in one case. Times are in microseconds until the last rank is done.
struct ReshardRow {
  std::string scenario;  // name of the simulated scenario, or ""
  std::string layouts;   // "4x1:1x4"
  std::string strategy;
  std::string chosen;  // the plan's strategy; for auto, the one that auto chose
  std::string memory;  // memory of the two sides; "" for a simulation
  uint64_t bytes = 0;
  std::string refused;  // why there is no plan, or ""; with no plan all times are 0
  std::string barred;   // why auto must not choose the strategy, or ""
  double forecast_us = 0;
  double low_us = 0;  // first quartile
  double median_us = 0;
  double high_us = 0;  // third quartile
  double fastest_us = 0;
  double slowest_us = 0;
  std::vector<double> times_us;  // in the order of the runs
  int runs = 0;
};

// Runs one rank of a job that |launcher| started. Returns rows on rank 0 and none on the others.
// Exits the process on any failure.
std::vector<ReshardRow> measure_reshard(tools::Launcher launcher, const Work& work,
                                        const ReshardOptions& options,
                                        const std::function<void(const std::string&)>& progress);

// Returns rows for simulated clusters of 16 ranks each, without a job.
std::vector<ReshardRow> simulate_reshard(const ReshardOptions& options,
                                         const std::function<void(const std::string&)>& progress);

std::string reshard_table(const std::vector<ReshardRow>& rows);
std::string reshard_json(const std::vector<ReshardRow>& rows);

}  // namespace bench
