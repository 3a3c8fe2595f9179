// A Forecast says when each action of a schedule starts and ends.
#pragma once

#include <cstdint>
#include <vector>

namespace hetcomm::pipeline {

struct Span {
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  bool operator==(const Span&) const = default;
};

// The cause that decided when an action started.
enum class Bound : uint8_t {
  kRank,    // the action before it
  kData,    // data of another rank
  kRoom,    // a buffer: that of an earlier item, or of the send that it waits for
  kGather,  // the weights of its stage, which UNSHARD gathers
};

struct Forecast {
  uint64_t total_ns = 0;          // from the start to the end of the last action
  std::vector<uint64_t> busy_ns;  // by rank: time in computations
  // By rank and action. The two actions of a pair have the same span. Empty unless asked for.
  std::vector<std::vector<Span>> actions;
  std::vector<std::vector<Bound>> bounds;  // by rank and action; empty unless asked for

  // Returns the time in which |rank| does not compute.
  uint64_t idle_ns(uint32_t rank) const { return total_ns - busy_ns[rank]; }
  // Returns the idle part of the time of all ranks, in millionths.
  uint64_t bubble_ppm() const;
};

}  // namespace hetcomm::pipeline
