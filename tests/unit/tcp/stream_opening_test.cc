// When a connection opens bulk streams: which side connects, which side is told what, and when the
// number of streams stops growing.
#include "transports/tcp/stream_opening.h"

#include <gtest/gtest.h>

namespace hetcomm::tcp {
namespace {

using Kind = StreamsNote::Kind;
constexpr size_t kLeast = 2;
constexpr StreamAccount kWindowBound{.busy_us = 100, .limited_us = 50};

StreamOpening opening(bool initiator, bool grows = true) { return {initiator, kLeast, grows}; }

TEST(TcpStreamOpening, InitiatorOpensStreamsAndTheOtherSideRequestsThem) {
  StreamOpening initiator = opening(true);
  EXPECT_FALSE(initiator.requested());
  EXPECT_EQ(initiator.request(4), 4U);
  EXPECT_TRUE(initiator.requested());
  EXPECT_FALSE(initiator.has_note());

  StreamOpening other = opening(false);
  EXPECT_EQ(other.request(4), 0U);
  EXPECT_TRUE(other.requested());
  ASSERT_TRUE(other.has_note());
  const StreamsNote note = other.take_note();
  EXPECT_EQ(note.kind, Kind::kWanted);
  EXPECT_EQ(note.count, 4);
  EXPECT_FALSE(other.has_note());
}

TEST(TcpStreamOpening, RequestedCountIsClampedToTheConfiguredRange) {
  EXPECT_EQ(opening(true).request(1), kLeast);
  EXPECT_EQ(opening(true).request(200), kMaxBulkStreams);
  StreamOpening other = opening(false);
  EXPECT_EQ(other.request(200), 0U);
  EXPECT_EQ(other.take_note().count, kMaxBulkStreams);
}

TEST(TcpStreamOpening, NoteFromTheWrongSideIsRefused) {
  StreamOpening initiator = opening(true);
  EXPECT_EQ(initiator.take({.kind = Kind::kWanted, .count = 1}), nullptr);
  EXPECT_NE(initiator.take({.kind = Kind::kUnavailable}), nullptr);
  EXPECT_FALSE(initiator.unavailable());

  StreamOpening other = opening(false);
  EXPECT_NE(other.take({.kind = Kind::kWanted, .count = 1}), nullptr);
  EXPECT_FALSE(other.unavailable());
  EXPECT_EQ(other.take({.kind = Kind::kUnavailable}), nullptr);
  EXPECT_TRUE(other.unavailable());
}

TEST(TcpStreamOpening, FailureIsReportedToThePeerOnlyIfNoStreamIsLeft) {
  StreamOpening initiator = opening(true);
  EXPECT_EQ(initiator.request(4), 4U);
  initiator.failed(true);
  EXPECT_FALSE(initiator.unavailable());
  EXPECT_FALSE(initiator.has_note());
  initiator.failed(false);
  EXPECT_TRUE(initiator.unavailable());
  ASSERT_TRUE(initiator.has_note());
  EXPECT_EQ(initiator.take_note().kind, Kind::kUnavailable);

  StreamOpening other = opening(false);
  other.failed(false);
  EXPECT_TRUE(other.unavailable());
  EXPECT_FALSE(other.has_note());
}

TEST(TcpStreamOpening, RequestAfterAFailureOnlyReportsTheFailureAgain) {
  StreamOpening initiator = opening(true);
  initiator.failed(false);
  EXPECT_EQ(initiator.take_note().kind, Kind::kUnavailable);
  EXPECT_EQ(initiator.request(4), 0U);
  ASSERT_TRUE(initiator.has_note());
  EXPECT_EQ(initiator.take_note().kind, Kind::kUnavailable);
}

TEST(TcpStreamOpening, GrowthIsReviewedOnlyAfterEnoughTraffic) {
  StreamOpening growing = opening(true);
  EXPECT_FALSE(growing.review_due(StreamCount::kReviewBytes - 1));
  EXPECT_TRUE(growing.review_due(1));
  EXPECT_FALSE(growing.review_due(1));
  EXPECT_TRUE(growing.grow(kWindowBound));
  EXPECT_FALSE(growing.grow(kWindowBound));  // nothing has changed since
  EXPECT_FALSE(opening(true, false).review_due(2 * StreamCount::kReviewBytes));
}

TEST(TcpStreamOpening, GrowthEndsAtTheLimitAndAfterAFailure) {
  StreamOpening growing = opening(true);
  EXPECT_TRUE(growing.may_grow(kMaxAutoStreams - 1));
  EXPECT_FALSE(growing.may_grow(kMaxAutoStreams));
  growing.failed(true);
  EXPECT_FALSE(growing.may_grow(1));
}

}  // namespace
}  // namespace hetcomm::tcp
