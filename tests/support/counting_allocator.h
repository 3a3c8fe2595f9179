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
// From now on every allocation of this thread fails, or none more.
void fail_all_allocations(bool fail);
bool allocation_has_failed();         // since then
int64_t allocations_until_failure();  // that are still to come

// While it lives allocations of this thread neither fail nor count towards the one that does.
class AllocationsSucceed {
 public:
  AllocationsSucceed();
  ~AllocationsSucceed();
  AllocationsSucceed(const AllocationsSucceed&) = delete;
  AllocationsSucceed& operator=(const AllocationsSucceed&) = delete;

 private:
  const int64_t until_failure_;
  const bool all_fail_;
};

}  // namespace hetcomm::test
