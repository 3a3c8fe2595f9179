// Reused indices: returning an index never allocates, however many there are. An index that was not
// removed from the free list is returned again.
#include "src/base/free_index.h"

#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

TEST(FreeIndex, ReturningAnIndexNeverAllocates) {
  std::vector<int> table;
  std::vector<uint32_t> free;
  for (uint32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(next_free_index(table, free), i);
    ASSERT_EQ(next_free_index(table, free), i) << "it was not taken";
    free.pop_back();
    ASSERT_EQ(table.size(), i + 1);
    ASSERT_GE(free.capacity(), table.size());
  }
  const uint32_t* const room = free.data();
  for (uint32_t i = 0; i < 1000; ++i) free.push_back(i);
  EXPECT_EQ(free.data(), room) << "no other memory";
  EXPECT_EQ(next_free_index(table, free), 999u);
  EXPECT_EQ(table.size(), 1000u);
}

}  // namespace
}  // namespace hetcomm
