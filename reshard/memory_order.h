// Finds the order of a tensor's dimensions in memory, so that messages hold elements as both sides
// hold them.
#pragma once

#include <array>
#include <cstdint>

#include "reshard/box.h"
#include "reshard/layout.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The dimensions of a tensor from the outermost to the innermost: entry i is the dimension with the
// i-th largest stride. Entries beyond the number of dimensions are equal to their index.
using MemoryOrder = std::array<uint8_t, kMaxDimensions>;

// Returns the order in which every part of both layouts holds its elements. Returns C order (0, 1,
// 2, ...) if there is no such order, or if C order is one.
MemoryOrder memory_order(const Layout& source, const Layout& destination);

// Returns |plan| with the dimensions of the tensor in |order|. Scratch memory is dense in |order|.
MovePlan reordered(const MovePlan& plan, const MemoryOrder& order);

}  // namespace hetcomm::reshard
