// Mixes words into a hash, for hash tables and for hashes that ranks compare.
#pragma once

#include <cstdint>

namespace hetcomm {

// Mixes |word| into |hash|. The result depends on the order of words. For a given |hash|, different
// words give different results, so lists of equal length that differ in one word have different
// hashes.
constexpr uint64_t mix64(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

}  // namespace hetcomm
