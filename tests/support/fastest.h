// Times the fastest of several attempts. Other load can slow an attempt but never speed one up, so
// a bound on the fastest attempt holds on a busy machine too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/system/clock.h"

namespace hetcomm::test {

template <typename Work>
uint64_t fastest_ns(int tries, Work&& work) {
  uint64_t best_ns = UINT64_MAX;
  for (int i = 0; i < tries; ++i) {
    const uint64_t start_ns = now_ns();
    work();
    best_ns = std::min<uint64_t>(best_ns, now_ns() - start_ns);
  }
  return best_ns;
}

}  // namespace hetcomm::test
