// A rank reports a failure to the other ranks:
//  - the text contains the origin and its status once, however many ranks forward it;
//  - PEER_LOST and MISMATCH keep their codes, and every other failure is ABORTED on other ranks;
//  - any bytes from the wire decode to a failure, with a printable and bounded text.
#include "src/core/peer/wire/reason.h"

#include <cstdint>
#include <span>
#include <string>

#include <gtest/gtest.h>

namespace hetcomm::test {
namespace {

ConstByteSpan bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Returns the status at rank 1 when rank 2 reports |why|.
Status hop(const Status& why, int rank) {
  const Status told = reason_for_others(rank, why);
  const std::string text(told.text());
  const WireHeader header{.kind = MessageKind::kStop, .value = static_cast<uint64_t>(told.code())};
  return PeerReason(rank, header, bytes_of(text)).status();
}

TEST(Reason, TextNamesTheOriginOnceOnEveryRank) {
  for (const Code code : {Code::kCancelled, Code::kTimedOut, Code::kDeviceLost, Code::kUnreachable,
                          Code::kOutOfMemory, Code::kTruncated, Code::kInternal}) {
    Status status(code, "because");
    for (int rank = 5; rank < 8; ++rank) status = hop(status, rank);
    EXPECT_EQ(status.code(), Code::kAborted) << code_name(code);
    EXPECT_EQ(status.text(), std::string("rank 5: ") + code_name(code) + ": because");
  }
}

TEST(Reason, PeerLostAndMismatchKeepTheirCodes) {
  for (const Code code : {Code::kPeerLost, Code::kMismatch}) {
    Status status(code, "rank 3 lost");
    for (int rank = 5; rank < 8; ++rank) status = hop(status, rank);
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.text(), "rank 3 lost");
  }
}

TEST(Reason, UnknownCodesFromTheWireBecomeAborted) {
  for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{0x7fffffff}}) {
    const PeerReason reason(4, {.kind = MessageKind::kStop, .value = value}, {});
    EXPECT_EQ(reason.status().code(), Code::kAborted) << value;
    EXPECT_FALSE(reason.status().text().empty());
  }
  const WireHeader unknown{.kind = MessageKind::kStop, .value = 0xfffff000};
  EXPECT_EQ(PeerReason(4, unknown, {}).status().code(), Code::kAborted);
  const std::string hostile = "\x1b[31m" + std::string(5000, 'x') + "\n";
  const WireHeader header{.kind = MessageKind::kStop,
                          .value = static_cast<uint64_t>(Code::kDeviceLost)};
  const Status told = PeerReason(4, header, bytes_of(hostile)).status();
  EXPECT_LT(told.text().size(), 2 * kMaxReasonBytes);
  EXPECT_EQ(told.text().find('\x1b'), std::string::npos);
}

// An abort of the communicator is reported separately; a refusal is the owner's answer.
TEST(Reason, AbortsAndRefusalsAreDistinguished) {
  const std::string text = "rank 4: DEVICE_LOST: because";
  const auto reason = [&](Code code, ConstByteSpan why) {
    const WireHeader header{.kind = MessageKind::kStop, .value = static_cast<uint64_t>(code)};
    return PeerReason(4, header, why);
  };
  EXPECT_TRUE(reason(Code::kAborted, {}).is_abort());
  EXPECT_FALSE(reason(Code::kAborted, bytes_of(text)).is_abort());
  EXPECT_FALSE(reason(Code::kCancelled, {}).is_abort());
  EXPECT_TRUE(reason(Code::kStaleHandle, bytes_of(text)).is_answer());
  EXPECT_TRUE(reason(Code::kPermissionDenied, {}).is_answer());
  EXPECT_FALSE(reason(Code::kDeviceLost, bytes_of(text)).is_answer());
  EXPECT_FALSE(reason(Code::kAborted, bytes_of(text)).is_answer());
}

}  // namespace
}  // namespace hetcomm::test
