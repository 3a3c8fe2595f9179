// One library that can be measured, in one configuration: hetcomm itself or a peer. A measurement
// is a launch of processes of its own, so that nothing but the machine is shared between two of
// them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/launch.h"
#include "bench/row.h"
#include "bench/work.h"

namespace bench {

// Understands one line of output; true when it held a measurement.
using LineParser = std::function<bool(std::string_view line, Measurement* out_measurement)>;

struct Implementation {
  PeerInfo info;
  // The one transport that it has, whatever is asked for ("tcp" for Gloo); "": as asked.
  std::string only_transport;
  // It knows no messages: what it measures once stands for every point.
  bool is_stream = false;
  // Each point is a launch of its own.
  bool point_by_point = false;
  // Why it cannot do |work|; "" when it can.
  std::function<std::string(const Work& work)> refusal;
  std::function<Launch(const Work& work)> launch;
  std::function<LineParser(const Work& work)> parser;  // empty: measurement lines (workload.h)
};

using RowFunction = std::function<void(const Row& row)>;

// Carries out |work|; |on_row| gets each point when it is done. "" or what went wrong.
std::string measure(const Implementation& implementation, const Work& work, double silence_seconds,
                    const RowFunction& on_row);

// hetcomm: this program again, once for each rank.
Implementation make_hetcomm();

// Processes of one launch that are ranks of ours: bound as |work| asks.
int cpu_of_rank(const Work& work, int rank);

}  // namespace bench
