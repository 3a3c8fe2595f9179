// Extents: a list of pieces behaves as one contiguous run of bytes, for any pieces and any range.
#include "src/base/span.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

// Extents over their own memory, including empty ones.
class Pieces {
 public:
  explicit Pieces(std::vector<size_t> lengths) {
    for (const size_t length : lengths) storage_.emplace_back(length);
    for (auto& piece : storage_) extents_.push_back({piece.data(), piece.size()});
  }
  Extents extents() const { return extents_; }
  std::vector<std::byte> joined() const {
    std::vector<std::byte> all;
    for (const auto& piece : storage_) all.insert(all.end(), piece.begin(), piece.end());
    return all;
  }

 private:
  std::vector<std::vector<std::byte>> storage_;
  std::vector<iovec> extents_;
};

std::vector<std::byte> counting(size_t size, int first) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i + static_cast<size_t>(first)) & 0xff);
  }
  return bytes;
}

TEST(Span, TotalBytesSumsAllExtents) {
  EXPECT_EQ(total_bytes({}), 0u);
  EXPECT_EQ(total_bytes(Pieces({0, 3, 0, 5}).extents()), 8u);
}

TEST(Span, GatherReturnsWhatScatterWroteForEveryRange) {
  const Pieces pieces({0, 3, 1, 0, 5, 2, 0});
  const size_t total = total_bytes(pieces.extents());
  for (size_t offset = 0; offset <= total; ++offset) {
    for (size_t length = 0; offset + length <= total; ++length) {
      const std::vector<std::byte> blank(total, std::byte{0xee});
      scatter(pieces.extents(), 0, blank);
      const std::vector<std::byte> source = counting(length, 1);
      scatter(pieces.extents(), offset, source);
      // Bytes outside the range are untouched.
      std::vector<std::byte> expected = blank;
      std::copy(source.begin(), source.end(), expected.begin() + static_cast<ptrdiff_t>(offset));
      ASSERT_EQ(pieces.joined(), expected) << offset << "+" << length;
      std::vector<std::byte> back(length);
      gather(pieces.extents(), offset, back);
      ASSERT_EQ(back, source);
    }
  }
}

TEST(Span, PiecesCoverTheRangeInOrder) {
  const Pieces pieces({4, 0, 4, 4});
  std::vector<size_t> lengths;
  for_each_piece(pieces.extents(), 2, 8,
                 [&](std::byte*, size_t length) { lengths.push_back(length); });
  EXPECT_EQ(lengths, (std::vector<size_t>{2, 4, 2}));
}

TEST(Span, CopyOfEveryShortLengthIsComplete) {
  for (size_t length = 0; length <= 70; ++length) {
    const std::vector<std::byte> source = counting(length, 3);
    std::vector<std::byte> target(length + 2, std::byte{0xee});
    copy_bytes(target.data() + 1, source.data(), length);
    ASSERT_TRUE(std::equal(source.begin(), source.end(), target.begin() + 1)) << length;
    ASSERT_EQ(target.front(), std::byte{0xee}) << length;
    ASSERT_EQ(target.back(), std::byte{0xee}) << length;
  }
}

// The first piece holds the whole range or a part of it.
TEST(Span, GatherReadsAnyRangeOfTwoPieces) {
  const Pieces pieces({30, 30});
  scatter(pieces.extents(), 0, counting(60, 1));
  const std::vector<std::byte> all = pieces.joined();
  for (size_t offset = 0; offset <= 60; ++offset) {
    for (size_t length = 0; offset + length <= 60; ++length) {
      std::vector<std::byte> back(length);
      gather(pieces.extents(), offset, back);
      const auto begin = all.begin() + static_cast<ptrdiff_t>(offset);
      ASSERT_TRUE(std::equal(back.begin(), back.end(), begin)) << offset << "+" << length;
      const bool single = offset + length <= 30;
      ASSERT_EQ(single_piece(pieces.extents(), offset, length) != nullptr, single);
    }
  }
}

TEST(Span, EmptyRangeVisitsNoPiece) {
  const Pieces pieces({4});
  int calls = 0;
  for_each_piece(pieces.extents(), 4, 0, [&](std::byte*, size_t) { ++calls; });
  for_each_piece({}, 0, 0, [&](std::byte*, size_t) { ++calls; });
  EXPECT_EQ(calls, 0);
}

TEST(Span, GatherReturnsWhatScatterWroteToRandomExtents) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<size_t> lengths(random() % 8);
    for (size_t& length : lengths) length = random() % 50;
    const Pieces pieces(lengths);
    const size_t total = total_bytes(pieces.extents());
    const size_t offset = random() % (total + 1);
    const std::vector<std::byte> source = counting(random() % (total - offset + 1), round);
    scatter(pieces.extents(), offset, source);
    std::vector<std::byte> back(source.size());
    gather(pieces.extents(), offset, back);
    ASSERT_EQ(back, source);
  }
}

}  // namespace
}  // namespace hetcomm
