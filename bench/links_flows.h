// Transfers between ranks that go on at once, and the time of a message to and fro: what one rank
// does in a round of hetcomm_bench links or affinity.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <hetcomm/hetcomm.h>

namespace bench {

// Ranks that send and receive.
using RankPair = std::pair<int, int>;

struct Flow {
  int from = 0;
  int to = 0;
  double bytes_per_s = 0;
};

// Where the buffers of a rank lie. Device 0 is host memory.
struct FlowMemory {
  hetcomm_context_t* context = nullptr;  // of the device
  int32_t device = 0;
};

// Does the part of rank |own| in transfers that all of |pairs| make for |seconds|. Returns the
// rates of those that it receives. Messages grow while that makes them faster, so that slow links
// have short ones and links with a long latency are filled. The second half of the time counts.
std::vector<Flow> run_flows(hetcomm_communicator_t* communicator, int own,
                            const std::vector<RankPair>& pairs, double seconds,
                            const FlowMemory& memory = {});

// Returns half of the median time of a short message to and fro, in nanoseconds, by the first rank
// of the pair; 0 on the second one. |own| is one of both.
uint64_t run_latency(hetcomm_communicator_t* communicator, int own, RankPair pair);

}  // namespace bench
