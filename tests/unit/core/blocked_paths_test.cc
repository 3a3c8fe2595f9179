// Which connection breaks mean that a peer is unreachable:
//  - a break counts only if data after the opening was in flight and none of it was acknowledged;
//  - an acknowledgement on any path clears the counts of all paths;
//  - breaks of connections that carried no data change nothing, however many there are;
//  - the pair fails once every path has broken three times, in any order; a path that is open, or
//    was open recently, stays usable until it has failed that often;
//  - a path that can no longer be opened does not count.
#include "src/core/peer/rails/blocked_paths.h"

#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace hetcomm::test {
namespace {

constexpr RailEnds kOne{.own = 0, .peer = 0};
constexpr RailEnds kTwo{.own = 1, .peer = 1};

// A pair's paths. A broken connection is reopened.
class Paths {
 public:
  void open(const RailEnds& ends) HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
    paths_.opened(ends);
    open_.insert({ends.own, ends.peer});
  }
  // Reports a break and returns whether the pair is abandoned.
  bool breaks(const RailEnds& ends, Passage passage) HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
    open_.erase({ends.own, ends.peer});
    const bool counts = paths_.broke(ends, passage);
    EXPECT_EQ(counts, passage == Passage::kBlocked);
    return counts && paths_.all_blocked([&](const RailEnds& each) {
      return open_.contains({each.own, each.peer});
    });
  }
  // Opens the connection and breaks it.
  bool fails(const RailEnds& ends, Passage passage = Passage::kBlocked) {
    open(ends);
    return breaks(ends, passage);
  }

 private:
  BlockedPaths paths_;
  std::set<std::pair<size_t, size_t>> open_;
};

TEST(BlockedPaths, PairFailsOnTheThirdBreak) {
  Paths paths;
  EXPECT_FALSE(paths.fails(kOne));
  EXPECT_FALSE(paths.fails(kOne));
  EXPECT_TRUE(paths.fails(kOne));
}

TEST(BlockedPaths, BreaksWithoutDataDoNotCount) {
  Paths paths;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(paths.fails(kOne, Passage::kNothing));
  EXPECT_FALSE(paths.fails(kOne));
  EXPECT_FALSE(paths.fails(kOne));
  // These breaks clear no counts either.
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(paths.fails(kOne, Passage::kNothing));
  EXPECT_TRUE(paths.fails(kOne));
}

TEST(BlockedPaths, AcknowledgementClearsTheCount) {
  Paths paths;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(paths.fails(kOne));
    EXPECT_FALSE(paths.fails(kOne));
    EXPECT_FALSE(paths.fails(kOne, Passage::kPassed));
  }
}

TEST(BlockedPaths, AcknowledgementOnOnePathClearsAllCounts) {
  Paths paths;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(paths.fails(kOne));
    EXPECT_FALSE(paths.fails(kTwo));
    EXPECT_FALSE(paths.fails(kOne));
    EXPECT_FALSE(paths.fails(kTwo, Passage::kPassed));
  }
}

TEST(BlockedPaths, AcknowledgementOnOnePathUnblocksAnother) {
  Paths paths;
  paths.open(kTwo);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(paths.fails(kOne));
  EXPECT_FALSE(paths.breaks(kTwo, Passage::kPassed));
  paths.open(kOne);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(paths.fails(kTwo));
}

TEST(BlockedPaths, PairFailsOnlyOnceEveryPathHasFailed) {
  Paths paths;
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(paths.fails(kOne));
    EXPECT_FALSE(paths.fails(kTwo));
  }
  EXPECT_FALSE(paths.fails(kOne));
  EXPECT_TRUE(paths.fails(kTwo));
}

TEST(BlockedPaths, OpenPathKeepsThePairReachable) {
  Paths paths;
  paths.open(kTwo);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(paths.fails(kOne));
  // The connection was idle, and cannot be reopened.
  EXPECT_FALSE(paths.breaks(kTwo, Passage::kNothing));
  EXPECT_TRUE(paths.fails(kOne));
}

TEST(BlockedPaths, RecentlyOpenPathKeepsThePairReachable) {
  Paths paths;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(paths.fails(kOne));
    EXPECT_FALSE(paths.fails(kTwo, Passage::kNothing));
  }
}

TEST(BlockedPaths, PathThatDoesNotOpenIsNotCounted) {
  Paths paths;
  EXPECT_FALSE(paths.fails(kTwo));
  EXPECT_FALSE(paths.fails(kOne));
  EXPECT_FALSE(paths.fails(kOne));
  EXPECT_TRUE(paths.fails(kOne));
}

// Interfaces go down and up in turn: the connection opened last carries data until its interface
// fails.
TEST(BlockedPaths, PairSurvivesInterfacesThatFlapInTurn) {
  Paths paths;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(paths.fails(i % 2 == 0 ? kOne : kTwo, Passage::kBlocked));
    EXPECT_FALSE(
        paths.fails(i % 2 == 0 ? kTwo : kOne, i % 3 == 0 ? Passage::kNothing : Passage::kPassed));
  }
}

}  // namespace
}  // namespace hetcomm::test
