#include "tests/support/counting_allocator.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
thread_local int64_t until_failure = -1;
thread_local bool failed = false;
thread_local bool all_fail = false;
thread_local int64_t next_fail = 0;

void* counted(std::size_t size, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (std::getenv("HETCOMM_TEST_TRAP") != nullptr) __builtin_trap();
  }
  if (all_fail || next_fail > 0) {
    if (next_fail > 0) --next_fail;
    failed = true;
    return nullptr;
  }
  if (until_failure >= 0 && until_failure-- == 0) {
    failed = true;
    return nullptr;
  }
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(size)
             : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void* counted_or_throw(std::size_t size, std::size_t alignment) {
  void* memory = counted(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return counted_or_throw(size, 1); }
void* operator new[](std::size_t size) { return counted_or_throw(size, 1); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted_or_throw(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace hetcomm::test {

void start_counting_allocations() {
  allocations = 0;
  counting = true;
}
void stop_counting_allocations() { counting = false; }
int64_t allocations_counted() { return allocations; }

void fail_allocation_after(int64_t count) {
  until_failure = count;
  failed = false;
}
void fail_all_allocations(bool fail) {
  all_fail = fail;
  if (fail) failed = false;
}
void fail_next_allocations(int64_t count) {
  next_fail = count;
  failed = false;
}
bool allocation_has_failed() { return failed; }
int64_t allocations_until_failure() { return until_failure; }

AllocationsSucceed::AllocationsSucceed()
    : until_failure_(std::exchange(until_failure, -1)),
      all_fail_(std::exchange(all_fail, false)),
      next_fail_(std::exchange(next_fail, 0)) {}
AllocationsSucceed::~AllocationsSucceed() {
  until_failure = until_failure_;
  all_fail = all_fail_;
  next_fail = next_fail_;
}

}  // namespace hetcomm::test
