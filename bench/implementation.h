// One library in one configuration that can be measured: hetcomm itself or a peer. Each measurement
// launches its own processes, so that measurements share nothing but the machine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/row.h"
#include "bench/work.h"
#include "tools/common/launch.h"

namespace bench {

// Parses one line of output. Returns whether the line held a measurement.
using LineParser = std::function<bool(std::string_view line, Measurement* out_measurement)>;

struct Implementation {
  PeerInfo info;
  // The only transport that the library supports ("tcp" for Gloo). "": the requested one.
  std::string only_transport;
  // The library has no messages: a single measurement applies to every point.
  bool is_stream = false;
  // Each point is a separate launch.
  bool point_by_point = false;
  // Returns why the implementation cannot carry out |work|, or "" if it can.
  std::function<std::string(const Work& work)> refusal;
  std::function<tools::Launch(const Work& work)> launch;
  std::function<LineParser(const Work& work)> parser;  // empty: measurement lines (workload.h)
};

using RowFunction = std::function<void(const Row& row)>;

// Carries out |work|. |on_row| receives each point when it is done. Returns "", or the error.
std::string measure(const Implementation& implementation, const Work& work, double silence_seconds,
                    const RowFunction& on_row);

// Returns hetcomm as an implementation that launches this program again, once for each rank.
Implementation make_hetcomm();

// Returns the core for |rank| of hetcomm in one launch, bound as |work| requests.
int cpu_of_rank(const Work& work, int rank);

}  // namespace bench
