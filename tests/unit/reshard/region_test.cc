// Common rows of two regions: cut into them, both regions give their bytes in order. Regions of one
// box always have some, and regions without any are reported. Elements are copied, converted and
// added between any two regions of one box as one by one, and nothing beside them is written. Sums
// are added in a wider type without loss, across the rows of any regions; the type is that of the
// wider side. Values that float8_e4m3fn cannot hold saturate, or are NaN.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "src/reduce/reduce.h"
#include "src/reshard/common_rows.h"
#include "src/reshard/region_copy.h"
#include "src/reshard/strided_copy.h"

namespace hetcomm::reshard {
namespace {

std::vector<uint64_t> bytes_of(const Region& region) {
  std::vector<uint64_t> bytes;
  for (RowCursor row(region); row.left() > 0; row.advance(1)) bytes.push_back(row.offset());
  return bytes;
}

// Lists both sides by |rows|.
void list(const CommonRows& rows, const Region& from, const Region& to,
          std::vector<uint64_t>* out_from, std::vector<uint64_t>* out_to) {
  uint64_t count = 1;
  for (size_t d = 0; d < rows.dimensions; ++d) count *= rows.extents[d];
  for (uint64_t row = 0; row < count; ++row) {
    uint64_t rest = row;
    uint64_t from_at = from.offset;
    uint64_t to_at = to.offset;
    for (size_t d = rows.dimensions; d-- > 0;) {
      from_at += rest % rows.extents[d] * rows.from_strides[d];
      to_at += rest % rows.extents[d] * rows.to_strides[d];
      rest /= rows.extents[d];
    }
    for (uint64_t byte = 0; byte < rows.row_bytes; ++byte) {
      out_from->push_back(from_at + byte);
      out_to->push_back(to_at + byte);
    }
  }
}

// Makes a box with these extents in a memory whose dimensions are larger, or in another order.
Region make(const std::vector<uint64_t>& extents, std::mt19937& random, uint64_t element_bytes) {
  StridedBox box;
  box.memory = Space::kSource;
  box.offset = random() % 5;
  std::vector<size_t> order(extents.size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = d;
  if (random() % 4 == 0) std::shuffle(order.begin(), order.end(), random);
  std::vector<uint64_t> strides(extents.size());
  uint64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= extents[order[i]] + (random() % 3 == 0 ? random() % 3 : 0);
  }
  // A dense region is often described with fewer dimensions.
  for (size_t d = 0; d < extents.size(); ++d) {
    const bool joins = box.dimensions > 0 && random() % 2 == 0 &&
                       box.strides[box.dimensions - 1] == strides[d] * extents[d];
    if (joins) {
      box.extents[box.dimensions - 1] *= extents[d];
      box.strides[box.dimensions - 1] = strides[d];
    } else {
      box.extents[box.dimensions] = extents[d];
      box.strides[box.dimensions++] = strides[d];
    }
  }
  return region_of(box, 0, element_bytes, random() % 7);
}

TEST(CommonRows, SplitTwoRegionsIntoMatchingRows) {
  std::mt19937 random(3);
  size_t in_one_row = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<uint64_t> extents(1 + random() % 5);
    for (uint64_t& extent : extents) extent = 1 + random() % 4;
    const uint64_t element_bytes = uint64_t{1} << random() % 4;
    const Region from = make(extents, random, element_bytes);
    const Region to = make(extents, random, element_bytes);
    CommonRows rows;
    ASSERT_TRUE(find_common_rows(from, to, &rows)) << round;
    std::vector<uint64_t> from_bytes;
    std::vector<uint64_t> to_bytes;
    list(rows, from, to, &from_bytes, &to_bytes);
    ASSERT_EQ(from_bytes, bytes_of(from)) << round;
    ASSERT_EQ(to_bytes, bytes_of(to)) << round;
    // Checks that the rows are as long as possible.
    const auto goes_on = [](const std::vector<uint64_t>& bytes, size_t at) {
      return bytes[at] == bytes[at - 1] + 1;
    };
    size_t together = 1;
    while (together < from_bytes.size() && goes_on(from_bytes, together) &&
           goes_on(to_bytes, together)) {
      ++together;
    }
    ASSERT_EQ(rows.row_bytes, together) << round;
    if (rows.dimensions == 0) ++in_one_row;
  }
  EXPECT_GT(in_one_row, 100u);
  EXPECT_LT(in_one_row, 4900u);
}

TEST(CommonRows, AreNotFoundForUnrelatedRegions) {
  Region from;
  from.row_bytes = 6;
  from.rows = from.extents[0] = 2;
  from.dimensions = 1;
  from.strides[0] = 10;
  Region to = from;
  to.row_bytes = 4;
  to.rows = to.extents[0] = 3;
  CommonRows rows;
  EXPECT_FALSE(find_common_rows(from, to, &rows));
  EXPECT_FALSE(find_common_rows(to, from, &rows));
  EXPECT_TRUE(find_common_rows(to, to, &rows));
}

// Extents of boxes with short and long rows, and with more elements than a block.
std::vector<uint64_t> drawn_extents(std::mt19937& random) {
  std::vector<uint64_t> extents(1 + random() % 4);
  for (uint64_t& extent : extents) extent = 1 + random() % 3;
  extents[random() % extents.size()] = 1 + random() % 150;
  extents[random() % extents.size()] = 1 + random() % 90;
  return extents;
}

std::vector<std::byte> drawn_bytes(size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 256);
  return bytes;
}

