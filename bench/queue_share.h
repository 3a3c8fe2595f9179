// hetcomm_bench queue --pattern share: measures how queues of different weights share the
// bandwidth. The queues lead from rank 0 to the other ranks in rotation, and each always has
// something to push.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/work.h"
#include "tools/common/session.h"

namespace bench {

struct ShareOptions {
  uint64_t item_bytes = uint64_t{1} << 20;
  std::vector<uint32_t> weights = {3, 1};  // one per queue
  int depth = 8;
  double seconds = 1;  // duration of a pass
  int rounds = 3;
};

// Results of one queue: medians over the rounds.
struct ShareRow {
  int peer = 1;  // the rank that pulls
  uint32_t weight = 0;
  uint64_t item_bytes = 0;
  double bytes_per_second = 0;
  double share = 0;   // the queue's part of all bytes, 0 to 1
  double wanted = 0;  // the queue's weight over the sum of all weights
};

// Runs one rank of a job with two or more ranks that |launcher| started. Returns rows on rank 0 and
// none on the others. Calls |progress| with lines of progress. Exits the process on any failure.
std::vector<ShareRow> measure_share(tools::Launcher launcher, const Work& work,
                                    const ShareOptions& options,
                                    const std::function<void(const std::string&)>& progress);

std::string share_table(const std::vector<ShareRow>& rows);
std::string share_json(const std::vector<ShareRow>& rows);

}  // namespace bench
