// hetcomm_bench pipeline: measures the time of a micro-batch in a pipeline for each schedule, and
// compares it with the simulator's forecast. The computation of a stage takes a configured time.
//
// The time of a micro-batch is the slope between a run of few micro-batches and one of many, so
// that filling and draining the pipeline do not count. The links between neighbouring ranks are
// measured one at a time, without computation.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/work.h"
#include "tools/common/session.h"

namespace bench {

struct PipelineOptions {
  std::vector<std::string> schedules = {"1f1b", "eager-1f1b", "h-1f1b", "zb-h1"};
  std::string compute = "timer";  // "timer", "burn" or "none"
  double stage_ms = 20;           // computation of a rank for a micro-batch
  uint64_t item_bytes = 4096;     // bytes of a micro-batch at a boundary, in each direction
  uint32_t in_flight = 0;         // 0: one more than the simulator's number for each boundary
  std::vector<int> micro_batches = {64, 192};
  int rounds = 3;
  // Emulated links between two hosts: each delay is combined with each rate. If both are empty, the
  // job's own links are used.
  std::vector<double> delays_ms;
  std::vector<int> rates_mbit;  // 0: without a limit

  bool makes_links() const { return !delays_ms.empty() || !rates_mbit.empty(); }
};

struct PipelineRow {
  std::string schedule;
  int ranks = 0;
  std::string compute;
  uint64_t item_bytes = 0;
  std::vector<int> micro_batches;
  double stage_us = 0;           // computation of a rank for a micro-batch, measured alone
  double busy_us = 0;            // longest time that an item occupies the link of a boundary
  double latency_us = 0;         // longest latency of the link of a boundary
  uint32_t in_flight = 0;        // largest number of items in flight at a boundary
  double measured_us = 0;        // time of a micro-batch; median over the rounds
  double forecast_us = 0;        // simulated time of a micro-batch
  double replayed_us = 0;        // time as simulated with measured steps; median over the rounds
  double undelayed_us = 0;       // time as simulated over links that take no time
  double overhead_us = 0;        // without computation: wall time of an action
  std::vector<double> times_us;  // time of a micro-batch in each round
  // For each round, the time of the run with fewer micro-batches and of the run with more.
  std::vector<std::array<double, 2>> runs_us;
  // |runs_us| as simulated with the measured duration of each step; empty without computation
  std::vector<std::array<double, 2>> replayed_runs_us;
};

// Runs one rank of a job that |launcher| started. Returns rows on rank 0 and none on the others.
// Calls |progress| with lines of progress. Exits the process on any failure.
std::vector<PipelineRow> measure_pipeline(tools::Launcher launcher, const Work& work,
                                          const PipelineOptions& options,
                                          const std::function<void(const std::string&)>& progress);

std::string pipeline_table(const std::vector<PipelineRow>& rows);
std::string pipeline_json(const std::vector<PipelineRow>& rows);

}  // namespace bench
