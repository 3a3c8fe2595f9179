// Sums and products of bytes and times that stop at a bound instead of overflowing.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hetcomm::reshard {

inline constexpr uint64_t kCap = uint64_t{1} << 62;

inline uint64_t capped_sum(uint64_t one, uint64_t other) {
  return std::min(std::min(one, kCap) + std::min(other, kCap), kCap);
}
inline uint64_t capped_product(uint64_t one, uint64_t other) {
  return one == 0 || other <= kCap / one ? one * other : kCap;
}

}  // namespace hetcomm::reshard
