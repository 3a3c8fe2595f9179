// A report has one row for each implementation and point. The row includes the settings of the
// measurement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/loops/collectives.h"
#include "bench/loops/workload.h"
#include "bench/work.h"

namespace bench {

struct Row {
  std::string test;
  std::string impl;
  std::string transport;
  std::string path;  // "eager", "put", "get"; "": unknown
  std::string memory;
  std::string progress;
  uint64_t staging_chunk = 0;  // requested chunk size; 0: hetcomm's choice
  int staging_depth = 0;       // requested depth; 0: hetcomm's choice
  int rails = 0;               // requested number of rails; 0: hetcomm's choice
  std::string algorithm;       // collective algorithm; "": hetcomm's choice
  std::string pin;             // requested kind of staging memory; "": not requested
  bool stream = false;         // operations are ordered in a stream
  int ranks = 2;
  double avg_us = kUnknown;          // total time over iterations
  double bandwidth_mbps = kUnknown;  // 10^6 bytes per second, all messages together
  double messages_per_s = kUnknown;
  std::string variant;  // variant name if works are measured in turn
  int round = 0;
  Measurement measured;
};

Row make_row(const Work& work, const std::string& impl, const Measurement& measured);

// Returns the percentage of the transfer that the computation hid. 100 means that both together
// took as long as the computation alone.
double overlap_percent(const Measurement& measured);

// Forecasts the rate of staging from the rates of copying and sending alone. Staging copies chunks
// and sends chunks at the same time. The slower of the two limits the rate, except for the first
// and the last chunk. Returns kUnknown for tests other than staging, and if the size of the chunks
// is unknown.
double staging_forecast_mbps(const Row& row);
// Returns the rate of staging as a percentage of the slower of the rates of copying and sending.
double staging_percent(const Row& row);
// Returns the rate of staging as a percentage of the rate that two processors, one for each rank,
// allow. Stages that use the ranks' own processors cannot all run at the same time.
double staging_processor_percent(const Row& row);

// Returns whether smaller figures (times) are better than larger ones (rates).
inline bool smaller_is_better(const std::string& test) {
  return is_latency(test) || test == "overlap" || find_collective(test) != nullptr;
}
// Returns whether the test counts messages or operations instead of bytes.
inline bool is_rate(const std::string& test) {
  return test == "msgrate" || test == "fetch_add_rate";
}
// Returns the figure by which rows are compared: the average time, the bandwidth, or for overlap
// the median time.
inline double figure(const Row& row) {
  if (row.test == "overlap") return row.measured.p50_us;
  return smaller_is_better(row.test) ? row.avg_us : row.bandwidth_mbps;
}

struct PeerInfo {
  std::string name;     // "openmpi-5.0.11/no-cma"
  std::string version;  // as reported by the peer
  std::string origin;   // where the peer was found
};

// A Ratio compares hetcomm with one peer at one point, over the rounds with the same placement.
// Above 1, hetcomm is better.
struct Ratio {
  std::string peer;
  std::string test;
  std::string transport;
  std::string progress;
  std::string placement;
  Point point;
  int rounds = 0;
  double ours = kUnknown;    // hetcomm's median
  double theirs = kUnknown;  // the peer's median
  double median = kUnknown;
  double smallest = kUnknown;
  double largest = kUnknown;
};

// The number of launches with one placement of the cores.
struct PlacementCount {
  std::string placement;
  int launches = 0;
  double hand_over_us = kUnknown;  // median over the launches
};

struct Report {
  std::string version;
  std::string build;
  std::string host;
  std::string command;
  std::vector<std::string> notes;  // human-readable lines
  std::vector<PeerInfo> peers;
  std::vector<Row> rows;
  int rounds = 0;  // 0: nothing was compared
  std::vector<PlacementCount> placements;
  std::vector<Ratio> ratios;
};

}  // namespace bench
