#include "tests/support/pattern.h"

#include <algorithm>

namespace hetcomm::test {
namespace {

// The eight bytes of pattern |seed| at position 8 * |index|.
uint64_t pattern_word(uint64_t seed, uint64_t index) {
  uint64_t value = (index + seed) * 0x9e3779b97f4a7c15u;
  return value ^ (value >> 29) ^ seed;
}

}  // namespace

void fill_pattern(ByteSpan bytes, uint64_t seed, uint64_t position) {
  size_t done = 0;
  while (done < bytes.size()) {
    const uint64_t at = position + done;
    const uint64_t word = pattern_word(seed, at / 8);
    const size_t skip = at % 8;
    const size_t piece = std::min<size_t>(8 - skip, bytes.size() - done);
    std::memcpy(bytes.data() + done, reinterpret_cast<const std::byte*>(&word) + skip, piece);
    done += piece;
  }
}

std::optional<size_t> find_mismatch(ConstByteSpan bytes, uint64_t seed, uint64_t position) {
  size_t done = 0;
  while (done < bytes.size()) {
    const uint64_t at = position + done;
    const uint64_t word = pattern_word(seed, at / 8);
    const size_t skip = at % 8;
    const size_t piece = std::min<size_t>(8 - skip, bytes.size() - done);
    const auto* expected = reinterpret_cast<const std::byte*>(&word) + skip;
    if (std::memcmp(bytes.data() + done, expected, piece) != 0) {
      while (bytes[done] == *expected) ++done, ++expected;
      return done;
    }
    done += piece;
  }
  return std::nullopt;
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
