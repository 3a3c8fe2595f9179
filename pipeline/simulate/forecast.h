// A Forecast has the start and the end of each action of a schedule.
#pragma once

#include <cstdint>
#include <vector>

namespace hetcomm::pipeline {

struct Span {
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  bool operator==(const Span&) const = default;
};

// The cause that determined the start of an action.
enum class Bound : uint8_t {
  kRank,    // the previous action of the rank
  kData,    // data of another rank
  kRoom,    // a buffer: that of an earlier item, or that of the send that the action waits for
  kGather,  // the weights of its stage, which UNSHARD gathers
};

struct Forecast {
  uint64_t total_ns = 0;          // from the start to the end of the last action
  std::vector<uint64_t> busy_ns;  // indexed by rank: time spent in computations
  // Indexed by rank and action. The two actions of a pair have the same span. Empty unless
  // requested.
  std::vector<std::vector<Span>> actions;
  std::vector<std::vector<Bound>> bounds;  // indexed by rank and action; empty unless requested

  // Returns the time in which |rank| does not compute.
  uint64_t idle_ns(uint32_t rank) const { return total_ns - busy_ns[rank]; }
  // Returns the idle fraction of the total time of all ranks, in millionths.
  uint64_t bubble_ppm() const;
};

}  // namespace hetcomm::pipeline
