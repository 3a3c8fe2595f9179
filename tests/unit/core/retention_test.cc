// Messages kept until the peer has acknowledged them:
//  * replay returns all messages after a number, in order, with their headers and bytes;
//  * an acknowledgement drops everything up to its number and nothing beyond it, even when the
//    32-bit numbers wrap around;
//  * a header or a payload may wrap around the end of the ring, and the ring may grow at that
//    moment;
//  * largest() and bytes() describe the messages that are still kept.
#include "src/core/peer/wire/retention.h"

#include <deque>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

struct Kept {
  uint32_t sequence;
  std::vector<std::byte> bytes;
};

class RetentionTest : public ::testing::Test {
 protected:
  // Adds a message of |size| bytes, in two extents.
  void push(uint32_t sequence, size_t size) {
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<std::byte>((sequence * 131 + i * 7) & 0xff);
    }
    const std::array<iovec, 2> pieces{
        {{bytes.data(), size / 3}, {bytes.data() + size / 3, size - size / 3}}};
    retention_.make_room(size);
    retention_.push({.kind = MessageKind::kEager, .sequence = sequence, .tag = sequence ^ 77u},
                    ExtentView{pieces, 0, size});
    kept_.push_back({sequence, std::move(bytes)});
  }
  // Expects replay to return the messages in |kept_| after |sequence|, up to |most| of them.
  void expect_replay(uint32_t sequence, size_t most = SIZE_MAX) {
    size_t index = 0;
    while (index < kept_.size() && static_cast<int32_t>(kept_[index].sequence - sequence) <= 0) {
      ++index;
    }
    size_t seen = 0;
    const size_t left = kept_.size() - index;
    const bool all =
        retention_.replay(sequence, [&](const WireHeader& header, ConstByteSpan payload) {
          if (seen == most) return false;
          ++seen;
          if (index >= kept_.size()) {
            ADD_FAILURE() << "message " << header.sequence << " was dropped";
            return false;
          }
          const Kept& expected = kept_[index++];
          EXPECT_EQ(header.sequence, expected.sequence);
          EXPECT_EQ(header.tag, expected.sequence ^ 77u);
          EXPECT_TRUE(std::equal(payload.begin(), payload.end(), expected.bytes.begin(),
                                 expected.bytes.end()))
              << "bytes of message " << header.sequence;
          return true;
        });
    EXPECT_EQ(all, left <= most);
    EXPECT_EQ(seen, std::min(most, left));
  }
  void acknowledge(uint32_t sequence) {
    retention_.acknowledge(sequence);
    while (!kept_.empty() && static_cast<int32_t>(kept_.front().sequence - sequence) <= 0) {
      kept_.pop_front();
    }
    EXPECT_EQ(retention_.count(), kept_.size());
    EXPECT_EQ(retention_.empty(), kept_.empty());
  }
  uint64_t largest() const {
    size_t most = 0;
    for (const Kept& each : kept_) most = std::max(most, each.bytes.size());
    return most;
  }

  Retention retention_;
  std::deque<Kept> kept_;
};

TEST_F(RetentionTest, ReplaysUnacknowledgedMessagesInOrder) {
  for (uint32_t i = 1; i <= 10; ++i) push(i, i * 10);
  expect_replay(0);
  expect_replay(4);
  expect_replay(10);
  expect_replay(2, 3);
  EXPECT_EQ(retention_.largest(), 100U);
  acknowledge(0);
  EXPECT_EQ(retention_.count(), 10U);
  acknowledge(4);
  EXPECT_EQ(retention_.count(), 6U);
  expect_replay(0);
  expect_replay(5);
  acknowledge(3);  // an outdated acknowledgement
  EXPECT_EQ(retention_.count(), 6U);
  acknowledge(10);
  EXPECT_TRUE(retention_.empty());
  EXPECT_EQ(retention_.bytes(), 0U);
  EXPECT_EQ(retention_.largest(), 0U);
  expect_replay(0);
}

TEST_F(RetentionTest, AcknowledgementsWorkWhenNumbersWrap) {
  constexpr uint32_t kBefore = UINT32_MAX - 4;
  for (uint32_t i = 0; i < 10; ++i) push(kBefore + i, 100);
  expect_replay(kBefore - 1);
  expect_replay(UINT32_MAX);
  acknowledge(UINT32_MAX - 1);
  EXPECT_EQ(retention_.count(), 6U);
  expect_replay(UINT32_MAX - 1);
  expect_replay(UINT32_MAX);
  expect_replay(0);
  acknowledge(UINT32_MAX);
  EXPECT_EQ(retention_.count(), 5U);
  acknowledge(2);
  EXPECT_EQ(retention_.count(), 2U);
  expect_replay(UINT32_MAX);
  expect_replay(3);
  acknowledge(5);
  EXPECT_TRUE(retention_.empty());
}

// Wraps the ring at every offset, and grows it at each offset.
TEST_F(RetentionTest, MessagesMayWrapAroundTheRingAtAnyOffset) {
  for (size_t size = 0; size < 200; size += 7) {
    retention_ = {};
    kept_.clear();
    uint32_t next = 0;
    for (int i = 0; i < 6; ++i) push(++next, size);
    for (int i = 0; i < 150; ++i) {
      push(++next, size);
      acknowledge(next - 6);
      expect_replay(0);
    }
    push(++next, 5000);  // the ring grows
    expect_replay(0);
    EXPECT_EQ(retention_.largest(), 5000U);
    acknowledge(next - 1);
    expect_replay(0);
    if (HasFailure()) return;
  }
}

TEST_F(RetentionTest, RandomOperationsMatchAPlainList) {
  std::mt19937_64 random(3);
  uint32_t next = UINT32_MAX - 2000;
  for (int step = 0; step < 4000; ++step) {
    push(++next, random() % (random() % 50 == 0 ? 20'000 : 300));
    if (random() % 3 == 0) acknowledge(next - static_cast<uint32_t>(random() % 40));
    EXPECT_EQ(retention_.largest(), largest());
    if (step % 8 == 0) expect_replay(next - static_cast<uint32_t>(random() % 60));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace hetcomm
