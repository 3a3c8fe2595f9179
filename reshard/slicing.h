// Computes the share of one rank in a move plan: its messages and strided copies in each slice.
//
// The tensor is cut into slices that are separate plans: in each hop, a slice needs only data of
// the same slice from the previous hop. Slices have about the same size, and most ranks have a
// share of every slice. A phase is one hop of one slice. All ranks process the phases in the same
// order. The rank at the earliest phase can always continue, even if only one message fits between
// two ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// Kinds of memory. kSum is memory for sums in a wider type, which are rounded when the phase is
// done.
enum class Space : uint8_t { kSource, kDestination, kScratch, kSum };

// A StridedBox holds elements at regular distances. The element with index i is at offset +
// sum(i[d] * strides[d]). Elements are ordered by index, last dimension fastest, also within a
// message. The dimensions are in the tensor's memory order (memory_order.h).
struct StridedBox {
  Space memory = Space::kScratch;
  uint64_t offset = 0;
  size_t dimensions = 0;  // as few as possible; 0 for a single element
  Numbers extents{};
  Numbers strides{};

  uint64_t elements() const;
  bool operator==(const StridedBox&) const = default;
};

// A Message carries the elements that go to or come from one rank. The elements of a box directly
// follow those of the previous box.
struct Message {
  int peer = 0;
  uint64_t elements = 0;
  std::vector<StridedBox> boxes;  // memory to send from; empty for a receive
  bool operator==(const Message&) const = default;
};

// An Arrival says which elements this rank puts into place, from a message or from its own memory.
struct Arrival {
  int receive = -1;       // index in Phase::receives; -1: from this rank's own memory
  uint64_t position = 0;  // position of the elements in the message
  StridedBox from;        // source in this rank's own memory, if |receive| is -1
  StridedBox to;
  bool adds = false;
  bool is_term = false;  // a term of a sum
  bool operator==(const Arrival&) const = default;
};

// A Phase is one hop of one slice. Its sends can start when the arrivals of the slice's previous
// hop are done.
struct Phase {
  uint32_t slice = 0;
  uint32_t hop = 0;
  std::vector<Message> sends;     // ordered by peer
  std::vector<Message> receives;  // ordered by peer
  std::vector<Arrival> arrivals;  // in a fixed order, so that sums always round identically
  uint64_t sum_elements = 0;      // number of elements in kSum
  bool operator==(const Phase&) const = default;
};

struct Slicing {
  int rank = 0;
  uint64_t scratch_elements = 0;
  uint64_t largest_message = 0;  // in elements
  std::vector<Phase> phases;     // only phases in which this rank has work
  bool operator==(const Slicing&) const = default;
};

// Returns the share of |rank| in |plan|, which contains at least the moves of |rank|. |slices| is
// at least 1, and is the same on all ranks. Makes fewer slices if no dimension can be cut into so
// many, or if the layouts have thousands of parts. With |rounds|, sums are formed in kSum, and
// stored in their final type when all terms of the slice have been added.
Slicing slicing_of(const MovePlan& plan, int rank, uint32_t slices, bool rounds = false);

}  // namespace hetcomm::reshard
