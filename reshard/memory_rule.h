// Checks the memory rule: no element of a rank's destinations is written twice, and no destination
// overwrites a source. Sources may share memory. Where ranges of memory overlap, the boxes are
// compared element by element, so boxes that interleave can share a buffer.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/box.h"
#include "reshard/layout.h"
#include "reshard/strided_addresses.h"
#include "src/base/status.h"

namespace hetcomm::reshard {

// Checks that no two boxes of a rank overlap in its memory. Fails with INVALID_ARGUMENT and an
// error text that names the rank and the box.
Status check_destination(const Layout& layout);

// A PlacedBox is a box that a rank holds. Its addresses are in bytes from the beginning of the
// rank's buffer.
struct PlacedBox {
  Box box;
  uint32_t term = 0;
  StridedAddresses addresses;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t furthest = 0;  // maximum end of this box and all boxes before it
};

// A Footprint holds the boxes of one rank in its buffer, sorted by |begin|.
struct Footprint {
  std::vector<PlacedBox> boxes;
  uint64_t begin = 0;
  uint64_t end = 0;  // equal to |begin| if there are no boxes
};
Footprint footprint_of(const Layout& layout, int rank, uint64_t element_bytes);

// Returns whether |one| and |other| share a byte. The buffer of |other| begins |distance| bytes
// after that of |one|. With |may_stay|, two boxes that hold their common elements at the same
// addresses do not count. Allocates no memory.
Meeting find_meeting(const Footprint& one, const Footprint& other, int64_t distance,
                     bool may_stay = false);

}  // namespace hetcomm::reshard
