// The pacer:
//    * queues that always have data get bytes in proportion to their weights, for any item lengths
//    * a queue that pauses has no claim on the time that it missed, and the other queues get all of
//      it
//    * a rate limit is respected, and does not slow other queues
//    * a single queue gets the whole path, with a larger window
//    * a full connection does not hold up another one
//    * high-priority data bypasses weights and window, but not the rate
//    * with any arrivals and departures, at most the window is in flight, and no queue starves
#include "src/core/peer/sharing/pacer.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/idle_pair.h"
#include "tests/support/pattern.h"

namespace hetcomm {
namespace {

using test::Nobody;
using test::NoPair;
using test::Random;

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kMs = 1'000'000;

// A queue with items to send, which requests permits as its transfers would.
struct Source {
  explicit Source(const TrackShare& share) : flow(share) {}
  Pacer::Flow flow;
  uint64_t item_bytes = 4 * kMiB;
  uint64_t left = 0;  // bytes that the source still has to send
  uint64_t of_item = 0;
  uint64_t sent = 0;
  bool high = false;
};

class CorePacer : public ::testing::Test {
 protected:
  Source& add(const TrackShare& share, uint64_t bytes, uint64_t item_bytes = 4 * kMiB) {
    sources_.push_back(std::make_unique<Source>(share));
    Source& source = *sources_.back();
    source.left = bytes;
    source.item_bytes = item_bytes;
    pacer_.add(source.flow);
    return source;
  }
  // Starts the items that |source| may send.
  void push(Source& source) {
    while (source.left > 0) {
      if (source.of_item == 0) source.of_item = std::min(source.left, source.item_bytes);
      const uint64_t bytes =
          pacer_.allowed(source.flow, kPath, source.of_item, source.high, now_ns_);
      if (bytes == 0) return;
      ASSERT_LE(bytes, std::min(source.of_item, Pacer::kPieceBytes));
      way_.push_back({&source, bytes, pacer_.started(source.flow, kPath, bytes, now_ns_)});
      under_way_ += bytes;
      source.of_item -= bytes;
      source.left -= bytes;
    }
  }
  void push_all() {
    for (const auto& source : sources_) push(*source);
    resume();
  }
  void resume() {
    while (Pacer::Flow* flow = pacer_.next(now_ns_)) {
      const auto own = std::find_if(sources_.begin(), sources_.end(),
                                    [&](const auto& each) { return &each->flow == flow; });
      ASSERT_NE(own, sources_.end());
      push(**own);
    }
  }
  // Reports the oldest piece as arrived.
  void arrive() {
    ASSERT_FALSE(way_.empty());
    const Piece piece = way_.front();
    way_.pop_front();
    under_way_ -= piece.bytes;
    piece.source->sent += piece.bytes;
    pacer_.ended(piece.paced, now_ns_);
    resume();
  }
  void arrive(uint64_t bytes) {
    uint64_t before = 0;
    for (const auto& source : sources_) before += source->sent;
    for (uint64_t now = before; now < before + bytes && !way_.empty();) {
      arrive();
      now = 0;
      for (const auto& source : sources_) now += source->sent;
    }
  }

