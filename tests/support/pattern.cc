#include "tests/support/pattern.h"

#include <algorithm>

namespace hetcomm::test {
namespace {

// Returns the eight bytes of pattern |seed| at position 8 * |index|.
uint64_t pattern_word(uint64_t seed, uint64_t index) {
  uint64_t value = (index + seed) * 0x9e3779b97f4a7c15u;
  return value ^ (value >> 29) ^ seed;
}

// Calls visit(offset, bytes of the pattern, their number) for each pattern word that overlaps the
// |size| bytes from |position| on, until visit returns false.
template <typename Visit>
void for_each_word(size_t size, uint64_t seed, uint64_t position, Visit&& visit) {
  size_t done = 0;
  while (done < size) {
    const uint64_t at = position + done;
    const uint64_t word = pattern_word(seed, at / 8);
    const size_t skip = at % 8;
    const size_t piece = std::min<size_t>(8 - skip, size - done);
    if (!visit(done, reinterpret_cast<const std::byte*>(&word) + skip, piece)) return;
    done += piece;
  }
}

}  // namespace

void fill_pattern(ByteSpan bytes, uint64_t seed, uint64_t position) {
  for_each_word(bytes.size(), seed, position,
                [bytes](size_t offset, const std::byte* word, size_t size) {
                  std::memcpy(bytes.data() + offset, word, size);
                  return true;
                });
}

std::optional<size_t> find_mismatch(ConstByteSpan bytes, uint64_t seed, uint64_t position) {
  std::optional<size_t> found;
  for_each_word(bytes.size(), seed, position,
                [&](size_t offset, const std::byte* expected, size_t size) {
                  if (std::memcmp(bytes.data() + offset, expected, size) == 0) return true;
                  while (bytes[offset] == *expected) ++offset, ++expected;
                  found = offset;
                  return false;
                });
  return found;
}

std::optional<size_t> find_neither(ConstByteSpan bytes, uint64_t a, uint64_t b) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto byte_a = static_cast<std::byte>(pattern_word(a, i / 8) >> (8 * (i % 8)));
    const auto byte_b = static_cast<std::byte>(pattern_word(b, i / 8) >> (8 * (i % 8)));
    if (bytes[i] != byte_a && bytes[i] != byte_b) return i;
  }
  return std::nullopt;
}

void fill_bytes(ByteSpan bytes, std::byte value) { std::fill(bytes.begin(), bytes.end(), value); }

bool all_bytes(ConstByteSpan bytes, std::byte value) {
  return bytes.empty() ||
         (bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace hetcomm::test
