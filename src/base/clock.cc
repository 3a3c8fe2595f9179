#include "src/base/clock.h"

namespace hetcomm {

uint64_t measure_ticks_per_us() {
  const uint64_t start_ns = now_ns();
  const uint64_t start = ticks();
  uint64_t end_ns = start_ns;
  while (end_ns - start_ns < 2'000'000) end_ns = now_ns();
  const uint64_t rate = (ticks() - start) * 1000 / (end_ns - start_ns);
  return rate == 0 ? 1 : rate;
}

}  // namespace hetcomm