TEST(RegionCopy, MovesEachElementToItsPlace) {
  std::mt19937 random(5);
  const ElementType types[] = {ElementType::kInt8, ElementType::kFloat16, ElementType::kFloat32,
                               ElementType::kFloat64, ElementType::kComplex128};
  for (int round = 0; round < 300; ++round) {
    const ElementType type = types[random() % std::size(types)];
    const std::vector<uint64_t> extents = drawn_extents(random);
    const Region from = make(extents, random, reduce::size_of(type));
    const Region to = make(extents, random, reduce::size_of(type));
    std::vector<std::byte> source = drawn_bytes(from.end(), random);
    std::vector<std::byte> target = drawn_bytes(to.end() + 3, random);
    std::vector<std::byte> expected = target;
    const std::vector<uint64_t> from_bytes = bytes_of(from);
    const std::vector<uint64_t> to_bytes = bytes_of(to);
    ASSERT_EQ(from_bytes.size(), to_bytes.size());
    for (size_t i = 0; i < to_bytes.size(); ++i) expected[to_bytes[i]] = source[from_bytes[i]];
    copy({source.data(), &from, type}, {target.data(), &to, type});
    ASSERT_EQ(target, expected) << round;
  }
}

TEST(RegionCopy, ConvertsAndAddsEachElementInItsPlace) {
  std::mt19937 random(6);
  for (int round = 0; round < 150; ++round) {
    const std::vector<uint64_t> extents = drawn_extents(random);
    const Region from = make(extents, random, sizeof(float));
    const Region to = make(extents, random, sizeof(double));
    std::vector<std::byte> source(from.end());
    std::vector<std::byte> target(to.end() + 3);
    std::vector<double> terms;
    for (RowCursor row(from); row.left() > 0; row.advance(sizeof(float))) {
      const auto term = static_cast<float>(random() % 1000);
      std::memcpy(source.data() + row.offset(), &term, sizeof term);
      terms.push_back(static_cast<double>(term));
    }
    const CopySide one{source.data(), &from, ElementType::kFloat32};
    const CopySide other{target.data(), &to, ElementType::kFloat64};
    std::vector<std::byte> expected = target;
    for (const double factor : {1, 2, 3}) {
      factor == 1 ? copy(one, other) : add(one, other);
      size_t i = 0;
      for (RowCursor row(to); row.left() > 0; row.advance(sizeof(double))) {
        const double sum = factor * terms[i++];
        std::memcpy(expected.data() + row.offset(), &sum, sizeof sum);
      }
      ASSERT_EQ(target, expected) << round;
    }
  }
}

TEST(RegionCopy, AddsElementsOfOneType) {
  std::mt19937 random(7);
  for (int round = 0; round < 150; ++round) {
    const std::vector<uint64_t> extents = drawn_extents(random);
    const Region from = make(extents, random, 2);
    const Region to = make(extents, random, 2);
    std::vector<std::byte> source = drawn_bytes(from.end(), random);
    std::vector<std::byte> target = drawn_bytes(to.end() + 3, random);
    std::vector<std::byte> expected = target;
    RowCursor at(from);
    for (RowCursor row(to); row.left() > 0; row.advance(2), at.advance(2)) {
      uint16_t term;
      uint16_t sum;
      std::memcpy(&term, source.data() + at.offset(), sizeof term);
      std::memcpy(&sum, expected.data() + row.offset(), sizeof sum);
      sum = static_cast<uint16_t>(sum + term);
      std::memcpy(expected.data() + row.offset(), &sum, sizeof sum);
    }
    add({source.data(), &from, ElementType::kUint16}, {target.data(), &to, ElementType::kUint16});
    ASSERT_EQ(target, expected) << round;
  }
}

Region matrix(uint64_t rows, uint64_t columns, uint64_t row_stride, uint64_t column_stride,
              uint64_t element_bytes) {
  StridedBox box;
  box.dimensions = 2;
  box.extents = {rows, columns};
  box.strides = {row_stride, column_stride};
  return region_of(box, 0, element_bytes, 0);
}

