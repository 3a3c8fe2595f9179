// Counts what the whole program, libraries included, takes from operator new: linking the .cc
// replaces those operators. With HETCOMM_TEST_TRAP set the first one that is counted traps, for a
// debugger to look at.
#pragma once

#include <cstdint>

namespace hetcomm::test {

void start_counting_allocations();
void stop_counting_allocations();
int64_t allocations_counted();

}  // namespace hetcomm::test
