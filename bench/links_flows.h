// Simultaneous transfers between ranks, and the round-trip time of a message: one rank's part of a
// round of hetcomm_bench links or affinity.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <hetcomm/hetcomm.h>

namespace bench {

// A sending rank and a receiving rank.
using RankPair = std::pair<int, int>;

struct Flow {
  int from = 0;
  int to = 0;
  double bytes_per_s = 0;
};

// Location of a rank's buffers. Device 0 is host memory.
struct FlowMemory {
  hetcomm_context_t* context = nullptr;  // of the device
  int32_t device = 0;
};

// Runs the part of rank |own| in transfers that all of |pairs| make for |seconds|. Returns the
// rates of the transfers that it receives. Messages grow while that makes them faster. So slow
// links get short messages, and links with a long latency are filled. The second half of the time
// counts.
std::vector<Flow> run_flows(hetcomm_communicator_t* communicator, int own,
                            const std::vector<RankPair>& pairs, double seconds,
                            const FlowMemory& memory = {});

// Returns half of the median round-trip time of a short message, in nanoseconds, on the first rank
// of the pair, and 0 on the second. |own| is one of the two.
uint64_t run_latency(hetcomm_communicator_t* communicator, int own, RankPair pair);

}  // namespace bench
