// Counts the allocations of the whole program, libraries included, through operator new: linking
// the .cc replaces those operators. If HETCOMM_TEST_TRAP is set, the first counted allocation
// traps, so that a debugger can inspect it.
#pragma once

#include <cstdint>

namespace hetcomm::test {

void start_counting_allocations();
void stop_counting_allocations();
int64_t allocations_counted();

// The allocation after |count| more on this thread fails, once. A negative count disables this.
void fail_allocation_after(int64_t count);
// Makes every further allocation of this thread fail, or stops that.
void fail_all_allocations(bool fail);
bool allocation_has_failed();         // since the last call above
int64_t allocations_until_failure();  // remaining

// While this object lives, allocations of this thread neither fail nor count towards the failing
// one.
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
