#include "tests/support/pattern.h"

#include <algorithm>

namespace hetcomm::test {
namespace {

// Returns the eight bytes of pattern |seed| at position 8 * |index|.
uint64_t pattern_word(uint64_t seed, uint64_t index) {
  uint64_t value = (index + seed) * 0x9e3779b97f4a7c15u;
  return value ^ (value >> 29) ^ seed;
}

// Calls visit(offset, bytes of the pattern, their number) for each block of the pattern that
// overlaps the |size| bytes from |position| on, until visit returns false. A block is longer than a
// word since sanitizers check once for each call of memcpy or memcmp.
template <typename Visit>
void for_each_block(size_t size, uint64_t seed, uint64_t position, Visit&& visit) {
  constexpr size_t kWords = 256;
  uint64_t words[kWords];
  size_t done = 0;
  while (done < size) {
    const uint64_t at = position + done;
    const size_t skip = at % 8;
    const size_t piece = std::min(sizeof(words) - skip, size - done);
    const size_t used = (skip + piece + 7) / 8;
    for (size_t i = 0; i < used; ++i) words[i] = pattern_word(seed, at / 8 + i);
    if (!visit(done, reinterpret_cast<const std::byte*>(words) + skip, piece)) return;
    done += piece;
  }
}

}  // namespace

void fill_pattern(ByteSpan bytes, uint64_t seed, uint64_t position) {
  for_each_block(bytes.size(), seed, position,
                 [bytes](size_t offset, const std::byte* block, size_t size) {
                   std::memcpy(bytes.data() + offset, block, size);
                   return true;
                 });
}

std::optional<size_t> find_mismatch(ConstByteSpan bytes, uint64_t seed, uint64_t position) {
  std::optional<size_t> found;
  for_each_block(bytes.size(), seed, position,
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

bool same_bytes(ConstByteSpan a, ConstByteSpan b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

void keep_greatest(ByteSpan into, ConstByteSpan other) {
  std::transform(into.begin(), into.end(), other.begin(), into.begin(),
                 [](std::byte a, std::byte b) { return std::max(a, b); });
}

}  // namespace hetcomm::test
