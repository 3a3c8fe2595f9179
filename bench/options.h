// The command line: one struct for each group of options in --help.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/python.h"
#include "bench/queue.h"
#include "bench/queue_share.h"
#include "bench/reshard.h"

namespace bench {

// Sizes and repetitions. 0 or none: the test's default.
struct SizeOptions {
  std::optional<uint64_t> first_bytes;
  std::optional<uint64_t> last_bytes;
  double factor = 0;
  int64_t iterations = 0;
  int64_t warmup = -1;
  double seconds = 0;
  int window = 0;
};

// The subject of the measurement.
struct SubjectOptions {
  int ranks = 0;                        // 0: the test's default
  std::vector<std::string> transports;  // none: the default
  std::string nic;                      // HETCOMM_RDMA_NIC, set already
  std::string first_memory = "host";
  std::string second_memory = "host";
  std::string progress;  // "caller", "thread"; "": HETCOMM_PROGRESS
  bool stream = false;   // messages are ordered in a stream
  bool bind = true;
  bool check = false;
};

// Settings of hetcomm, each measured separately. None: hetcomm's choice.
struct SettingOptions {
  std::vector<uint64_t> chunks = {0, 64 << 10, 256 << 10, 1 << 20};  // 0: hetcomm's choice
  std::vector<int> depths = {0};                                     // 0: hetcomm's choice
  std::vector<int> rails;
  std::vector<std::string> algorithms;  // of collective operations
  std::vector<std::string> pins;        // of staging memory: "pinned", "pageable"
  bool interleave = false;              // measure the settings in turn in every round
};

// How two hetcomm_bench processes find each other.
struct MeetingOptions {
  std::string host;     // host with a waiting hetcomm_bench to connect to; "": none
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
  ReshardOptions reshard;
  MeetingOptions meeting;
  PeerOptions peers;          // of a comparison
  std::optional<int> rounds;  // of a comparison, of settings in turn, or of a test of a job
  OutputOptions output;

  bool compares() const { return !peers.names.empty(); }
  bool asks_for(const char* test) const {
    return std::find(tests.begin(), tests.end(), test) != tests.end();
  }
};

enum class Parsed { kRun, kDone, kWrong };

// Parses the command line. kDone: --help or --version was answered. kWrong: the error was printed
// on standard error.
Parsed parse_options(int argc, char** argv, Options* options);

// The parts of --help before and after the options.
extern const char* const kHelpBefore;
extern const char* const kHelpAfter;

}  // namespace bench
