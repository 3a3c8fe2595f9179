// Finds an order of a tensor's dimensions in which both sides store the elements, so that messages
// can use the same order.
#pragma once

#include <array>
#include <cstdint>

#include "reshard/box.h"
#include "reshard/layout.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The dimensions of a tensor from the outermost, with the largest stride, to the innermost. Entry i
// is i beyond the number of dimensions.
using MemoryOrder = std::array<uint8_t, kMaxDimensions>;

// Returns the order in which every part of both layouts stores its elements. If several orders fit,
// returns the one that is closest to C order (0, 1, 2, ...). If none fits, returns C order. Strides
// of dimensions with one element have no effect, nor does the order of the parts.
MemoryOrder memory_order(const Layout& source, const Layout& destination);

// Returns |plan| with the dimensions of the tensor permuted to |order|. Scratch memory becomes
// dense in |order|.
MovePlan reordered(const MovePlan& plan, const MemoryOrder& order);

}  // namespace hetcomm::reshard
