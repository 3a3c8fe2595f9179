// Recognisable bytes: patterns by seed and position, a small random generator, and memory cut into
// random pieces with guard bytes between them.
//
// A pattern depends only on seed and position, so any part of a transfer can be checked without the
// other side's memory. With the same seed, everything here repeats exactly on every run. The loops
// over many bytes are in pattern.cc, which is optimised even in unoptimised test builds.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "src/base/span.h"

namespace hetcomm::test {

inline uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// A random generator that is uniform enough for tests, cheap to seed and never stuck at zero.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  // Returns a number in [0, bound), or 0 for a bound of 0.
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : next() % bound; }
  // Returns a number in [low, high].
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability;
  }
  // Returns a number in [1, bound]. Every order of magnitude is equally likely.
  uint64_t size_up_to(uint64_t bound) {
    uint64_t bits = 1;
    while (bits < 63 && (uint64_t{1} << bits) <= bound) ++bits;
    return 1 + below(uint64_t{1} << between(0, bits)) % bound;
  }

 private:
  uint64_t state_;
};

// Writes pattern |seed|, starting at its |position|.
void fill_pattern(ByteSpan bytes, uint64_t seed, uint64_t position = 0);
// Returns the index of the first byte that differs from pattern |seed| (from |position|), or
// nullopt.
std::optional<size_t> find_mismatch(ConstByteSpan bytes, uint64_t seed, uint64_t position = 0);
// Returns the index of the first byte that is in neither pattern |a| nor pattern |b|, both from
// position 0, or nullopt.
std::optional<size_t> find_neither(ConstByteSpan bytes, uint64_t a, uint64_t b);

void fill_bytes(ByteSpan bytes, std::byte value);
bool all_bytes(ConstByteSpan bytes, std::byte value);
// Returns what a == b does for two vectors, without a loop over bytes in the test's own source.
bool same_bytes(ConstByteSpan a, ConstByteSpan b);
// Replaces each byte of |into| by the byte of |other| at the same place if that is greater. Both
// have the same size.
void keep_greatest(ByteSpan into, ConstByteSpan other);

// Memory of |size| bytes in random pieces (some empty), each surrounded by guard bytes.
class GuardedMemory {
 public:
  GuardedMemory(uint64_t size, size_t pieces, Random& random) : size_(size) {
    std::vector<uint64_t> cuts = {0, size};
    for (size_t i = 1; i < pieces; ++i) cuts.push_back(random.between(0, size));
    std::sort(cuts.begin(), cuts.end());
    storage_.resize(size + cuts.size() * (kGuard + 7));
    std::byte* next = storage_.data();
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      next += kGuard + random.below(8);
      const size_t length = cuts[i + 1] - cuts[i];
      extents_.push_back({next, length});
      next += length;
    }
    std::memset(storage_.data(), kGuardByte, storage_.size());
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  Extents extents() const { return extents_; }
  uint64_t size() const { return size_; }

  // Fills |length| bytes at |offset| with pattern |seed|, starting at the pattern's |position|.
  void fill(uint64_t seed, uint64_t offset, uint64_t length, uint64_t position) {
    for_each_piece(extents_, offset, length, [&](std::byte* piece, size_t bytes) {
      fill_pattern({piece, bytes}, seed, position);
      position += bytes;
    });
  }
  void fill(uint64_t seed) { fill(seed, 0, size_, 0); }

  // Returns the offset of the first byte of the range that differs from the pattern, or nullopt.
  std::optional<uint64_t> mismatch(uint64_t seed, uint64_t offset, uint64_t length,
                                   uint64_t position) const {
    std::optional<uint64_t> found;
    uint64_t at = offset;
    for_each_piece(extents_, offset, length, [&](const std::byte* piece, size_t bytes) {
      if (found) return;
      if (const auto bad = find_mismatch({piece, bytes}, seed, position)) found = at + *bad;
      at += bytes;
      position += bytes;
    });
    return found;
  }
  std::optional<uint64_t> mismatch(uint64_t seed) const { return mismatch(seed, 0, size_, 0); }

  // Returns the offset of the first byte that is in neither pattern |a| nor pattern |b|, both from
  // position 0 on.
  std::optional<uint64_t> neither(uint64_t a, uint64_t b) const {
    std::vector<std::byte> flat(size_);
    gather(extents_, 0, flat);
    return find_neither(flat, a, b);
  }

  // Returns whether all guard bytes are unchanged.
  bool guards_intact() const {
    const std::byte* next = storage_.data();
    for (const iovec& extent : extents_) {
      const auto* start = static_cast<const std::byte*>(extent.iov_base);
      if (!all_guard(next, start)) return false;
      next = start + extent.iov_len;
    }
    return all_guard(next, storage_.data() + storage_.size());
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr unsigned char kGuardByte = 0xa5;
  static bool all_guard(const std::byte* from, const std::byte* to) {
    return all_bytes({from, static_cast<size_t>(to - from)}, std::byte{kGuardByte});
  }

  uint64_t size_;
  std::vector<std::byte> storage_;
  std::vector<iovec> extents_;
};

}  // namespace hetcomm::test
