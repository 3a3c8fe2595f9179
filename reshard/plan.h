// A Plan moves a tensor from one layout to another in stages. Each stage takes the tensor from one
// layout to the next; what lies between source and destination is held in scratch memory.
//
// Plans are pure functions of the two layouts and of what else a strategy is given. All ranks and
// all processors make the same plan: integers only, and ties go to the smaller rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/layout.h"

namespace hetcomm::reshard {

// Copies |box| from one part of a stage's layout to one of the next, over the network where these
// belong to different ranks.
struct Move {
  uint32_t from = 0;  // index of the part
  uint32_t to = 0;
  Box box;
  bool adds = false;  // to what is there; the first term of a sum is copied
  bool operator==(const Move&) const = default;
};

// A part of a layout between source and destination may be the same memory as a part of the source
// or of the destination: then it needs no scratch memory.
enum class Alias : uint8_t { kNone, kSource, kDestination };
struct Scratch {
  Alias alias = Alias::kNone;
  uint32_t part = 0;  // of the source's or the destination's layout
  bool operator==(const Scratch&) const = default;
};

struct Stage {
  // Where the stage leads. That of the last stage is the destination's layout.
  Layout to;
  // Of each part of |to|; empty for the last stage.
  std::vector<Scratch> scratch;
  // In the order in which all ranks carry them out.
  std::vector<Move> moves;
  bool operator==(const Stage&) const = default;
};

struct Plan {
  std::string strategy;
  Layout source;
  std::vector<Stage> stages;
  bool operator==(const Plan&) const = default;

  // The layout that stage |index| starts from.
  const Layout& from(size_t index) const { return index == 0 ? source : stages[index - 1].to; }
  const Layout& destination() const { return stages.back().to; }
};

// The messages of a stage: pairs of different ranks with at least one move from one to the other.
size_t count_messages(const Plan& plan, size_t stage);
// The elements that all stages move between different ranks.
uint64_t count_elements(const Plan& plan);

}  // namespace hetcomm::reshard
