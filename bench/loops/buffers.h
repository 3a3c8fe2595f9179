// Holds the buffers of the messages in flight in host memory, and defines the pattern that shows
// whether a message arrived intact. Every slot has its own memory on both sides: messages in flight
// that share a buffer would stay in cache and favour libraries that interleave them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace bench {

// Returns word |index| of the pattern of message |seed|. Byte i of the message is byte i % 8 of
// word i / 8.
inline uint64_t pattern_word(uint64_t index, uint64_t seed) {
  return (index + seed * 0x100000001b3U + 1) * 0x9e3779b97f4a7c15U;
}

inline void fill_pattern(uint8_t* bytes, uint64_t size, uint64_t seed) {
  for (uint64_t at = 0; at < size; at += 8) {
    const uint64_t word = pattern_word(at / 8, seed);
    std::memcpy(bytes + at, &word, static_cast<size_t>(std::min<uint64_t>(8, size - at)));
  }
}

// Returns the number of bytes that differ from the pattern of |seed|.
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

// Holds |slots| buffers of |bytes| each in one block of memory. Each buffer has its own pages (if
// it has 4 KiB or more) or cache lines.
class SlotMemory {
 public:
  SlotMemory() = default;
  // Allocates its own memory.
  SlotMemory(uint64_t bytes, int slots) : SlotMemory(bytes, slots, allocate(size(bytes, slots))) {
    own_.reset(memory_);
  }
  // Uses |memory| of size() bytes, which the caller owns.
  SlotMemory(uint64_t bytes, int slots, uint8_t* memory) : stride_(stride(bytes)), memory_(memory) {
    std::memset(memory_, 1, static_cast<size_t>(size(bytes, slots)));
  }

  uint8_t* slot(int index) const { return memory_ + static_cast<uint64_t>(index) * stride_; }

  // Returns the bytes from the start of one slot to the start of the next.
  static uint64_t stride(uint64_t bytes) {
    const uint64_t unit = bytes < kPage ? 64 : kPage;
    return std::max<uint64_t>((bytes + unit - 1) / unit * unit, unit);
  }
  // Returns the bytes of all slots together.
  static uint64_t size(uint64_t bytes, int slots) {
    const uint64_t used = stride(bytes) * static_cast<uint64_t>(slots);
    return (used + kPage - 1) / kPage * kPage;
  }

 private:
  static constexpr uint64_t kPage = 4096;
  static uint8_t* allocate(uint64_t size) {
    void* memory = std::aligned_alloc(kPage, static_cast<size_t>(size));
    if (memory == nullptr) {
      std::fprintf(stderr, "hetcomm_bench: there is no memory for buffers of %llu bytes\n",
                   static_cast<unsigned long long>(size));
      std::exit(1);
    }
    return static_cast<uint8_t*>(memory);
  }
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };

  uint64_t stride_ = 0;
  uint8_t* memory_ = nullptr;
  std::unique_ptr<uint8_t, Free> own_;
};

// Exposed specifies which buffers the peer accesses with one-sided operations. kReceive buffers are
// the target of the peer's puts, and kSend buffers the source of its gets.
enum class Exposed { kReceive, kSend };

// HostBuffers holds the buffers of both directions of a rank, for back ends with messages in host
// memory.
class HostBuffers {
 public:
  // A back end with one-sided operations sets this to true, see loops/one_sided.h.
  static constexpr bool kOneSided = false;
  // A back end with collective operations sets this to true, see loops/collectives.h.
  static constexpr bool kCollectives = false;
  // Does nothing: collective operations use the slots directly. A back end with other memory copies
  // the slots to the device before the measurement, and back before the check.
  void slots_to_device() {}
  void slots_from_device() {}

  void prepare(uint64_t bytes, int slots) {
    give_back();
    bytes_ = bytes;
    send_ = SlotMemory(bytes, slots);
    receive_ = SlotMemory(bytes, slots);
  }
  // Prepares the buffers of both directions. The |exposed| ones are in |memory|, which has
  // SlotMemory::size() bytes.
  void prepare(uint64_t bytes, int slots, Exposed exposed, void* memory) {
    give_back();
    bytes_ = bytes;
    SlotMemory& theirs = exposed == Exposed::kSend ? send_ : receive_;
    SlotMemory& own = exposed == Exposed::kSend ? receive_ : send_;
    theirs = SlotMemory(bytes, slots, static_cast<uint8_t*>(memory));
    own = SlotMemory(bytes, slots);
  }
  // Frees the buffers before new ones are allocated, since there may not be enough memory for both.
  void give_back() {
    send_ = SlotMemory();
    receive_ = SlotMemory();
  }

  uint64_t bytes() const { return bytes_; }
  uint8_t* send_slot(int slot) const { return send_.slot(slot); }
  uint8_t* receive_slot(int slot) const { return receive_.slot(slot); }

  void fill(int slot, uint64_t seed) { fill_pattern(send_slot(slot), bytes_, seed); }
  void clear(int slot) { std::memset(receive_slot(slot), 0, static_cast<size_t>(bytes_)); }
  int64_t wrong(int slot, uint64_t seed) const {
    return count_wrong(receive_slot(slot), bytes_, seed);
  }
  // Returns the receive buffer, which another core or the kernel may be filling. A back end whose
  // receive buffers the CPU cannot read returns nullptr.
  volatile uint8_t* watch(int slot) const { return receive_slot(slot); }

 private:
  uint64_t bytes_ = 0;
  SlotMemory send_;
  SlotMemory receive_;
};

}  // namespace bench
