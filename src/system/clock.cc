#include "src/system/clock.h"

namespace hetcomm {
namespace {

uint64_t measure() {
  const uint64_t start_ns = now_ns();
  const uint64_t start = ticks();
  uint64_t end_ns = start_ns;
  while (end_ns - start_ns < 2'000'000) end_ns = now_ns();
  const uint64_t rate = (ticks() - start) * 1000 / (end_ns - start_ns);
  return rate == 0 ? 1 : rate;
}

}  // namespace

uint64_t ticks_per_us() {
  // The rate of a machine is constant, so all contexts share one measurement.
  static const uint64_t rate = measure();
  return rate;
}

}  // namespace hetcomm
