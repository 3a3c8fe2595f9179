// The streams of one connection: what holds for all of them follows from what holds for each, the
// message stream comes first, and bulk streams begin in turn.
#include "transports/tcp/stream_set.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm::tcp {
namespace {

struct FakeQueue {
  std::vector<int> asked;  // indices of the streams that were to write
};

struct FakeStream {
  explicit FakeStream(int index_ = 0) : index(index_) {}
  Status watch() {
    if (watch_fails) return Code::kOutOfMemory;
    watched = true;
    return {};
  }
  void unwatch() { watched = false; }
  bool buffered() const { return is_buffered; }
  int receive() {
    ++received;
    return 1;
  }
  bool read_ended() const { return ended; }
  int write(FakeQueue& queue, bool, uint32_t) {
    queue.asked.push_back(index);
    return 1;
  }
  bool parked() const { return is_parked; }
  bool full() const { return is_full; }
  void park() { is_parked = true; }
  bool output_idle() const { return idle; }
  void drop_output() { idle = true; }
  uint64_t unacknowledged_bytes() const { return bytes; }
  Passage passage() const { return passes; }
  std::string trouble() const { return found; }

  int index;
  bool watch_fails = false;
  bool watched = false;
  bool is_buffered = false;
  int received = 0;
  bool ended = false;
  bool is_parked = false;
  bool is_full = false;
  bool idle = true;
  uint64_t bytes = 0;
  Passage passes = Passage::kNothing;
  std::string found;
};

// A message stream, and the bulk streams 1, 2 and 5.
struct TcpStreamSet : ::testing::Test {
  TcpStreamSet() {
    for (const int index : {1, 2, 5}) {
      auto stream = std::make_unique<FakeStream>(index);
      bulk.push_back(stream.get());
      set.add(static_cast<size_t>(index), std::move(stream));
    }
  }
  StreamSet<FakeStream> set{0};
  std::vector<FakeStream*> bulk;
};

TEST_F(TcpStreamSet, SetLacksEveryUnusedBulkIndex) {
  EXPECT_EQ(set.bulk_count(), 3U);
  for (const size_t index : {3U, 4U, 6U, 7U, 8U}) EXPECT_TRUE(set.lacks(index)) << index;
  for (const size_t index : {0U, 1U, 2U, 5U, 9U, 255U}) EXPECT_FALSE(set.lacks(index)) << index;
  EXPECT_EQ(set.first_bulk(), bulk[0]);
  EXPECT_EQ(StreamSet<FakeStream>(0).first_bulk(), nullptr);
}

TEST_F(TcpStreamSet, MessageStreamIsVisitedFirst) {
  std::vector<int> order;
  set.for_each([&](FakeStream& stream) { order.push_back(stream.index); });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 5}));
  order.clear();
  set.for_each_bulk([&](FakeStream& stream) { order.push_back(stream.index); });
  EXPECT_EQ(order, (std::vector<int>{1, 2, 5}));
}

TEST_F(TcpStreamSet, WatchingEndsAtTheFirstFailure) {
  bulk[1]->watch_fails = true;
  EXPECT_EQ(set.watch().code(), Code::kOutOfMemory);
  EXPECT_TRUE(set.messages().watched);
  EXPECT_TRUE(bulk[0]->watched);
  EXPECT_FALSE(bulk[2]->watched);
  bulk[1]->watch_fails = false;
  EXPECT_TRUE(set.watch().ok());
  EXPECT_TRUE(bulk[2]->watched);
  set.unwatch();
  set.for_each([](FakeStream& stream) { EXPECT_FALSE(stream.watched) << stream.index; });
}

TEST_F(TcpStreamSet, ReceiveBufferedReadsOnlyStreamsThatHoldBytes) {
  EXPECT_FALSE(set.buffered());
  bulk[2]->is_buffered = true;
  EXPECT_TRUE(set.buffered());
  EXPECT_EQ(set.receive_buffered(), 1);
  EXPECT_EQ(bulk[2]->received, 1);
  EXPECT_EQ(set.receive(), 4);
  EXPECT_EQ(bulk[2]->received, 2);
  EXPECT_EQ(set.messages().received, 1);
  bulk[2]->is_buffered = false;
  set.messages().is_buffered = true;
  EXPECT_TRUE(set.buffered());
}

