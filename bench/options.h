// Holds the options of the command line, with one struct for each group in --help.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/pipeline.h"
#include "bench/python.h"
#include "bench/queue.h"
#include "bench/queue_share.h"
#include "bench/reshard.h"

namespace bench {

// Sizes and repetitions. An empty value, 0, or -1 for |warmup| selects the test's default.
struct SizeOptions {
  std::optional<uint64_t> first_bytes;
  std::optional<uint64_t> last_bytes;
  double factor = 0;
  int64_t iterations = 0;
  int64_t warmup = -1;
  double seconds = 0;
  int window = 0;
};

// The processes, connections and memory that are measured.
struct SubjectOptions {
  int ranks = 0;                        // 0: the test's default
  std::vector<std::string> transports;  // empty: the default
  std::string nic;                      // parse_options() sets HETCOMM_RDMA_NIC to it
  std::string first_memory = "host";
  std::string second_memory = "host";
  std::string progress;  // "caller", "thread"; "": set by HETCOMM_PROGRESS
  bool stream = false;   // order messages in a stream of the device
  bool bind = true;
  bool check = false;
};

// Settings of hetcomm. Each value is measured separately. An empty list leaves the choice to
// hetcomm.
struct SettingOptions {
  std::vector<uint64_t> chunks = {0, 64 << 10, 256 << 10, 1 << 20};  // 0: hetcomm's choice
  std::vector<int> depths = {0};                                     // 0: hetcomm's choice
  std::vector<int> rails;
  std::vector<std::string> algorithms;  // names of collective algorithms
  std::vector<std::string> pins;        // kinds of staging memory: "pinned", "pageable"
  bool interleave = false;              // measure the settings in turn in every round
};

// The options with which two hetcomm_bench processes find each other.
struct MeetingOptions {
  std::string host;     // host of the listening hetcomm_bench; "": none
  bool listen = false;  // wait for another hetcomm_bench
  int port = 29555;
};

struct OutputOptions {
  std::string format = "table";
  std::string file;
  std::string plot;
  double silence_seconds = 300;
  bool silence_given = false;
};

struct Options {
  std::vector<std::string> tests;
  SizeOptions sizes;
  SubjectOptions subject;
  SettingOptions settings;
  QueueOptions queue;
  ShareOptions share;
  PipelineOptions pipeline;
  ReshardOptions reshard;
  MeetingOptions meeting;
  PeerOptions peers;          // for --compare
  std::optional<int> rounds;  // for --compare, --interleave and tests that measure a job
  OutputOptions output;

  bool compares() const { return !peers.names.empty(); }
  bool asks_for(const char* test) const {
    return std::find(tests.begin(), tests.end(), test) != tests.end();
  }
};

enum class Parsed { kRun, kDone, kWrong };

// Parses the command line. Returns kDone after printing the output of --help or --version, and
// kWrong after printing an error on standard error.
Parsed parse_options(int argc, char** argv, Options* options);

// The parts of --help before and after the options.
extern const char* const kHelpBefore;
extern const char* const kHelpAfter;

}  // namespace bench
