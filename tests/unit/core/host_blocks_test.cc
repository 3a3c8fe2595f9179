// Cached blocks of host memory: a block is reused only for its size, and the cache stays within its
// limit.
#include "src/core/device/host_blocks.h"

#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/counting_allocator.h"

namespace hetcomm {
namespace {

using test::allocations_counted;
using test::start_counting_allocations;
using test::stop_counting_allocations;

constexpr uint64_t kKiB = 1024;

int64_t allocations_of_taking(HostBlocks& blocks, uint64_t bytes) {
  start_counting_allocations();
  HostBlocks::Block block = blocks.take(bytes);
  const int64_t found = allocations_counted();
  stop_counting_allocations();
  EXPECT_GE(block.size, bytes);
  block.memory[block.size - 1] = std::byte{1};
  blocks.give(std::move(block));
  return found;
}

TEST(HostBlocks, ReturnedBlockIsReusedOnlyForSimilarSizes) {
  HostBlocks blocks(100 * kKiB);
  blocks.add_user();
  EXPECT_GT(allocations_of_taking(blocks, 10 * kKiB), 0);
  for (const uint64_t bytes : {10 * kKiB, 9 * kKiB, 5 * kKiB}) {
    EXPECT_EQ(allocations_of_taking(blocks, bytes), 0) << bytes;
  }
  // One block is too short, the other much too long:
  EXPECT_GT(allocations_of_taking(blocks, 11 * kKiB), 0);
  EXPECT_GT(allocations_of_taking(blocks, 4 * kKiB), 0);
}

TEST(HostBlocks, CacheKeepsNoMoreThanItsLimit) {
  HostBlocks blocks(100 * kKiB);
  blocks.add_user();
  std::vector<HostBlocks::Block> used;
  for (int i = 0; i < 20; ++i) used.push_back(blocks.take(10 * kKiB));
  start_counting_allocations();
  for (HostBlocks::Block& block : used) blocks.give(std::move(block));
  EXPECT_EQ(allocations_counted(), 0) << "giving needs no memory";
  stop_counting_allocations();
  used.clear();
  int fresh = 0;
  for (int i = 0; i < 20; ++i) {
    start_counting_allocations();
    used.push_back(blocks.take(10 * kKiB));
    fresh += allocations_counted() > 0;
    stop_counting_allocations();
  }
  EXPECT_GE(fresh, 10);
}

// A block that exceeds the cache's limit is reused, in addition to the others.
TEST(HostBlocks, OversizedBlockIsKeptWhileTheCacheHasAUser) {
  HostBlocks blocks(100 * kKiB);
  blocks.add_user();
  blocks.add_user();
  EXPECT_GT(allocations_of_taking(blocks, 10 * kKiB), 0);
  EXPECT_GT(allocations_of_taking(blocks, 900 * kKiB), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(allocations_of_taking(blocks, 900 * kKiB), 0);
    EXPECT_EQ(allocations_of_taking(blocks, 10 * kKiB), 0);
  }
  blocks.drop_user();
  EXPECT_EQ(allocations_of_taking(blocks, 900 * kKiB), 0);
  blocks.drop_user();
  blocks.add_user();
  EXPECT_GT(allocations_of_taking(blocks, 900 * kKiB), 0);
  EXPECT_GT(allocations_of_taking(blocks, 10 * kKiB), 0);
}

TEST(HostBlocks, BlockRespectsTheCallersSizeLimit) {
  HostBlocks blocks(100 * kKiB);
  blocks.add_user();
  blocks.give(blocks.take(16 * kKiB));
  EXPECT_EQ(blocks.take(10 * kKiB, 12 * kKiB).size, 10 * kKiB);
  EXPECT_EQ(blocks.take(10 * kKiB, 5 * kKiB).size, 10 * kKiB);
  EXPECT_EQ(blocks.take(10 * kKiB, 20 * kKiB).size, 16 * kKiB);
}

}  // namespace
}  // namespace hetcomm
