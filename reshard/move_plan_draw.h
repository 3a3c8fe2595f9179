// Shows a plan as text and as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/move_plan.h"
#include "src/base/status.h"

namespace hetcomm::reshard {

// Returns a table for each hop. Each line gives the number of bytes that one rank sends to another,
// and their boxes. A table has at most |most_lines| such lines. If more are needed, a last line
// gives the number of omitted ones.
std::string to_text(const MovePlan& plan, uint64_t element_bytes, size_t most_lines = 64);

// Returns an SVG with a column of ranks for each layout, and a line for each message, whose width
// reflects its bytes. Local copies are thin grey lines. Draws at most 128 ranks in a column.
std::string to_svg(const MovePlan& plan, uint64_t element_bytes);

// The plan of one tensor, with the size of an element of the tensor.
struct SizedPlan {
  const MovePlan* plan = nullptr;
  uint64_t element_bytes = 0;
};

// Show the plans of one or more tensors. to_svg() fails with UNSUPPORTED if there are several.
std::string to_text(const std::vector<SizedPlan>& plans);
Result<std::string> to_svg(const std::vector<SizedPlan>& plans);

}  // namespace hetcomm::reshard
