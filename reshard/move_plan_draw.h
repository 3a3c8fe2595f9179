// A plan as text and as a picture.
#pragma once

#include <cstdint>
#include <string>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// A table for each hop: who sends what to whom, and how many bytes. At most |most_lines| lines a
// hop; the last one says how many were left out.
std::string to_text(const MovePlan& plan, uint64_t element_bytes, size_t most_lines = 64);

// An SVG: a column of ranks for each layout on the way, and a line for each message, as wide as its
// bytes say. Local copies are thin grey lines. At most 128 ranks of a column are drawn.
std::string to_svg(const MovePlan& plan, uint64_t element_bytes);

}  // namespace hetcomm::reshard
