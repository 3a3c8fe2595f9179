// Shows a plan as text and as a picture.
#pragma once

#include <cstdint>
#include <string>

#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// Returns a table for each hop: which rank sends which data to which rank, and how many bytes. A
// hop has at most |most_lines| lines; the last line gives the number of omitted lines.
std::string to_text(const MovePlan& plan, uint64_t element_bytes, size_t most_lines = 64);

// Returns an SVG: a column of ranks for each layout, and a line for each message, with a width that
// reflects its bytes. Local copies are thin grey lines. Draws at most 128 ranks in a column.
std::string to_svg(const MovePlan& plan, uint64_t element_bytes);

}  // namespace hetcomm::reshard
