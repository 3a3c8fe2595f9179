// Runs one rank's part of a round of hetcomm_bench links or affinity: measures simultaneous
// transfers between ranks, or the round-trip time of a message.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <hetcomm/hetcomm.h>

namespace tools {

// A sending rank and a receiving rank.
using RankPair = std::pair<int, int>;

struct Flow {
  int from = 0;
  int to = 0;
  double bytes_per_s = 0;
};

// Location of a rank's buffers. Device 0 is host memory.
struct FlowMemory {
  hetcomm_context_t* context = nullptr;  // the device's context
  int32_t device = 0;
};

// Runs rank |own|'s part of concurrent transfers between all |pairs| for |seconds|. Returns the
// rates of the transfers that this rank receives. Messages grow while several of them take less
// than 0.1 s, or while growing increases the rate. So slow links get short messages, and links with
// a long latency are fully used. Only the second half of the time is measured.
std::vector<Flow> run_flows(hetcomm_communicator_t* communicator, int own,
                            const std::vector<RankPair>& pairs, double seconds,
                            const FlowMemory& memory = {});

// Returns half of the median round-trip time of a short message, in nanoseconds, on the first rank
// of the pair, and 0 on the second. |own| is either rank.
uint64_t run_latency(hetcomm_communicator_t* communicator, int own, RankPair pair);

}  // namespace tools
