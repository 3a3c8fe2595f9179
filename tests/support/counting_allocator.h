// Counts every allocation that the program and its libraries make through operator new. Linking the
// .cc replaces those operators. If HETCOMM_TEST_TRAP is set, the first counted allocation traps, so
// that a debugger can inspect it.
#pragma once

#include <cstdint>

namespace hetcomm::test {

void start_counting_allocations();
void stop_counting_allocations();
int64_t allocations_counted();

// Lets |count| more allocations of this thread succeed and the next one fail. A negative count
// disables the failure.
void fail_allocation_after(int64_t count);
// Starts or stops failing every allocation of this thread.
void fail_all_allocations(bool fail);
// The next |count| allocations of this thread fail, and those after them succeed.
void fail_next_allocations(int64_t count);
bool allocation_has_failed();         // since the last call that set failures
int64_t allocations_until_failure();  // before the failing one

// While this object lives, this thread's allocations neither fail nor count towards
// fail_allocation_after().
class AllocationsSucceed {
 public:
  AllocationsSucceed();
  ~AllocationsSucceed();
  AllocationsSucceed(const AllocationsSucceed&) = delete;
  AllocationsSucceed& operator=(const AllocationsSucceed&) = delete;

 private:
  const int64_t until_failure_;
  const bool all_fail_;
  const int64_t next_fail_;
};

}  // namespace hetcomm::test