  struct Piece {
    Source* source;
    uint64_t bytes;
    Pacer::Piece paced;
  };
  static constexpr Pacer::Path kPath{.rail = 5, .link = 0};
  Nobody nobody_;
  NoPair pair_;
  uint64_t now_ns_ = 1'000 * kMs;
  std::deque<Piece> way_;
  uint64_t under_way_ = 0;
  std::vector<std::unique_ptr<Source>> sources_;
  Engine engine_{nobody_};
  PairTurns turns_{engine_};
  LinkShares links_{turns_};
  Pacer pacer_{turns_, links_, pair_};
};

TEST_F(CorePacer, BusyQueuesShareBytesByWeight) {
  for (const uint64_t item : {4 * kMiB, 64 * kMiB, uint64_t{300'000}}) {
    for (const auto& source : sources_) pacer_.remove(source->flow, now_ns_);
    way_.clear();
    sources_.clear();
    Source& heavy = add({.weight = 3}, 3000 * kMiB, item);
    Source& light = add({.weight = 1}, 3000 * kMiB, 4 * kMiB);
    push_all();
    arrive(16 * kMiB);
    const uint64_t heavy_before = heavy.sent;
    const uint64_t light_before = light.sent;
    arrive(800 * kMiB);
    const double ratio = static_cast<double>(heavy.sent - heavy_before) /
                         static_cast<double>(light.sent - light_before);
    EXPECT_NEAR(ratio, 3.0, 0.1) << item;
  }
}

TEST_F(CorePacer, PausedQueueGetsNoCompensation) {
  Source& one = add({.weight = 1}, 200 * kMiB);
  Source& other = add({.weight = 1}, 0);
  push_all();
  arrive(100 * kMiB);
  EXPECT_EQ(one.sent, 100 * kMiB);  // without competition, the source gets everything
  other.left = 200 * kMiB;
  push(other);
  arrive(40 * kMiB);
  // The source gets half, apart from data in flight.
  EXPECT_GE(one.sent, (120 - 3) * kMiB);
  EXPECT_LE(other.sent, 20 * kMiB);
  EXPECT_GE(other.sent, (20 - 4) * kMiB);
}

TEST_F(CorePacer, RateLimitIsEnforcedAndDoesNotSlowOthers) {
  Source& slow = add({.weight = 1000, .bytes_per_second = 100'000'000}, 3000 * kMiB);
  Source& fast = add({.weight = 1}, 3000 * kMiB);
  push_all();
  const uint64_t start_ns = now_ns_;
  // The path carries 1 GB/s.
  for (int i = 0; i < 1000 && !way_.empty(); ++i) {
    now_ns_ += way_.front().bytes;
    if (now_ns_ >= pacer_.next_timer_ns()) resume();
    arrive();
  }
  const double seconds = static_cast<double>(now_ns_ - start_ns) / 1e9;
  EXPECT_NEAR(static_cast<double>(slow.sent) / seconds, 1e8, 0.05e8);
  EXPECT_NEAR(static_cast<double>(fast.sent) / seconds, 9e8, 0.2e8);
}

TEST_F(CorePacer, VerySlowRateLimitIsEnforced) {
  Source& slow = add({.weight = 1, .bytes_per_second = 1000}, kMiB);
  push(slow);
  // One piece may leave immediately, and a timer is set.
  ASSERT_EQ(way_.size(), 1u);
  ASSERT_EQ(way_.front().bytes, Pacer::kMinPieceBytes);
  arrive();
  EXPECT_TRUE(way_.empty());
  EXPECT_NEAR(static_cast<double>(pacer_.next_timer_ns() - now_ns_),
              static_cast<double>(Pacer::kMinPieceBytes) * 1e6, 3e7);
  now_ns_ = pacer_.next_timer_ns();
  resume();
  EXPECT_EQ(way_.size(), 1u);
}

TEST_F(CorePacer, SingleQueueGetsALargerWindow) {
  Source& alone = add({}, 64 * kMiB, 64 * kMiB);
  push(alone);
  EXPECT_EQ(under_way_, Pacer::kWindowAloneBytes);
  // A new queue gets its turn when it arrives.
  Source& other = add({}, 64 * kMiB, 64 * kMiB);
  push(other);
  arrive(Pacer::kWindowAloneBytes);
  EXPECT_GE(other.sent + under_way_, 2 * kMiB);
  arrive(40 * kMiB);
  EXPECT_NEAR(static_cast<double>(other.sent), 20.0 * kMiB, 4.0 * kMiB);
}

TEST_F(CorePacer, FullConnectionDoesNotBlockAnother) {
  Source& one = add({}, 0);
  Source& other = add({}, 0);
  const auto take = [&](Source& source, uint64_t rail) {
    const uint64_t bytes = pacer_.allowed(source.flow, {rail, 0}, kMiB, false, now_ns_);
    if (bytes > 0)
      way_.push_back({&source, bytes, pacer_.started(source.flow, {rail, 0}, bytes, now_ns_)});
    return bytes;
  };
  while (take(one, 1) > 0) {
  }
  EXPECT_EQ(way_.size() * kMiB, Pacer::kWindowBytes);
  EXPECT_EQ(take(other, 1), 0u);
  EXPECT_EQ(take(one, 2), kMiB);
  EXPECT_EQ(take(other, 2), kMiB);
  // Pieces that have ended on the other path free no space on this one.
  pacer_.ended(way_.back().paced, now_ns_);
  EXPECT_EQ(pacer_.next(now_ns_), nullptr);
  pacer_.ended(way_.front().paced, now_ns_);
  EXPECT_EQ(pacer_.next(now_ns_), &other.flow) << "it has had nothing there";
  EXPECT_EQ(take(other, 1), kMiB);
  EXPECT_EQ(pacer_.next(now_ns_), nullptr);
}

TEST_F(CorePacer, HighPriorityBypassesAllButTheRate) {
  Source& heavy = add({.weight = 1000}, 100 * kMiB);
  Source& light = add({.weight = 1}, 100 * kMiB);
  push_all();
  EXPECT_EQ(pacer_.allowed(light.flow, kPath, 100, false, now_ns_), 0u);
  EXPECT_EQ(pacer_.allowed(light.flow, kPath, 100, true, now_ns_), 100u);
  EXPECT_EQ(pacer_.allowed(heavy.flow, kPath, 100, true, now_ns_), 100u);
  Source& slow = add({.weight = 1, .bytes_per_second = 1000}, 100 * kMiB);
  push(slow);
  const auto piece = pacer_.started(slow.flow, kPath, 20'000, now_ns_);
  EXPECT_EQ(pacer_.allowed(slow.flow, kPath, 100, true, now_ns_), 0u);
  pacer_.ended(piece, now_ns_);
}

TEST_F(CorePacer, RemovedQueueLeavesNoTimer) {
  Source& slow = add({.weight = 1, .bytes_per_second = 1000}, kMiB);
  push(slow);
  EXPECT_NE(pacer_.next_timer_ns(), kForever);
  pacer_.remove(slow.flow, now_ns_);
  EXPECT_EQ(pacer_.next_timer_ns(), kForever);
  Source& again = add({.weight = 1, .bytes_per_second = 1000}, kMiB);
  push(again);
  EXPECT_NE(pacer_.next_timer_ns(), kForever);
  pacer_.clear(now_ns_);
  EXPECT_EQ(pacer_.next_timer_ns(), kForever);
  EXPECT_FALSE(pacer_.any_waits());
}

TEST_F(CorePacer, NoQueueStarvesUnderRandomLoad) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const size_t count = random.between(1, 5);
    bool several = count > 1;
    for (size_t i = 0; i < count; ++i) {
      const bool has_rate = random.chance(0.3);
      add({.weight = static_cast<uint32_t>(random.between(1, 1000)),
           .bytes_per_second = has_rate ? random.between(1'000'000, 4'000'000'000) : 0},
          0, random.between(1, 8 * kMiB));
    }
    for (int step = 0; step < 300; ++step) {
      const size_t which = random.below(sources_.size());
      Source& source = *sources_[which];
      if (random.chance(0.3)) {
        source.left += random.below(6 * kMiB);
        push(source);
      } else if (random.chance(0.1)) {
        // Aborted: data in flight completes, and the rest is not sent.
        source.left = source.of_item = 0;
      } else if (random.chance(0.02) && sources_.size() > 1) {
        std::erase_if(way_, [&](const Piece& piece) {
          if (piece.source != &source) return false;
          under_way_ -= piece.bytes;
          return true;
        });
        pacer_.remove(source.flow, now_ns_);
        sources_.erase(sources_.begin() + static_cast<ptrdiff_t>(which));
        several = several && sources_.size() > 1;
        resume();
      } else if (!way_.empty()) {
        now_ns_ += random.below(kMs);
        arrive();
      }
      if (HasFatalFailure()) return;
      ASSERT_LT(under_way_,
                (several ? Pacer::kWindowBytes : Pacer::kWindowAloneBytes) + Pacer::kPieceBytes);
    }
    // All data arrives, driven only by ends of pieces and by the timer.
    while (std::any_of(sources_.begin(), sources_.end(),
                       [](const auto& each) { return each->left > 0; })) {
      if (way_.empty()) {
        ASSERT_NE(pacer_.next_timer_ns(), kForever) << "nobody goes on";
        now_ns_ = std::max(now_ns_, pacer_.next_timer_ns());
        resume();
        ASSERT_FALSE(way_.empty());
      } else {
        arrive();
      }
    }
    while (!way_.empty()) arrive();
    for (const auto& source : sources_) {
      for (size_t way = 0; way < Pacer::kWays; ++way) {
        EXPECT_EQ(source->flow.ways[way].under_way, 0u);
      }
    }
    pacer_.clear(now_ns_);
    sources_.clear();
  }
}

}  // namespace
}  // namespace hetcomm