// Sides of these lengths have full tiles, parts of tiles, and both. A row of a region is one
// element of |bytes|.
TEST(RegionCopy, TransposesElementsOfManySizes) {
  std::mt19937 random(11);
  for (const uint64_t bytes : {1u, 2u, 3u, 4u, 6u, 8u, 10u, 12u, 16u, 24u, 32u, 48u, 56u, 64u}) {
    for (const uint64_t side : {1u, 15u, 16u, 32u, 64u, 65u, 130u}) {
      const uint64_t other = 66;
      Region from = matrix(side, other, other, 1, bytes);
      const Region to = matrix(side, other, 1, side, bytes);
      std::vector<std::byte> source = drawn_bytes(from.end(), random);
      std::vector<std::byte> target(to.end() + 1, std::byte{0x5a});
      std::vector<std::byte> expected = target;
      for (uint64_t i = 0; i < side; ++i) {
        for (uint64_t j = 0; j < other; ++j) {
          std::memcpy(expected.data() + (j * side + i) * bytes,
                      source.data() + (i * other + j) * bytes, bytes);
        }
      }
      copy({source.data(), &from, ElementType::kInt8}, {target.data(), &to, ElementType::kInt8});
      ASSERT_EQ(target, expected) << bytes << " bytes, " << side;
    }
  }
}

// Rounding and saturation are those of dense elements.
TEST(RegionCopy, ConvertsShortRowsLikeDenseOnes) {
  constexpr uint64_t kSide = 70;
  std::vector<float> values(kSide * kSide);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(1.0f + static_cast<float>(i) / 4900, static_cast<int>(i % 40) - 20);
  }
  const Region dense_floats = matrix(kSide, kSide, kSide, 1, 4);
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBfloat16,
                                 ElementType::kFloat8E4M3fn, ElementType::kFloat8E5M2}) {
    const uint64_t bytes = reduce::size_of(type);
    const Region dense = matrix(kSide, kSide, kSide, 1, bytes);
    const Region transposed = matrix(kSide, kSide, 1, kSide, bytes);
    const Region transposed_floats = matrix(kSide, kSide, 1, kSide, 4);
    auto* const from = reinterpret_cast<std::byte*>(values.data());
    for (const Overflow overflow : {Overflow::kSaturates, Overflow::kIsNan}) {
      std::vector<std::byte> there(kSide * kSide * bytes);
      std::vector<std::byte> expected(there.size());
      copy({from, &dense_floats, ElementType::kFloat32}, {expected.data(), &dense, type}, overflow);
      copy({from, &transposed_floats, ElementType::kFloat32}, {there.data(), &transposed, type},
           overflow);
      EXPECT_EQ(there, expected) << "the same places, one by one";
      copy({from, &dense_floats, ElementType::kFloat32}, {there.data(), &transposed, type},
           overflow);
      for (uint64_t i = 0; i < kSide * kSide; ++i) {
        const uint64_t place = i % kSide * kSide + i / kSide;
        ASSERT_EQ(std::memcmp(there.data() + place * bytes, expected.data() + i * bytes, bytes), 0);
      }
      std::vector<float> back(kSide * kSide);
      std::vector<float> wide(kSide * kSide);
      copy({there.data(), &transposed, type},
           {reinterpret_cast<std::byte*>(back.data()), &dense_floats, ElementType::kFloat32});
      copy({expected.data(), &dense, type},
           {reinterpret_cast<std::byte*>(wide.data()), &dense_floats, ElementType::kFloat32});
      EXPECT_EQ(std::memcmp(back.data(), wide.data(), back.size() * sizeof(float)), 0);
    }
  }
}

TEST(RegionCopy, RegionThatStaysInPlaceIsNotWritten) {
  constexpr size_t kBytes = 4096;
  void* const page =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);  // a write would crash
  ASSERT_NE(page, MAP_FAILED);
  const Region region = matrix(20, 30, 32, 1, 4);
  const CopySide side{static_cast<std::byte*>(page), &region, ElementType::kFloat32};
  copy(side, side);
  EXPECT_EQ(munmap(page, kBytes), 0);
}

