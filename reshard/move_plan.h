// A MovePlan moves a tensor from one layout to another in hops. Each hop takes the tensor from one
// layout to the next. Intermediate layouts are held in scratch memory.
//
// A plan is a pure function of the two layouts and of the strategy's other arguments. All ranks
// make the same plan on any processor: strategies use integers only, and break every tie by a fixed
// rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/layout.h"

namespace hetcomm::reshard {

// Copies |box| from one part of a hop's layout to a part of the next layout, over the network if
// the two parts belong to different ranks.
struct Move {
  uint32_t from = 0;  // index of the part in the layout before the hop
  uint32_t to = 0;
  Box box;
  bool adds = false;  // adds to existing data; false for the first term of a sum
  bool operator==(const Move&) const = default;
};

// Says whether a part of an intermediate layout shares the memory of a part of the source or of the
// destination. If so, it needs no scratch memory.
enum class Alias : uint8_t { kNone, kSource, kDestination };
struct Scratch {
  Alias alias = Alias::kNone;
  uint32_t part = 0;  // index of the part in the layout of the source or the destination
  bool operator==(const Scratch&) const = default;
};

struct Hop {
  // The layout that the hop produces. The last hop produces the destination's layout.
  Layout to;
  // The memory of each part of |to|. Empty for the last hop.
  std::vector<Scratch> scratch;
  // The moves, in the order in which all ranks execute them.
  std::vector<Move> moves;
  bool operator==(const Hop&) const = default;
};

// A position along one dimension at which moves begin or end inside a box.
struct Cut {
  size_t dimension = 0;
  uint64_t at = 0;
  auto operator<=>(const Cut&) const = default;
};

struct MovePlan {
  std::string strategy;
  Layout source;
  std::vector<Hop> hops;
  std::vector<Cut> cuts;  // in ascending order; the same on all ranks
  bool operator==(const MovePlan&) const = default;

  // Returns the layout from which hop |index| starts.
  const Layout& from(size_t index) const { return index == 0 ? source : hops[index - 1].to; }
  const Layout& destination() const { return hops.back().to; }
};

// Returns the number of messages in a hop: pairs of different ranks with at least one move between
// them.
size_t count_messages(const MovePlan& plan, size_t hop);
// Returns the number of elements that all hops move between different ranks.
uint64_t count_elements(const MovePlan& plan);

}  // namespace hetcomm::reshard
