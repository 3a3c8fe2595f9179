// Packed numbers and texts:
//  * written data is read back for any numbers and texts;
//  * numbers that repeat or grow evenly take a few bytes, however many there are;
//  * every prefix, every changed byte and random bytes fail or give values within the limits.
#include "src/base/packed.h"

#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

using Column = std::vector<uint32_t>;
using Texts = std::vector<std::string>;

std::vector<std::byte> packed(const Column& column) {
  ByteWriter writer;
  write_column(writer, column);
  return writer.take();
}

std::vector<std::byte> packed(const Texts& texts) {
  ByteWriter writer;
  write_texts(writer, texts);
  return writer.take();
}

TEST(Packed, NumbersRoundTripAndOverlongEncodingsFail) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    for (const uint64_t value : {uint64_t{1} << bit, (uint64_t{1} << bit) - 1}) {
      ByteWriter writer;
      write_packed(writer, value);
      ByteReader reader(writer.bytes());
      EXPECT_EQ(read_packed(reader), value);
      EXPECT_TRUE(reader.finished());
    }
  }
  // Tests a number with one bit too many, and one without an end.
  for (const uint8_t last : {uint8_t{2}, uint8_t{0x80}}) {
    ByteWriter writer;
    for (int i = 0; i < 9; ++i) writer.write(uint8_t{0xff});
    writer.write(last);
    ByteReader reader(writer.bytes());
    EXPECT_EQ(read_packed(reader), 0U);
    EXPECT_TRUE(reader.failed());
  }
}

TEST(Packed, ColumnsReadBackAsWritten) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Column column;
    const size_t size = random() % 60;
    const auto end = static_cast<uint32_t>(1 + random() % 5000);
    while (column.size() < size) {
      const auto first = static_cast<int64_t>(random() % end);
      const int64_t step = static_cast<int64_t>(random() % 7) - 3;
      for (uint32_t i = 0; i < random() % 9 && column.size() < size; ++i) {
        const int64_t value = first + step * i;
        if (value >= 0 && value < int64_t{end}) column.push_back(static_cast<uint32_t>(value));
      }
    }
    const std::vector<std::byte> bytes = packed(column);
    ByteReader reader(bytes);
    ASSERT_EQ(read_column(reader, size, end), column);
    ASSERT_TRUE(reader.finished());
  }
}

TEST(Packed, RegularColumnsTakeFewBytes) {
  Column same(65536, 7);
  Column rising(65536);
  Column falling(65536);
  Column in_turn(65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    rising[i] = i;
    falling[i] = 65535 - i;
    in_turn[i] = i % 8192;
  }
  EXPECT_LE(packed(same).size(), 8U);
  EXPECT_LE(packed(rising).size(), 8U);
  EXPECT_LE(packed(falling).size(), 8U);
  EXPECT_LE(packed(in_turn).size(), 64U);
}

TEST(Packed, SmallIrregularNumbersTakeOneByteEach) {
  std::mt19937 random(4);
  Column column;
  for (int i = 0; i < 1000; ++i) column.push_back(static_cast<uint32_t>(random() % 100));
  EXPECT_LE(packed(column).size(), 1001U);
}

TEST(Packed, ColumnsBeyondTheLimitsAreRefused) {
  const auto refused = [](uint64_t run, uint64_t first, uint64_t folded_step) {
    ByteWriter writer;
    writer.write(uint8_t{0});  // in runs
    write_packed(writer, run);
    write_packed(writer, first);
    write_packed(writer, folded_step);
    ByteReader reader(writer.bytes());
    return read_column(reader, 4, 10).empty() && reader.failed();
  };
  EXPECT_FALSE(refused(4, 6, 2));  // 6, 7, 8, 9
  EXPECT_TRUE(refused(4, 7, 2));
  EXPECT_TRUE(refused(4, 2, 1));  // 2, 1, 0, -1
  EXPECT_TRUE(refused(5, 0, 0));
  EXPECT_TRUE(refused(0, 0, 0));
  EXPECT_TRUE(refused(4, 10, 0));
  EXPECT_TRUE(refused(4, std::numeric_limits<uint64_t>::max(), 2));
  EXPECT_TRUE(refused(4, 0, std::numeric_limits<uint64_t>::max()));
  EXPECT_TRUE(refused(4, 0, std::numeric_limits<uint64_t>::max() - 1));
}

TEST(Packed, TextsReadBackAndShareCommonPrefixes) {
  const Texts texts = {"",     "node-0001", "node-0002",         "node-0002",
                       "node", "other",     std::string(3, '\0')};
  const std::vector<std::byte> bytes = packed(texts);
  ByteReader reader(bytes);
  EXPECT_EQ(read_texts(reader, {.count = texts.size(), .bytes_each = 9}), texts);
  EXPECT_TRUE(reader.finished());
  for (const size_t most : {texts.size() - 1, size_t{0}}) {
    ByteReader few(bytes);
    EXPECT_TRUE(read_texts(few, {.count = most, .bytes_each = 9}).empty());
    EXPECT_TRUE(few.failed());
  }
  ByteReader too_long(bytes);
  EXPECT_TRUE(read_texts(too_long, {.count = texts.size(), .bytes_each = 8}).empty());
  Texts many;
  for (int i = 1000; i < 2000; ++i) many.push_back("host-of-a-long-name-" + std::to_string(i));
  EXPECT_LE(packed(many).size(), 3300U);
}

TEST(Packed, TextsBeyondTheTotalLimitAreRefused) {
  const Texts texts(100, std::string(50, 'x'));  // two bytes each, after the first
  const std::vector<std::byte> bytes = packed(texts);
  EXPECT_LE(bytes.size(), 360U);
  ByteReader exact(bytes);
  EXPECT_EQ(read_texts(exact, {.count = 100, .bytes_each = 50, .bytes_all = 5000}), texts);
  ByteReader strict(bytes);
  EXPECT_TRUE(read_texts(strict, {.count = 100, .bytes_each = 50, .bytes_all = 4999}).empty());
  EXPECT_TRUE(strict.failed());
}

TEST(Packed, CorruptedBytesNeverDecodeBeyondTheLimits) {
  std::mt19937 random(2);
  const Column column = {5, 5, 5, 6, 7, 8, 2, 0, 9};
  const Texts texts = {"abc", "abd", "x"};
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = round % 2 == 0 ? packed(column) : packed(texts);
    if (round % 3 == 0) {
      bytes.resize(random() % bytes.size());
    } else {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    ByteReader columns(bytes);
    const Column got = read_column(columns, column.size(), 10);
    ASSERT_TRUE(columns.failed() ? got.empty() : got.size() == column.size());
    for (const uint32_t value : got) ASSERT_LT(value, 10U);
    ByteReader lists(bytes);
    for (const std::string& text : read_texts(lists, {.count = 3, .bytes_each = 4}))
      ASSERT_LE(text.size(), 4U);
  }
}

}  // namespace
}  // namespace hetcomm
