// A Work is a workload, and the settings with which hetcomm or a peer runs it. Other processes
// receive it as words of the form key=value.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "bench/loops/workload.h"
#include "tools/common/session.h"

namespace bench {

struct Work {
  Workload workload;
  std::string transport = "auto";      // "shm", "tcp", ...; "auto": hetcomm's choice
  std::string first_memory = "host";   // memory of rank 0: "host" or the kind of a device
  std::string second_memory = "host";  // memory of all other ranks
  std::string progress;                // "caller", "thread"; "": set by HETCOMM_PROGRESS
  uint64_t staging_chunk = 0;          // HETCOMM_STAGING_CHUNK; 0: keep the variable
  int staging_depth = 0;               // HETCOMM_STAGING_DEPTH; 0: keep the variable
  int rails = 0;                       // HETCOMM_RAILS; 0: keep the variable
  std::string pin;                     // "pinned", "pageable"; "": set by HETCOMM_STAGING_PIN
  std::string algorithm;               // collective algorithm; "": hetcomm's choice
  bool stream = false;                 // operations are ordered in a stream of the device
  int ranks = 2;
  bool bind = true;  // one core for each rank, if there are enough cores
  // Name of the settings and number of the round, if several settings are measured in turn.
  std::string variant;
  int round = 0;
};

// Tests whose device memory is staged through host memory.
inline constexpr const char* kStagingTests[] = {"staging", "staged_allreduce", "staged_allgather"};
inline bool is_staging(std::string_view test) {
  return std::find(std::begin(kStagingTests), std::end(kStagingTests), test) !=
         std::end(kStagingTests);
}

// Returns "host", or "host:sim-handle" if the sides differ.
std::string memory_text(const Work& work);

// Returns the options of a session in which |work| can run.
tools::SessionOptions session_options(const Work& work);

std::vector<std::string> encode_words(const Work& work);
bool decode_work_word(std::string_view word, Work* work);

// Returns sizes from |first| to |last|, each |factor| times the previous one but at least one byte
// more. The number of messages in flight is |window|, reduced so that buffers fit in |most_bytes|,
// but at least one.
std::vector<Point> make_points(uint64_t first, uint64_t last, double factor, int window,
                               uint64_t most_bytes);

}  // namespace bench
