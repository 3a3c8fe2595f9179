// Reads monotonic time. now_ns() reads the kernel's clock in nanoseconds (about 20 ns a call).
// ticks() reads the processor's counter (a few ns a call). Compare ticks only with other ticks.
#pragma once

#include <cstdint>
#include <ctime>

namespace hetcomm {

inline uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return now_ns();
#endif
}

// Returns the number of ticks per microsecond. The first call takes about 2 ms to measure it.
uint64_t ticks_per_us();

// Tells the processor that the caller is in a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline constexpr uint64_t kForever = UINT64_MAX;

// Returns |now| + |timeout|, or kForever if the sum would overflow.
inline uint64_t deadline_after(uint64_t now, uint64_t timeout) {
  return timeout > kForever - now ? kForever : now + timeout;
}

}  // namespace hetcomm
