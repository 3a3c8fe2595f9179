// Channel numbers:
//  * each open channel is found by its number, even while the table grows;
//  * a number finds nothing once its channel is closed, whatever has been opened since;
//  * numbers are assigned in ascending order, and skip open channels after wrapping around.
#include "src/core/peer/matching/channel_table.h"

#include <set>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

TEST(ChannelTableTest, FindsOnlyOpenChannels) {
  ChannelTable table;
  EXPECT_TRUE(table.empty());
  std::vector<Channel*> open;
  for (uint32_t i = 0; i < 100; ++i) {
    open.push_back(&table.open());
    EXPECT_EQ(open.back()->id, i);
    EXPECT_EQ(table.find(i + 1), nullptr);
  }
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(table.find(i), open[i]);
  for (uint32_t i = 0; i < 100; i += 2) table.close(i);
  std::set<uint32_t> seen;
  table.for_each([&](Channel& channel) { seen.insert(channel.id); });
  EXPECT_EQ(seen.size(), 50u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(table.find(i), i % 2 == 0 ? nullptr : open[i]);
  for (uint32_t i = 1; i < 100; i += 2) table.close(i);
  EXPECT_TRUE(table.empty());
}

TEST(ChannelTableTest, ClosedChannelNumbersAreNotReusedSoon) {
  ChannelTable table;
  const uint32_t first = table.open().id;
  std::set<uint32_t> seen{first};
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t id = table.open().id;
    EXPECT_TRUE(seen.insert(id).second) << id;
    table.close(id);
    EXPECT_EQ(table.find(id), nullptr);
  }
  EXPECT_NE(table.find(first), nullptr);
}

TEST(ChannelTableTest, NumbersWrapAroundAndSkipOpenChannels) {
  ChannelTable table(UINT32_MAX - 1);
  Channel& last_but_one = table.open();
  EXPECT_EQ(last_but_one.id, UINT32_MAX - 1);
  EXPECT_EQ(table.open().id, UINT32_MAX);
  Channel& zero = table.open();
  EXPECT_EQ(zero.id, 0u);
  for (int i = 0; i < 50; ++i) table.close(table.open().id);
  EXPECT_EQ(table.find(UINT32_MAX - 1), &last_but_one);
  EXPECT_EQ(table.find(0), &zero);
}

}  // namespace
}  // namespace hetcomm
