// Call holds the arguments of a collective operation that must be the same on all its ranks. Ranks
// compare their calls to detect differences.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "src/base/mix64.h"
#include "src/core/collectives/problem.h"
#include "src/reduce/reduce.h"

namespace hetcomm::collectives {

// Distinguishes calls of the same kind and size that must not match: an exclusive scan from an
// inclusive one, and a communicator's split from the allgather that implements it.
enum class Variant : uint8_t { kPlain, kExclusive, kSplit };

// A call is sent to other ranks as raw bytes. All ranks have the same byte order.
struct Call {
  Kind kind = Kind::kBarrier;
  Algorithm algorithm = Algorithm::kChosen;
  Variant variant = Variant::kPlain;
  uint8_t monitored = 0;
  uint32_t root = 0;
  int32_t datatype = 0;
  int32_t reduction = -1;  // -1: none
  uint64_t bytes = 0;      // length of the buffer, or of a block; 0 if it can differ between ranks
  uint64_t blocks = 0;     // hash of the lengths of all blocks, if all ranks know them
  uint64_t links = 0;      // hash of the job's link model
  double factor = 0;

  uint64_t hash() const {
    uint64_t words[sizeof(Call) / sizeof(uint64_t)];
    std::memcpy(words, this, sizeof(words));
    uint64_t hash = 0;
    for (const uint64_t word : words) hash = mix64(hash, word);
    return hash;
  }
};
static_assert(sizeof(Call) == 48);

inline uint64_t hash_blocks(std::span<const uint64_t> blocks) {
  uint64_t hash = blocks.size();
  for (const uint64_t block : blocks) hash = mix64(hash, block);
  return hash;
}

// Returns a text such as "allreduce of 64 bytes, FLOAT32, SUM".
std::string describe(const Call& call);
// Describes how two calls differ, for example "size (64 bytes, 128 bytes)".
std::string difference(const Call& one, const Call& other);

}  // namespace hetcomm::collectives
