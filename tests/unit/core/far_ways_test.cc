// The choice between direct and staged at both ends of the same transfers:
//  - the two ends never try the other method in the same transfer;
//  - each end finds the method that is faster with the other end's current method, not the one that
//    is faster if both ends change;
//  - transfers that partly used another method do not count.
#include "src/core/peer/transfer/far_ways.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr size_t kDevice = 1;

// Both ends of one pair. Each field is a transfer's time in us, by the sender's and the receiver's
// method.
struct Ends {
  double direct_direct;
  double direct_staged;
  double staged_direct;
  double staged_staged;
  FarWays sender;
  FarWays receiver;
  uint64_t now_ns = 1'000'000;
  int both_staged = 0;
  int sender_staged = 0;
  int receiver_staged = 0;

  void run(int transfers, bool whole = true) {
    both_staged = sender_staged = receiver_staged = 0;
    for (int i = 0; i < transfers; ++i) {
      FarWays::Choice out = sender.choose(kDevice, StreamDirection::kToHost, kBytes, now_ns);
      FarWays::Choice in = receiver.choose(kDevice, StreamDirection::kFromHost, kBytes, now_ns);
      const double us = out.staged ? (in.staged ? staged_staged : staged_direct)
                                   : (in.staged ? direct_staged : direct_direct);
      now_ns += static_cast<uint64_t>(us * 1000);
      out.moved_bytes = in.moved_bytes = whole ? kBytes : kBytes / 2;
      sender.measured(out, kBytes, now_ns);
      receiver.measured(in, kBytes, now_ns);
      both_staged += out.staged && in.staged;
      sender_staged += out.staged;
      receiver_staged += in.staged;
    }
  }
};

TEST(FarWays, EndsNeverTryStagingInTheSameTransfer) {
  Ends ends{.direct_direct = 100, .direct_staged = 200, .staged_direct = 200, .staged_staged = 300};
  ends.run(20'000);
  EXPECT_EQ(ends.both_staged, 0);
  EXPECT_GT(ends.sender_staged, 3) << "it tries again";
  EXPECT_GT(ends.receiver_staged, 3) << "it tries again";
  EXPECT_LT(ends.sender_staged + ends.receiver_staged, 1000);
}

TEST(FarWays, OnlyTheReceiverStagesIfOnlyItBenefits) {
  Ends ends{.direct_direct = 100, .direct_staged = 20, .staged_direct = 95, .staged_staged = 70};
  ends.run(100);
  ends.run(1000);
  EXPECT_LT(ends.sender_staged, 100);
  EXPECT_GT(ends.receiver_staged, 900);
}

TEST(FarWays, BothEndsStageIfStagingIsFaster) {
  Ends ends{.direct_direct = 400, .direct_staged = 300, .staged_direct = 200, .staged_staged = 100};
  ends.run(100);
  ends.run(1000);
  EXPECT_GT(ends.both_staged, 900);
}

TEST(FarWays, TransfersThatMixMethodsAreNotMeasured) {
  Ends ends{.direct_direct = 400, .direct_staged = 300, .staged_direct = 200, .staged_staged = 100};
  ends.run(1000, /*whole=*/false);
  EXPECT_EQ(ends.sender_staged + ends.receiver_staged, 0) << "nothing was measured";
  EXPECT_TRUE(ends.sender.explain().empty());
}

}  // namespace
}  // namespace hetcomm
