// A Program is what one rank does to move a list of tensors: its slicings, joined and in bytes.
//
// Short tensors go together, so that there is one message between two ranks for many of them. What
// goes together is a bundle: a slice of a long tensor, or several short tensors. Bundles take the
// place of slices in the order of a slicing (reshard/slicing.h). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reshard/memory_rule.h"
#include "reshard/move_plan.h"
#include "reshard/slicing.h"
#include "src/base/status.h"
#include "src/reshard/region.h"

namespace hetcomm::reshard {

// Bytes that a program moves in one message.
struct ProgramMessage {
  uint32_t track = 0;  // index
  uint32_t place = 0;  // among the messages of the track
  uint64_t bytes = 0;
  // Where the bytes come from or go to. Those received have none where something is added.
  std::vector<Region> regions;
  // Long rows, few enough, that are neither converted nor added: the transports can take them as
  // they lie.
  bool is_direct = false;
};

struct ProgramArrival {
  int receive = -1;       // index of ProgramPhase::receives; -1: from this rank's own memory
  uint64_t position = 0;  // byte of the message
  Region from;            // if it is this rank's own
  Region to;
  bool adds = false;
  bool is_term = false;  // of a sum: what is received has the type of the source
};

struct ProgramPhase {
  uint32_t bundle = 0;
  uint32_t hop = 0;
  int32_t after = -1;  // the phase whose arrivals this one sends on; -1: none
  std::vector<ProgramMessage> sends;
  std::vector<ProgramMessage> receives;
  std::vector<ProgramArrival> arrivals;
  uint64_t sum_bytes = 0;  // host memory in which the phase forms sums
};

// The messages to or from one rank in one hop, which keep their order.
struct ProgramTrack {
  int peer = 0;
  uint32_t hop = 0;
  bool sends = false;
  uint32_t messages = 0;
  uint64_t most_bytes = 0;
};

// The part of one tensor's source or destination that a program uses.
struct ProgramSide {
  uint64_t bytes = 0;  // that the buffer has at least; 0: this rank has no part
  uint64_t used_begin = 0;
  uint64_t used_end = 0;    // nothing is used where these are equal
  bool is_added = false;    // the processor adds what is here, or adds to it
  uint64_t used_bytes = 0;  // in all regions together
  uint64_t rows = 0;        // of these
  uint64_t planes = 0;      // of two dimensions of rows, which a device may copy at once
  Footprint boxes{};        // of this rank
  bool stays = false;       // elements that source and destination have at one place stay there
};

// The element types of a tensor.
struct TypePair {
  ElementType source{};
  ElementType destination{};
  Overflow overflow = Overflow::kSaturates;
};

// Says how the elements of a tensor are converted and summed on their way.
struct Conversion {
  TypePair types;
  // The destination has the sum of terms, which are sent as they are. Other elements are converted
  // by the sender.
  bool is_sum = false;
  ElementType sum_type{};  // in which it is formed
  uint32_t divisor = 1;    // what it is divided by

  ElementType type_of(Space memory) const {
    return memory == Space::kSource ? types.source
           : memory == Space::kSum  ? sum_type
                                    : types.destination;
  }
  // Elements that are sent from |memory| have this type.
  ElementType sent_type(Space memory) const {
    return memory == Space::kSource && is_sum ? types.source : types.destination;
  }
  bool converts(Space memory) const { return type_of(memory) != sent_type(memory); }
  // Whether sums need memory of their own, since they are rounded or divided when they are whole.
  bool rounds() const { return is_sum && (sum_type != types.destination || divisor > 1); }
};
Conversion conversion_of(const MovePlan& plan, const TypePair& types);

struct Program {
  std::vector<Conversion> tensors;
  std::vector<ProgramPhase> phases;
  std::vector<ProgramTrack> tracks;
  std::vector<ProgramSide> sources;       // by tensor
  std::vector<ProgramSide> destinations;  // by tensor
  uint64_t scratch_bytes = 0;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
};

// One tensor on its way.
struct Passage {
  const MovePlan* plan = nullptr;  // with at least the moves of the rank
  TypePair types;
};

struct ProgramOptions {
  int rank = 0;
  // A bundle has about so many bytes of its tensors, over all ranks. All ranks say the same.
  uint64_t bundle_bytes = 0;
  // Rows of messages to and from ranks of this host, and of others, that need not be packed.
  uint64_t least_row_near = 4u << 10;
  uint64_t least_row_far = 32u << 10;
  std::vector<bool> near;  // by rank
};

Program make_program(const std::vector<Passage>& passages, const ProgramOptions& options);

}  // namespace hetcomm::reshard