TEST(Blocks, CoverAllRowsOnce) {
  std::mt19937 random(9);
  for (int round = 0; round < 150; ++round) {
    const std::vector<uint64_t> extents = drawn_extents(random);
    const Region from = make(extents, random, 2);
    const Region to = make(extents, random, 2);
    CommonRows rows;
    ASSERT_TRUE(find_common_rows(from, to, &rows));
    const uint64_t most = 1 + random() % 300;
    std::vector<uint64_t> of_from;
    std::vector<uint64_t> of_to;
    for (Blocks blocks(rows, most); blocks.next();) {
      uint64_t count = 1;
      for (size_t d = 0; d < rows.dimensions; ++d) count *= blocks.part().extents[d];
      EXPECT_LE(count, most);
      Region one = from;
      Region other = to;
      one.offset += blocks.from_offset();
      other.offset += blocks.to_offset();
      list(blocks.part(), one, other, &of_from, &of_to);
    }
    std::map<uint64_t, uint64_t> place_of;
    for (size_t i = 0; i < of_from.size(); ++i) place_of[of_to[i]] = of_from[i];
    const std::vector<uint64_t> from_bytes = bytes_of(from);
    const std::vector<uint64_t> to_bytes = bytes_of(to);
    ASSERT_EQ(of_to.size(), to_bytes.size()) << round;
    for (size_t i = 0; i < to_bytes.size(); ++i) {
      ASSERT_EQ(place_of.at(to_bytes[i]), from_bytes[i]) << round;
    }
  }
}

TEST(Sums, UseTheWiderType) {
  using enum ElementType;
  EXPECT_EQ(sum_type_of(kBfloat16, kBfloat16), kFloat32);
  EXPECT_EQ(sum_type_of(kFloat8E5M2, kFloat32), kFloat32);
  EXPECT_EQ(sum_type_of(kFloat32, kFloat16), kFloat32);
  EXPECT_EQ(sum_type_of(kFloat32, kFloat64), kFloat64);
  EXPECT_EQ(sum_type_of(kFloat64, kFloat32), kFloat64);
  EXPECT_EQ(sum_type_of(kInt8, kInt8), kInt8);
  EXPECT_EQ(sum_type_of(kBool, kBool), kBool);
  EXPECT_EQ(sum_type_of(kComplex64, kComplex64), kComplex64);
}

// Adds bfloat16 rows to float32 rows of another length.
TEST(Sums, AddNarrowRowsToWideRows) {
  StridedBox box;
  box.dimensions = 2;
  box.extents = {300, 13};
  box.strides = {20, 1};
  const Region from = region_of(box, 0, 2, 6);
  box.extents = {13, 300};
  box.strides = {301, 1};
  const Region to = region_of(box, 0, 4, 8);
  std::vector<std::byte> narrow(from.end());
  std::vector<std::byte> wide(to.end());
  std::vector<float> terms;
  std::vector<float> sums;
  for (RowCursor row(from); row.left() > 0; row.advance(2)) {
    const float term = static_cast<float>(terms.size() % 251) - 100;
    const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(term) >> 16);
    std::memcpy(narrow.data() + row.offset(), &bits, 2);
    terms.push_back(term);
  }
  for (RowCursor row(to); row.left() > 0; row.advance(4)) {
    const float sum = 0.001f * static_cast<float>(sums.size());
    std::memcpy(wide.data() + row.offset(), &sum, 4);
    sums.push_back(sum);
  }
  add({narrow.data(), &from, ElementType::kBfloat16}, {wide.data(), &to, ElementType::kFloat32});
  size_t at = 0;
  for (RowCursor row(to); row.left() > 0; row.advance(4)) {
    float sum = 0;
    std::memcpy(&sum, wide.data() + row.offset(), 4);
    ASSERT_EQ(sum, sums[at] + terms[at]) << at;
    ++at;
  }
}

TEST(Conversions, SaturateOrGiveNanBeyondTheRange) {
  const std::vector<float> numbers = {448,
                                      464.1f,
                                      -1e30f,
                                      std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::quiet_NaN(),
                                      -3};
  StridedBox box;
  box.dimensions = 1;
  box.extents[0] = numbers.size();
  box.strides[0] = 1;
  const Region from = region_of(box, 0, 4, 0);
  const Region to = region_of(box, 0, 1, 0);
  std::vector<std::byte> wide(from.end());
  std::memcpy(wide.data(), numbers.data(), wide.size());
  const auto converted = [&](Overflow overflow) {
    std::vector<std::byte> narrow(to.end());
    copy({wide.data(), &from, ElementType::kFloat32},
         {narrow.data(), &to, ElementType::kFloat8E4M3fn}, overflow);
    std::vector<int> bits;
    for (const std::byte byte : narrow) bits.push_back(static_cast<int>(byte));
    return bits;
  };
  EXPECT_EQ(converted(Overflow::kSaturates), (std::vector{0x7e, 0x7e, 0xfe, 0x7e, 0x7f, 0xc4}));
  EXPECT_EQ(converted(Overflow::kIsNan), (std::vector{0x7e, 0x7f, 0xff, 0x7f, 0x7f, 0xc4}));
}

}  // namespace
}  // namespace hetcomm::reshard
