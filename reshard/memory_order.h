// Finds the order of a tensor's dimensions in memory, so that messages hold elements as both sides
// hold them.
#pragma once

#include <array>
#include <cstdint>

#include "reshard/box.h"
#include "reshard/layout.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The dimensions of a tensor from the outermost, with the largest stride, to the innermost. Entries
// beyond the number of dimensions are equal to their index.
using MemoryOrder = std::array<uint8_t, kMaxDimensions>;

// Returns an order in which every part of both layouts holds its elements: of several, the one that
// is closest to C order (0, 1, 2, ...). Returns C order if there is none. The strides of dimensions
// with one element, and the order of the parts, do not matter.
MemoryOrder memory_order(const Layout& source, const Layout& destination);

// Returns |plan| with the dimensions of the tensor in |order|. Scratch memory is dense in |order|.
MovePlan reordered(const MovePlan& plan, const MemoryOrder& order);

}  // namespace hetcomm::reshard
