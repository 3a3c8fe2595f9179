// Lets threads of this process sleep on a 32-bit word.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include "src/system/clock.h"

namespace hetcomm {

// Sleeps while |word| equals |expected|, for at most |timeout_ns|. May wake spuriously.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000);
  time.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000);
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, timeout_ns == kForever ? nullptr : &time,
          nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hetcomm
