// The command line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/python.h"
#include "bench/work.h"
#include "tools/common/reshard_cases.h"

namespace bench {

// How two hetcomm_bench processes find each other.
struct MeetingOptions {
  std::string host;     // host with a waiting hetcomm_bench to connect to; "": none
  bool listen = false;  // wait for another hetcomm_bench
  int port = 29555;
  double silence_seconds = 300;
  bool silence_given = false;
};

// Message sizes. 0: the test's default.
struct SizeOptions {
  uint64_t first_bytes = 0;
  uint64_t last_bytes = 0;
  bool first_given = false;
  bool last_given = false;
  double factor = 0;
};

// Settings of hetcomm, each measured separately. Empty: hetcomm's choice.
struct SettingOptions {
  std::vector<uint64_t> chunks;  // staging chunk sizes; 0: hetcomm's choice
  std::vector<int> depths;       // staging depths; 0: hetcomm's choice
  std::vector<int> rails;
  std::vector<std::string> algorithms;  // of collective operations
  std::vector<std::string> pins;        // of staging memory: "pinned", "pageable"
  bool interleave = false;              // measure the settings in turn in every round
};

// Test "queue". Empty: its defaults.
struct QueueTestOptions {
  std::vector<std::string> patterns;
  std::vector<std::string> computes;
  std::vector<int> warmups;
  std::vector<double> ratios;
  std::vector<uint32_t> weights;
};

// Test "reshard". Empty: its defaults.
struct ReshardTestOptions {
  std::vector<tools::ReshardCase> cases;
  std::vector<std::string> strategies;
  uint64_t slice_bytes = 0;
  bool simulate = false;
};

struct ComparisonOptions {
  PeerOptions peers;
  int rounds = 15;
  bool rounds_given = false;
};

struct OutputOptions {
  std::string format = "table";
  std::string file;
  std::string plot;
};

struct Options {
  std::vector<std::string> tests;
  MeetingOptions meeting;
  SizeOptions sizes;
  SettingOptions settings;
  QueueTestOptions queue;
  ReshardTestOptions reshard;
  ComparisonOptions comparison;
  OutputOptions output;

  // Settings of the passes. 0 or empty: the test's default.
  int64_t iterations = 0;
  int64_t warmup = -1;
  double seconds = 0;
  int window = 0;
  int ranks = 0;
  std::vector<std::string> transports;
  std::string first_memory = "host";
  std::string second_memory = "host";
  std::string progress;
  bool stream = false;  // messages are ordered in a stream
  bool bind = true;
  bool check = false;
  std::string nic;  // HETCOMM_RDMA_NIC, set already

  bool measures_links() const { return asks_for("links"); }
  bool measures_affinity() const { return asks_for("affinity"); }
  bool measures_queue() const { return asks_for("queue"); }
  bool measures_reshard() const { return asks_for("reshard"); }
  // Whether the only requested test measures a whole job.
  bool measures_job() const {
    return measures_links() || measures_affinity() || measures_queue() || measures_reshard();
  }
  bool asks_for(const char* test) const {
    return std::find(tests.begin(), tests.end(), test) != tests.end();
  }
};

enum class Parsed { kRun, kDone, kWrong };

// Parses the command line. kDone: --help or --version was answered. kWrong: the error was printed
// on standard error.
Parsed parse_options(int argc, char** argv, Options* options);

// Returns the works that |options| request. Works that are measured in turn are repeated
// accordingly. |elsewhere|: the ranks are on other hosts or have another launcher, so hetcomm
// chooses the transport unless it was given.
std::vector<Work> make_works(const Options& options, bool elsewhere);

// Converts "64K", "1M", "4096" to bytes.
bool parse_bytes(const std::string& text, uint64_t* bytes);

std::string help_text();

}  // namespace bench
