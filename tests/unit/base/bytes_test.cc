// ByteWriter and ByteReader: written data is read back identically on every machine. A reader never
// reads past its input, whatever the input contains, and after one failure every later read fails.
#include "src/base/bytes.h"

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(Bytes, ReadBackAsWritten) {
  ByteWriter writer;
  writer.write<uint8_t>(0xfe);
  writer.write<int16_t>(-2);
  writer.write<uint32_t>(0xdeadbeef);
  writer.write<int64_t>(std::numeric_limits<int64_t>::min());
  writer.write<uint64_t>(std::numeric_limits<uint64_t>::max());
  writer.write<bool>(true);
  writer.write_string("eth0");
  writer.write_string("");
  writer.write_bytes(bytes_of({1, 2, 3}));

  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.read<uint8_t>(), 0xfe);
  EXPECT_EQ(reader.read<int16_t>(), -2);
  EXPECT_EQ(reader.read<uint32_t>(), 0xdeadbeefu);
  EXPECT_EQ(reader.read<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(reader.read<uint64_t>(), std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(reader.read<bool>());
  EXPECT_EQ(reader.read_string(16), "eth0");
  EXPECT_EQ(reader.read_string(16), "");
  EXPECT_EQ(reader.read_bytes(3).size(), 3u);
  EXPECT_TRUE(reader.finished());
}

TEST(Bytes, AreLittleEndianOnTheWire) {
  ByteWriter writer;
  writer.write<uint32_t>(0x01020304);
  writer.write_string("a");
  EXPECT_EQ(writer.take(), bytes_of({4, 3, 2, 1, 1, 0, 0, 0, 'a'}));
}

TEST(Bytes, ReaderWithUnreadInputIsNotFinished) {
  const std::vector<std::byte> input = bytes_of({1, 2});
  ByteReader reader(input);
  static_cast<void>(reader.read<uint8_t>());
  EXPECT_FALSE(reader.failed());
  EXPECT_FALSE(reader.finished());
  EXPECT_EQ(reader.left(), 1u);
}

TEST(Bytes, ReadPastTheEndFailsAndStaysFailed) {
  const std::vector<std::byte> input = bytes_of({1, 2, 3});
  ByteReader reader(input);
  EXPECT_EQ(reader.read<uint32_t>(), 0u);
  EXPECT_TRUE(reader.failed());
  // Three bytes would have sufficed for these reads.
  EXPECT_EQ(reader.read<uint8_t>(), 0);
  EXPECT_EQ(reader.read_raw(1).size(), 0u);
  EXPECT_EQ(reader.read_raw(0).size(), 0u);
  EXPECT_EQ(reader.left(), 0u);
  EXPECT_FALSE(reader.finished());
}

TEST(Bytes, StringOverTheLengthLimitFails) {
  ByteWriter writer;
  writer.write_string("12345");
  ByteReader exact(writer.bytes());
  EXPECT_EQ(exact.read_string(5), "12345");
  ByteReader strict(writer.bytes());
  EXPECT_EQ(strict.read_string(4), "");
  EXPECT_TRUE(strict.failed());
}

TEST(Bytes, CountBeyondTheLimitOrInputFails) {
  const std::vector<std::byte> input = bytes_of({3, 1, 2, 3, 4, 5, 6});
  ByteReader fits(input);
  EXPECT_EQ(fits.read_count<uint8_t>(3, 2), 3u);
  EXPECT_EQ(fits.left(), 6u);
  ByteReader over_limit(input);
  EXPECT_EQ(over_limit.read_count<uint8_t>(2), 0u);
  EXPECT_TRUE(over_limit.failed());
  ByteReader over_rest(input);
  EXPECT_EQ(over_rest.read_count<uint8_t>(100, 3), 0u);
  EXPECT_TRUE(over_rest.failed());
  ByteReader failed(bytes_of({}));
  failed.fail();
  EXPECT_EQ(failed.check_count(0, 1), 0u);
  EXPECT_TRUE(failed.failed());
}

TEST(Bytes, ArrayIsReadCompletelyOrNotAtAll) {
  const std::vector<std::byte> input = bytes_of({1, 2, 3});
  ByteReader reader(input);
  std::array<std::byte, 2> pair{};
  reader.read_into(pair);
  EXPECT_EQ(pair, (std::array{std::byte{1}, std::byte{2}}));
  reader.read_into(pair);
  EXPECT_TRUE(reader.failed());
  EXPECT_EQ(pair, (std::array{std::byte{1}, std::byte{2}}));
}

TEST(Bytes, StringLengthBeyondTheInputFails) {
  for (const uint32_t length : {4u, 5u, 0x7fffffffu, 0xffffffffu}) {
    ByteWriter writer;
    writer.write(length);
    writer.write_raw(bytes_of({1, 2, 3}));
    ByteReader reader(writer.bytes());
    EXPECT_TRUE(reader.read_bytes(std::numeric_limits<size_t>::max()).empty());
    EXPECT_TRUE(reader.failed()) << length;
  }
}

TEST(Bytes, HugeRawReadDoesNotWrapAround) {
  const std::vector<std::byte> input = bytes_of({1, 2, 3});
  ByteReader reader(input);
  EXPECT_TRUE(reader.read_raw(std::numeric_limits<size_t>::max()).empty());
  EXPECT_TRUE(reader.failed());
}

TEST(Bytes, EmptyInputIsFinishedAndReadsFail) {
  ByteReader reader({});
  EXPECT_TRUE(reader.finished());
  EXPECT_EQ(reader.read_string(8), "");
  EXPECT_TRUE(reader.failed());
}

// Reads randomly from random bytes. The address sanitizer checks that no read leaves the input.
TEST(Bytes, RandomReadsStayInsideTheInput) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> input(random() % 40);
    for (std::byte& byte : input) byte = static_cast<std::byte>(random() % 4);
    ByteReader reader(input);
    size_t consumed = 0;
    uint64_t sum = 0;
    for (int step = 0; step < 20; ++step) {
      const size_t before = reader.left();
      switch (random() % 5) {
        case 0:
          sum += reader.read<uint8_t>();
          break;
        case 1:
          sum += reader.read<uint64_t>();
          break;
        case 2:
          sum += reader.read_string(random() % 64).size();
          break;
        case 3:
          for (const std::byte byte : reader.read_bytes(64)) sum += std::to_integer<uint8_t>(byte);
          break;
        default:
          sum += reader.read_raw(random() % 16).size();
          break;
      }
      ASSERT_LE(reader.left(), before);
      consumed += before - reader.left();
    }
    ASSERT_LE(consumed, input.size());
    ASSERT_TRUE(reader.failed() || consumed + reader.left() == input.size()) << sum;
  }
}

// A truncated message is never accepted as a complete one.
TEST(Bytes, EveryTruncatedMessageFails) {
  ByteWriter writer;
  writer.write<uint16_t>(3);
  writer.write_string("mlx5_0");
  writer.write<uint64_t>(42);
  const std::vector<std::byte> whole = writer.take();
  for (size_t length = 0; length <= whole.size(); ++length) {
    ByteReader reader(ConstByteSpan(whole).first(length));
    static_cast<void>(reader.read<uint16_t>());
    static_cast<void>(reader.read_string(16));
    static_cast<void>(reader.read<uint64_t>());
    EXPECT_EQ(reader.finished(), length == whole.size()) << length;
  }
}

}  // namespace
}  // namespace hetcomm
