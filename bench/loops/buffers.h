// Buffers in host memory for a number of messages in flight, and the pattern that tells whether a
// message arrived whole. Every slot is memory of its own on both sides: messages in flight that
// share a buffer stay in cache and flatter whoever interleaves them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace bench {

// Byte |i| of message |seed| is byte i % 8 of word i / 8.
inline uint64_t pattern_word(uint64_t index, uint64_t seed) {
  return (index + seed * 0x100000001b3U + 1) * 0x9e3779b97f4a7c15U;
}

inline void fill_pattern(uint8_t* bytes, uint64_t size, uint64_t seed) {
  for (uint64_t at = 0; at < size; at += 8) {
    const uint64_t word = pattern_word(at / 8, seed);
    std::memcpy(bytes + at, &word, static_cast<size_t>(std::min<uint64_t>(8, size - at)));
  }
}

// Number of bytes that differ.
inline int64_t count_wrong(const uint8_t* bytes, uint64_t size, uint64_t seed) {
  int64_t wrong = 0;
  for (uint64_t at = 0; at < size; at += 8) {
    const uint64_t word = pattern_word(at / 8, seed);
    const size_t length = static_cast<size_t>(std::min<uint64_t>(8, size - at));
    if (std::memcmp(bytes + at, &word, length) == 0) continue;
    uint8_t expected[8];
    std::memcpy(expected, &word, 8);
    for (size_t i = 0; i < length; ++i) wrong += bytes[at + i] != expected[i] ? 1 : 0;
  }
  return wrong;
}

// |slots| buffers of |bytes| each in one allocation, every one on pages (from 4 KiB up) or cache
// lines of its own.
class SlotMemory {
 public:
  SlotMemory() = default;
  SlotMemory(uint64_t bytes, int slots) : stride_(round_up(bytes)) {
    const uint64_t size = std::max<uint64_t>(stride_ * static_cast<uint64_t>(slots), kPage);
    memory_.reset(
        static_cast<uint8_t*>(std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage)));
    if (memory_ == nullptr) {
      std::fprintf(stderr, "hetcomm_bench: no memory for %d buffers of %llu bytes\n", slots,
                   static_cast<unsigned long long>(bytes));
      std::exit(1);
    }
    std::memset(memory_.get(), 1, static_cast<size_t>(size));
  }

  uint8_t* slot(int index) const { return memory_.get() + static_cast<uint64_t>(index) * stride_; }

 private:
  static constexpr uint64_t kPage = 4096;
  static uint64_t round_up(uint64_t bytes) {
    const uint64_t unit = bytes < kPage ? 64 : kPage;
    return std::max<uint64_t>((bytes + unit - 1) / unit * unit, unit);
  }
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };

  uint64_t stride_ = 0;
  std::unique_ptr<uint8_t, Free> memory_;
};

// Both directions of a rank: what every back end whose messages live in host memory uses.
class HostBuffers {
 public:
  void prepare(uint64_t bytes, int slots) {
    bytes_ = bytes;
    // Give back first: both sets at once may not fit.
    send_ = SlotMemory();
    receive_ = SlotMemory();
    send_ = SlotMemory(bytes, slots);
    receive_ = SlotMemory(bytes, slots);
  }

  uint64_t bytes() const { return bytes_; }
  uint8_t* send_slot(int slot) const { return send_.slot(slot); }
  uint8_t* receive_slot(int slot) const { return receive_.slot(slot); }

  void fill(int slot, uint64_t seed) { fill_pattern(send_slot(slot), bytes_, seed); }
  void clear(int slot) { std::memset(receive_slot(slot), 0, static_cast<size_t>(bytes_)); }
  int64_t wrong(int slot, uint64_t seed) const {
    return count_wrong(receive_slot(slot), bytes_, seed);
  }
  // The receive buffer as another core or the kernel may be filling it; nullptr where the CPU
  // cannot look.
  volatile uint8_t* watch(int slot) const { return receive_slot(slot); }

 private:
  uint64_t bytes_ = 0;
  SlotMemory send_;
  SlotMemory receive_;
};

}  // namespace bench
