#include "src/base/extent_cursor.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "tests/support/pattern.h"

namespace hetcomm::test {
namespace {

// Pieces filled with a pattern, and a position within them.
struct Place {
  explicit Place(Random& random)
      : memory(random.between(1, 3000), random.between(1, 20), random),
        position(random.below(memory.size())) {
    memory.fill(5);
    cursor.seek(memory.extents(), position);
  }
  GuardedMemory memory;
  uint64_t position;
  ExtentCursor cursor;
};

TEST(ExtentCursor, VisitsEveryByteOnceFromAnyPosition) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    Place place(random);
    auto& [memory, position, cursor] = place;
    while (position < memory.size()) {
      if (random.chance(0.1)) {
        position = random.below(memory.size());
        cursor.seek(memory.extents(), position);
      }
      ASSERT_EQ(cursor.position, position);
      const uint64_t length = random.between(1, std::min<uint64_t>(500, memory.size() - position));
      cursor.take(memory.extents(), length,
                  [&, &at = position](const std::byte* piece, size_t bytes) {
                    ASSERT_FALSE(find_mismatch({piece, bytes}, 5, at));
                    at += bytes;
                  });
    }
  }
}

// collect() must list the same pieces that take() visits.
TEST(ExtentCursor, CollectListsConsecutivePiecesUpToTheLimit) {
  Random random(4);
  for (int round = 0; round < 300; ++round) {
    Place place(random);
    auto& [memory, position, cursor] = place;
    std::array<iovec, 4> out;
    const uint64_t most = random.between(1, memory.size() - position);
    const Pieces pieces = collect(memory.extents(), cursor, most, out);
    ASSERT_GE(pieces.count, 1u);
    ASSERT_LE(pieces.bytes, most);
    ASSERT_TRUE(pieces.count == out.size() || pieces.bytes == most);
    for (size_t i = 0; i < pieces.count; ++i) {
      const auto* piece = static_cast<const std::byte*>(out[i].iov_base);
      ASSERT_GT(out[i].iov_len, 0u);
      ASSERT_FALSE(find_mismatch({piece, out[i].iov_len}, 5, position));
      position += out[i].iov_len;
    }
    cursor.advance(memory.extents(), pieces.bytes);
    ASSERT_EQ(cursor.position, position);
  }
}

}  // namespace
}  // namespace hetcomm::test