TEST_F(TcpStreamSet, ReadingEndsOnceAllStreamsHaveEnded) {
  std::vector<FakeStream*> streams{&set.messages(), bulk[0], bulk[1], bulk[2]};
  for (FakeStream* stream : streams) {
    EXPECT_FALSE(set.read_ended());
    stream->ended = true;
  }
  EXPECT_TRUE(set.read_ended());
}

TEST_F(TcpStreamSet, BulkWritesRotateTheFirstStream) {
  FakeQueue queue;
  EXPECT_EQ(set.write_bulk(queue, 100), 3);
  EXPECT_EQ(queue.asked, (std::vector<int>{2, 5, 1}));
  std::vector<int> first;
  for (size_t i = 0; i < kMaxBulkStreams; ++i) {
    queue.asked.clear();
    EXPECT_EQ(set.write_bulk(queue, 100), 3);
    first.push_back(queue.asked.front());
  }
  for (const FakeStream* stream : bulk) {
    EXPECT_NE(std::count(first.begin(), first.end(), stream->index), 0) << stream->index;
  }
}

TEST_F(TcpStreamSet, BulkCanBeWrittenOnlyToAnUnparkedStream) {
  EXPECT_FALSE(set.can_write_bulk(false));
  EXPECT_TRUE(set.can_write_bulk(true));
  set.messages().idle = false;
  EXPECT_FALSE(set.can_write_bulk(false));
  bulk[1]->idle = false;
  EXPECT_TRUE(set.can_write_bulk(false));
  for (FakeStream* stream : bulk) stream->is_parked = true;
  EXPECT_FALSE(set.can_write_bulk(true));
}

TEST_F(TcpStreamSet, SetIsIdleIfAllStreamsAreIdle) {
  EXPECT_TRUE(set.output_idle());
  bulk[2]->idle = false;
  EXPECT_FALSE(set.output_idle());
  set.drop_output();
  EXPECT_TRUE(set.output_idle());
  set.messages().idle = false;
  EXPECT_FALSE(set.output_idle());
}

TEST_F(TcpStreamSet, ParkFullParksOnlyFullStreams) {
  bulk[0]->is_full = true;
  set.park_full();
  EXPECT_TRUE(bulk[0]->is_parked);
  EXPECT_FALSE(bulk[1]->is_parked);
  EXPECT_FALSE(set.messages().is_parked);
}

TEST_F(TcpStreamSet, UnacknowledgedBytesAreSummedOverAllStreams) {
  set.messages().bytes = 1;
  bulk[0]->bytes = 20;
  bulk[2]->bytes = 300;
  EXPECT_EQ(set.unacknowledged_bytes(), 321U);
}

TEST_F(TcpStreamSet, PassedBulkStreamOutweighsBlockedOnes) {
  set.messages().passes = Passage::kPassed;
  EXPECT_EQ(set.passage(), Passage::kPassed);
  bulk[0]->passes = Passage::kBlocked;
  EXPECT_EQ(set.passage(), Passage::kBlocked);
  bulk[2]->passes = Passage::kPassed;
  EXPECT_EQ(set.passage(), Passage::kPassed);
}

TEST_F(TcpStreamSet, TroubleOfTheFirstAffectedStreamIsReported) {
  EXPECT_EQ(set.trouble(), "");
  bulk[2]->found = "five";
  EXPECT_EQ(set.trouble(), "five");
  bulk[0]->found = "one";
  EXPECT_EQ(set.trouble(), "one");
  set.messages().found = "messages";
  EXPECT_EQ(set.trouble(), "messages");
}

}  // namespace
}  // namespace hetcomm::tcp
