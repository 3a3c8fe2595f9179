// A Program is one rank's work to move a list of tensors. It combines the slicings of the tensors
// (reshard/slicing.h), and counts in bytes.
//
// Tensors are moved in bundles. A bundle is either a slice of a long tensor, or several short
// tensors, which share a message between two ranks. Phases have the same order as in a slicing,
// with bundles in place of slices. The functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reshard/element_types.h"
#include "reshard/memory_rule.h"
#include "reshard/move_plan.h"
#include "reshard/slicing.h"
#include "src/base/status.h"
#include "src/reshard/region.h"

namespace hetcomm::reshard {

// The bytes that are sent or received in one message.
struct ProgramMessage {
  uint32_t track = 0;     // index of the track
  uint32_t position = 0;  // position among the messages of the track
  uint64_t bytes = 0;
  // The memory to send from or receive into. Empty for a received message if the processor adds,
  // converts or sums any of its elements.
  std::vector<Region> regions;
  // True if the transports can access the rows in place: the rows are few and long, and are neither
  // converted nor added.
  bool is_direct = false;
};

struct ProgramArrival {
  int receive = -1;       // index in ProgramPhase::receives; -1: from this rank's own memory
  uint64_t position = 0;  // byte offset in the message
  Region from;            // source region in this rank's own memory
  Region to;
  bool adds = false;
  bool is_term = false;  // a term of a sum; a received term has the source's type
};

struct ProgramPhase {
  uint32_t bundle = 0;
  uint32_t hop = 0;
  int32_t after = -1;  // the phase whose arrivals this phase sends; -1: none
  std::vector<ProgramMessage> sends;
  std::vector<ProgramMessage> receives;
  std::vector<ProgramArrival> arrivals;
  uint64_t sum_bytes = 0;  // host memory in which the phase forms sums
};

// The messages to or from one rank in one hop. They are transferred in order.
struct ProgramTrack {
  int peer = 0;
  uint32_t hop = 0;
  bool sends = false;
  uint32_t messages = 0;
  uint64_t most_bytes = 0;
};

// The part of one tensor's source or destination that a program uses.
struct ProgramSide {
  uint64_t bytes = 0;  // minimum size of the buffer; 0 if this rank has no part
  uint64_t used_begin = 0;
  uint64_t used_end = 0;    // equal to |used_begin| if nothing is used
  bool is_added = false;    // the processor adds this data, or adds to it
  uint64_t used_bytes = 0;  // total bytes of all regions
  uint64_t rows = 0;        // total rows of all regions
  uint64_t planes = 0;      // total planes of all regions; some devices copy a plane at once
  Footprint boxes{};        // boxes of this rank
  bool stays = false;  // elements with the same address in source and destination are not moved
};

// Says how the elements of a tensor are converted and summed.
struct Conversion {
  TypePair types;
  // True if the destination is the sum of several terms. Terms are sent unconverted. If there is no
  // sum, the sender converts.
  bool is_sum = false;
  ElementType sum_type{};  // type in which the sum is formed
  uint32_t divisor = 1;    // the sum is divided by this

  ElementType type_of(Space memory) const {
    return memory == Space::kSource ? types.source
           : memory == Space::kSum  ? sum_type
                                    : types.destination;
  }
  // Returns the type of elements sent from |memory|.
  ElementType sent_type(Space memory) const {
    return memory == Space::kSource && is_sum ? types.source : types.destination;
  }
  bool converts(Space memory) const { return type_of(memory) != sent_type(memory); }
  // Returns whether sums need separate memory, because they are rounded or divided once they are
  // complete.
  bool rounds() const { return is_sum && (sum_type != types.destination || divisor > 1); }
};
Conversion conversion_of(const MovePlan& plan, const TypePair& types);

struct Program {
  std::vector<Conversion> tensors;
  std::vector<ProgramPhase> phases;
  std::vector<ProgramTrack> tracks;
  std::vector<ProgramSide> sources;       // indexed by tensor
  std::vector<ProgramSide> destinations;  // indexed by tensor
  uint64_t scratch_bytes = 0;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
};

// One tensor and its plan.
struct Passage {
  const MovePlan* plan = nullptr;  // contains at least this rank's moves
  TypePair types;
};

struct ProgramOptions {
  int rank = 0;
  // The approximate size of the tensors in one bundle, over all ranks. All ranks specify the same
  // value.
  uint64_t bundle_bytes = 0;
  // Messages whose rows have at least this many bytes on average are sent without packing.
  // |least_row_near| is for messages with |near| ranks, |least_row_far| for messages with all
  // others.
  uint64_t least_row_near = 4u << 10;
  uint64_t least_row_far = 32u << 10;
  std::vector<bool> near;  // indexed by rank: true if it is on this host
};

Program make_program(const std::vector<Passage>& passages, const ProgramOptions& options);

}  // namespace hetcomm::reshard
