// One mixer of words for all hashes: those of tables, and those by which ranks agree.
#pragma once

#include <cstdint>

namespace hetcomm {

// Mixes |word| into |hash|. The order of words counts. For a given |hash| no two words give the
// same result, so that lists of equal length that differ in one word never do.
constexpr uint64_t mix64(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

}  // namespace hetcomm
