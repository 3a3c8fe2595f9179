// The streams that are polled directly: which streams are polled, which are removed, and what
// happens if streams are added and removed during polling.
#include "transports/tcp/hot_set.h"

#include <cstdint>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm::tcp {
namespace {

struct FakeStream {
  int receive() {
    ++asked;
    if (on_receive) on_receive();
    return arrives;
  }
  bool is_bulk() const { return bulk; }

  bool bulk = false;
  int arrives = 0;
  int asked = 0;
  uint32_t misses = 0;
  std::function<void()> on_receive;
};
using Hot = HotSet<FakeStream>;

TEST(HotSet, IdleStreamLeavesAndReturns) {
  Hot hot;
  FakeStream stream;
  hot.touch(stream);
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(hot.poll(), 0);
  const int until_it_left = stream.asked;
  EXPECT_GT(until_it_left, 100);
  EXPECT_LT(until_it_left, 5000);
  hot.touch(stream);
  EXPECT_EQ(hot.poll(), 0);
  EXPECT_EQ(stream.asked, until_it_left + 1);
}

TEST(HotSet, ReceivingStreamRemainsInTheSet) {
  Hot hot;
  FakeStream stream;
  stream.arrives = 2;
  hot.touch(stream);
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(hot.poll(), 2);
}

TEST(HotSet, LatestMessageStreamIsPolledMoreOftenThanOthers) {
  Hot hot;
  std::vector<FakeStream> streams(4);
  for (FakeStream& stream : streams) hot.touch(stream);
  for (int i = 0; i < 80; ++i) hot.poll();
  EXPECT_EQ(streams[3].asked, 80);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(streams[static_cast<size_t>(i)].asked, 10) << i;
}

TEST(HotSet, BulkStreamsArePolledEachTime) {
  Hot hot;
  std::vector<FakeStream> streams(3);
  for (FakeStream& stream : streams) stream.bulk = true;
  for (FakeStream& stream : streams) hot.touch(stream);
  for (int i = 0; i < 20; ++i) hot.poll();
  for (const FakeStream& stream : streams) EXPECT_EQ(stream.asked, 20);
}

TEST(HotSet, LeastRecentStreamIsEvictedAtTheLimit) {
  Hot hot;
  std::vector<FakeStream> streams(9);
  for (FakeStream& stream : streams) stream.bulk = true;
  for (FakeStream& stream : streams) hot.touch(stream);
  hot.poll();
  EXPECT_EQ(streams[0].asked, 0);
  for (size_t i = 1; i < streams.size(); ++i) EXPECT_EQ(streams[i].asked, 1) << i;
}

TEST(HotSet, StreamRemovedDuringPollingIsNotPolled) {
  Hot hot;
  std::vector<FakeStream> streams(3);
  for (FakeStream& stream : streams) stream.bulk = true;
  for (FakeStream& stream : streams) hot.touch(stream);
  // The most recent stream is polled first, and ends itself and the next stream.
  streams[2].on_receive = [&] {
    hot.remove(streams[2]);
    hot.remove(streams[1]);
  };
  hot.poll();
  EXPECT_EQ(streams[2].asked, 1);
  EXPECT_EQ(streams[1].asked, 0);
  EXPECT_EQ(streams[0].asked, 1);
}

}  // namespace
}  // namespace hetcomm::tcp
