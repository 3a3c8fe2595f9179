#include "src/core/collectives/chunk_layout.h"

#include <unistd.h>

#include <bit>
#include <numeric>
#include <span>

#include "src/core/collectives/shared_arena.h"

namespace hetcomm::collectives {
namespace {

// Up to this length, every rank of an allreduce reduces all elements, after one round of tickets.
// Longer data is reduced in shares, with two rounds. Two ranks have a higher limit, because each
// reads the same amount from the other in both variants, and shares only halve the summing.
constexpr uint64_t kOnePhaseBytes = 4096;
constexpr uint64_t kOnePhaseBytesOfTwo = 128u << 10;
// Shorter data is always at the same position in the slots, because its transfer time depends on
// the latency of a cache line and on the cache that contains the line.
constexpr uint64_t kMinShiftedBytes = 4096;

// Returns the size of the last-level cache in bytes, or a usual size if it is unknown.
uint64_t last_cache_bytes() {
  static const uint64_t bytes = [] {
    constexpr uint64_t kUsual = 32u << 20;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (found > 0) return static_cast<uint64_t>(found);
#endif
    return kUsual;
  }();
  return bytes;
}

// Returns the number of bytes that all ranks send and receive together, assuming that the other
// ranks have as much data as this one.
uint64_t moved_bytes(const Problem& problem) {
  const auto total = [&problem](bool has_blocks, std::span<const uint64_t> blocks) {
    if (!has_blocks) return problem.bytes;
    return blocks.empty() ? problem.bytes * problem.ranks
                          : std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
  };
  const uint64_t sent = total(sends_blocks(problem.kind), problem.send_blocks);
  const uint64_t received = total(receives_blocks(problem.kind), problem.receive_blocks);
  switch (problem.kind) {
    case Kind::kBroadcast:
      return problem.ranks * received;
    case Kind::kGather:
    case Kind::kGatherv:
    case Kind::kScatter:
    case Kind::kScatterv:
      // The other ranks together have as many bytes as the root.
      return 2 * std::max(sent, received);
    default:
      return problem.ranks * (sent + received);
  }
}

}  // namespace

uint64_t ChunkLayout::longest_through_slots(const Problem& problem) const {
  if (!sends_many(problem.kind) && !receives_many(problem.kind)) return problem.bytes;
  if (problem.kind == Kind::kGatherv) return index_ == problem.root ? 0 : problem.bytes;
  const std::span<const uint64_t> blocks =
      problem.kind == Kind::kAllgatherv ? problem.receive_blocks : problem.send_blocks;
  uint64_t longest = 0;
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    // A rank's own block does not go through a slot. It is still included if all ranks know the
    // lengths, so that all ranks compute the same value.
    if (!tells_lengths_ || block != index_) longest = std::max(longest, blocks[block]);
  }
  return longest;
}

void ChunkLayout::start(const Problem& problem, uint64_t turn) {
  const auto round_up = [](uint64_t bytes) {
    return bytes > UINT64_MAX - kLine ? UINT64_MAX : (bytes + kLine - 1) / kLine * kLine;
  };
  const Kind kind = problem.kind;
  two_phases_ = kind == Kind::kAllreduce &&
                problem.bytes > (ranks_ > 2 ? kOnePhaseBytes : kOnePhaseBytesOfTwo);
  tells_lengths_ = !blocks_are_known(kind);
  longest_ = longest_through_slots(problem);
  region_head_ = tells_lengths_ ? kLine : 0;
  const uint64_t regions = sends_blocks(kind) ? ranks_ : 1;
  const uint64_t most = ChunkSlot::kBytes / regions / kLine * kLine - region_head_;
  chunk_bytes_ = tells_lengths_ ? most : std::clamp(round_up(longest_), kLine, most);
  const uint64_t used = std::bit_ceil(regions * (region_head_ + chunk_bytes_));
  shift_ = used < kMinShiftedBytes ? 0 : turn * used % ChunkSlot::kBytes;
  exceeds_cache_ = chunk_bytes_ >= kMinStreamedBytes && moved_bytes(problem) >= last_cache_bytes();
}

void ChunkLayout::start_long(const Problem& problem, uint64_t slot_bytes) {
  constexpr uint64_t kPage = 4096;
  two_phases_ = problem.kind == Kind::kAllreduce;
  tells_lengths_ = exceeds_cache_ = false;
  longest_ = longest_through_slots(problem);
  region_head_ = shift_ = 0;
  const uint64_t regions = sends_blocks(problem.kind) ? ranks_ : 1;
  chunk_bytes_ = slot_bytes / regions / kPage * kPage;
}

}  // namespace hetcomm::collectives
