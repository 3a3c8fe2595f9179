// Copies: every byte arrives and no other byte is touched, at all page offsets of target and
// source, and around the lengths at which the method changes. No offset is many times slower than
// the others.
#include "src/base/copy.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/pattern.h"

namespace hetcomm {
namespace {

constexpr size_t kPage = 4096;

// Memory that begins at a page boundary.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes + 2 * kPage) {
    first_ = (kPage - reinterpret_cast<uintptr_t>(bytes_.data()) % kPage) % kPage;
  }
  std::byte* at(size_t offset) { return bytes_.data() + first_ + offset; }

 private:
  std::vector<std::byte> bytes_;
  size_t first_;
};

TEST(Copy, WritesExactlyTheTargetBytes) {
  constexpr size_t kMax = 9000;
  Pages source(kMax + kPage);
  Pages target(kMax + kPage);
  test::fill_pattern({source.at(0), kMax + kPage}, 1);
  const std::array lengths = {size_t{0},    size_t{1},    size_t{63},   size_t{64},  size_t{2047},
                              size_t{2048}, size_t{2049}, size_t{4096}, size_t{8999}};
  for (const size_t from : {size_t{0}, size_t{5}, size_t{48}, kPage - 3}) {
    for (size_t to = 0; to < 130; to += to < 70 ? 1 : 7) {
      for (const size_t length : lengths) {
        for (const auto copy : {copy_long, copy_by_lines, copy_streaming}) {
          test::fill_bytes({target.at(0), kMax + kPage}, std::byte{0xcd});
          copy(target.at(to), source.at(from), length);
          ASSERT_EQ(std::memcmp(target.at(to), source.at(from), length), 0)
              << from << " " << to << " " << length;
          ASSERT_TRUE(test::all_bytes({target.at(0), to}, std::byte{0xcd}));
          ASSERT_TRUE(test::all_bytes({target.at(to + length), kMax - length}, std::byte{0xcd}));
        }
      }
    }
  }
}

// On some processors memcpy takes twenty times as long at some offsets.
TEST(TimedCopy, UnalignedOffsetsAreNotMuchSlower) {
  constexpr size_t kLength = 32768;
  Pages source(kLength + kPage);
  Pages target(kLength + kPage);
  test::fill_bytes({source.at(0), kLength + kPage}, std::byte{1});
  test::fill_bytes({target.at(0), kLength + kPage}, std::byte{1});
  const auto fastest_ns = [&](size_t from, size_t to) {
    int64_t best = INT64_MAX;
    for (int i = 0; i < 200; ++i) {
      const auto start = std::chrono::steady_clock::now();
      copy_long(target.at(to), source.at(from), kLength);
      const auto end = std::chrono::steady_clock::now();
      best = std::min<int64_t>(
          best, std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count());
    }
    return best;
  };
  const int64_t even = fastest_ns(0, 0);
  for (const size_t to : {1u, 16u, 31u, 32u, 63u, 64u, 2048u}) {
    EXPECT_LT(fastest_ns(0, to), 6 * even + 2000) << to;
    EXPECT_LT(fastest_ns(16, 16 + to), 6 * even + 2000) << to;
  }
}

}  // namespace
}  // namespace hetcomm
