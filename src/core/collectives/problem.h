// Problem holds the kind, ranks and lengths of a collective operation, from the point of view of
// one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "src/core/job/membership/rank_placement.h"

namespace hetcomm::collectives {

enum class Kind : uint8_t {
  kBarrier,
  kBroadcast,
  kReduce,
  kAllreduce,
  kAllgather,
  kAllgatherv,
  kReduceScatter,
  kReduceScatterv,
  kAlltoall,
  kAlltoallv,
  kGather,
  kGatherv,
  kScatter,
  kScatterv,
  kScan,
};
inline constexpr size_t kKinds = 15;

enum class Algorithm : uint8_t {
  kChosen,
  kBinomial,
  kDissemination,
  kLinear,
  kPairwise,
  kRecursiveDoubling,
  kRing,
  kTwoLevel,
};

const char* name_of(Kind kind);
const char* name_of(Algorithm algorithm);
// Returns the algorithms for |kind|, of which there is at least one.
std::span<const Algorithm> algorithms_of(Kind kind);
// Finds the algorithm for |kind| by name. If there is none, returns false, and |*known| lists the
// existing ones, separated by commas.
bool find_algorithm(Kind kind, std::string_view name, Algorithm* algorithm, std::string* known);
// Returns whether the elements of different ranks are combined.
bool reduces(Kind kind);
bool has_root(Kind kind);
// Return whether the side that is sent, or received, has a block for each rank. The blocks are in
// one buffer, or each block has its own.
bool sends_blocks(Kind kind);
bool receives_blocks(Kind kind);
// Returns whether every rank knows the lengths of all blocks.
bool blocks_are_known(Kind kind);
// Return whether the side that is sent, or received, has a separate buffer for each rank.
bool sends_many(Kind kind);
bool receives_many(Kind kind);

struct Problem {
  Kind kind = Kind::kBarrier;
  Algorithm algorithm = Algorithm::kChosen;
  bool exclusive = false;
  bool monitored = false;
  // True if a step of the reduction would round. Inputs are then combined in the order of ranks,
  // and the result is rounded once. A partial sum that is sent to another rank has elements of
  // |wide_bytes|.
  bool rounds = false;
  uint32_t ranks = 1;
  uint32_t rank = 0;
  uint32_t root = 0;
  uint64_t element_bytes = 1;
  uint64_t wide_bytes = 0;
  uint64_t bytes = 0;  // length of the buffer, or of one block if there are blocks
  const RankPlacement* placement = nullptr;  // the cluster of each rank
  // Vector variants (v): the bytes of each block. Empty if this rank does not know them.
  std::span<const uint64_t> send_blocks;
  std::span<const uint64_t> receive_blocks;

  uint64_t send_block(uint32_t block) const {
    return send_blocks.empty() ? bytes : send_blocks[block];
  }
  uint64_t receive_block(uint32_t block) const {
    return receive_blocks.empty() ? bytes : receive_blocks[block];
  }
};

// Returns the bytes of the longest block known to this rank. The result is the same on all ranks if
// blocks_are_known().
uint64_t longest_block(const Problem& problem);

}  // namespace hetcomm::collectives
