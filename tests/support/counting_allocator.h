// Counts what the whole program, libraries included, takes from operator new: linking the .cc
// replaces those operators. With HETCOMM_TEST_TRAP set the first one that is counted traps, for a
// debugger to look at.
#pragma once

#include <cstdint>

namespace hetcomm::test {

void start_counting_allocations();
void stop_counting_allocations();
int64_t allocations_counted();

// After |count| more allocations of this thread the next one fails, once. Negative: none.
void fail_allocation_after(int64_t count);
bool allocation_has_failed();         // since then
int64_t allocations_until_failure();  // that are still to come

}  // namespace hetcomm::test
