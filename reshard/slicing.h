// The share of one rank in a move plan: messages and strided copies, in slices.
//
// The tensor is cut in slices that are plans of their own: a slice needs in one hop only data of
// the same slice of the hop before. Each rank has a share of every slice. All ranks go through the
// phases, a hop of a slice each, in one order: a rank that is at the earliest phase can always go
// on, even if only one message fits between two ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// kSum: where a phase forms sums in a wider type, before they are rounded.
enum class Space : uint8_t { kSource, kDestination, kScratch, kSum };

// Elements at regular distances: the one with index i lies at offset + sum(i[d] * strides[d]).
// Their order, in a message too, is that of the indices, the last one fastest.
struct StridedBox {
  Space memory = Space::kScratch;
  uint64_t offset = 0;
  size_t dimensions = 0;  // as few as there can be; 0: one element
  Numbers extents{};
  Numbers strides{};

  uint64_t elements() const;
  bool operator==(const StridedBox&) const = default;
};

// The elements that go to one rank, or come from it. A message has its boxes behind each other.
struct Message {
  int peer = 0;
  uint64_t elements = 0;
  std::vector<StridedBox> boxes;  // where the bytes are taken from; empty if it is received
  bool operator==(const Message&) const = default;
};

// Elements that are put in their place.
struct Arrival {
  int receive = -1;       // index of Phase::receives; -1: from this rank's own memory
  uint64_t position = 0;  // of the elements in the message
  StridedBox from;        // in this rank's memory, if they are its own
  StridedBox to;
  bool adds = false;
  bool is_term = false;  // of a sum
  bool operator==(const Arrival&) const = default;
};

// Sends may start when the arrivals of the hop before are done, of the same slice.
struct Phase {
  uint32_t slice = 0;
  uint32_t hop = 0;
  std::vector<Message> sends;     // in the order of peers
  std::vector<Message> receives;  // in the order of peers
  std::vector<Arrival> arrivals;  // in this order: sums are rounded alike on all runs
  uint64_t sum_elements = 0;      // of kSum
  bool operator==(const Phase&) const = default;
};

struct Slicing {
  int rank = 0;
  uint64_t scratch_elements = 0;
  uint64_t largest_message = 0;  // elements
  std::vector<Phase> phases;     // without those in which the rank has nothing to do
  bool operator==(const Slicing&) const = default;
};

// |plan| has at least the moves of |rank|. |slices|: at least 1; fewer are made where the tensor
// has too few elements. All ranks give the same number. |rounds|: sums are formed in kSum, and put
// where they belong when all terms of the slice have been added.
Slicing slicing_of(const MovePlan& plan, int rank, uint32_t slices, bool rounds = false);

}  // namespace hetcomm::reshard
