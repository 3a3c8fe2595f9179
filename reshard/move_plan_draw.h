// A plan as text and as a picture.
#pragma once

#include <cstdint>
#include <string>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// A table for each hop: which rank sends what to which rank, and how many bytes. A hop has at most
// |most_lines| lines; the last one gives the number of omitted lines.
std::string to_text(const MovePlan& plan, uint64_t element_bytes, size_t most_lines = 64);

// An SVG: a column of ranks for each layout on the way, and a line for each message, with a width
// that reflects its bytes. Local copies are thin grey lines. Draws at most 128 ranks of a column.
std::string to_svg(const MovePlan& plan, uint64_t element_bytes);

}  // namespace hetcomm::reshard
