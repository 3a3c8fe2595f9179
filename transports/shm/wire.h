// Defines the formats that the two processes of a connection share: the layout of the mapped file,
// and the parcels on the local socket.
//
//   control    Side of the initiator, Side of the acceptor: allocated at connect
//   ring 0     payloads from the initiator to the acceptor: allocated at first use
//   ring 1     payloads from the acceptor to the initiator: allocated at first use
//
// Each word has one writer, except Side::asleep, which the peer clears with an atomic exchange. All
// data that the peer can write is hostile. It is read exactly once, into private memory, and then
// checked before it is used.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/base/copy.h"

namespace hetcomm::shm {

inline constexpr uint16_t kLayoutVersion = 2;
inline constexpr uint64_t kPageBytes = 4096;

// The alignment of data that the sides write. It is two cache lines, so that the adjacent-line
// prefetcher does not transfer one side's line to the other side.
inline constexpr size_t kLineBytes = 128;

inline constexpr uint64_t kSlotCount = 64;
inline constexpr size_t kSlotHeaderBytes = 32;
inline constexpr size_t kInlineBytes = 88;
inline constexpr uint32_t kSourceCount = 1024;

// Payloads in the ring start at multiples of this alignment.
inline constexpr uint64_t kRingAlign = 64;
inline constexpr uint64_t kMinRingBytes = 64 << 10;
inline constexpr uint64_t kMaxRingBytes = 1ull << 30;
inline constexpr uint32_t kMinChunkBytes = 4 << 10;
inline constexpr uint32_t kMaxChunkBytes = 1 << 20;

enum class SlotKind : uint8_t {
  kInline = 1,   // message with its payload in the slot
  kRing = 2,     // message with its payload in the ring: body is a RingPosition
  kPut = 3,      // piece of a put: header is a PutPiece
  kPutLast = 4,  // the last piece of a put
};

// One entry of a FIFO. Its first 64 bytes, one cache line, contain all of a message of up to 24
// bytes.
struct alignas(kLineBytes) FifoSlot {
  std::atomic<uint32_t> sequence;  // entry number + 1, written last
  uint32_t kind_and_length;        // kind << 24 | payload bytes
  std::array<std::byte, kSlotHeaderBytes> header;
  std::array<std::byte, kInlineBytes> body;
};
static_assert(sizeof(FifoSlot) == 128 && offsetof(FifoSlot, body) == 40);

// The bytes of a ring are numbered continuously. Byte n is stored at n modulo the ring's size.
using RingPosition = uint64_t;

struct PutPiece {
  uint64_t token;         // words[0] of the target's key
  uint64_t offset;        // within the exposed memory
  uint64_t total;         // bytes of the whole put; checked when its last piece arrives
  RingPosition position;  // position of the piece's bytes
};
static_assert(sizeof(PutPiece) == kSlotHeaderBytes);

// The bits of Side::asleep are the events that wake the sleeping side.
inline constexpr uint32_t kWakeOnSlot = 1;
inline constexpr uint32_t kWakeOnRoom = 2;

// The fields that one side of the connection writes. The other side only clears |asleep|.
struct Side {
  // The total numbers of slots and ring bytes of the other side's output that this side has
  // consumed. The other side reads them only when it runs out of space.
  alignas(kLineBytes) std::atomic<uint64_t> consumed_slots;
  std::atomic<uint64_t> consumed_bytes;
  alignas(kLineBytes) std::atomic<uint32_t> asleep;
  alignas(kLineBytes) std::array<FifoSlot, kSlotCount> slots;
  // The generation of each exposed get source, or 0 if it was withdrawn.
  alignas(kLineBytes) std::array<std::atomic<uint32_t>, kSourceCount> sources;
};

struct Control {
  std::array<Side, 2> sides;
};
inline constexpr uint64_t kControlBytes =
    (sizeof(Control) + kPageBytes - 1) / kPageBytes * kPageBytes;
static_assert(kControlBytes <= 32 << 10);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The kinds of parcels that are sent over a connection's local socket after setup. kRing wakes a
// sleeping peer. The other kinds concern regions (mapping.h).
enum class ParcelKind : uint32_t { kWant = 1, kHere, kNone, kLetGo, kGone, kRing };

struct Parcel {
  ParcelKind kind;
  uint32_t reserved;
  uint64_t region;
  uint64_t length;  // kHere: length of the region
  uint64_t offset;  // kHere: offset in the file
};

constexpr bool valid_ring(uint64_t ring_bytes) {
  return std::has_single_bit(ring_bytes) && ring_bytes >= kMinRingBytes &&
         ring_bytes <= kMaxRingBytes;
}

// The sizes of a connection's rings and chunks. The initiator chooses them within the limits of
// both sides, and the acceptor checks them.
struct Geometry {
  uint64_t ring_bytes = 256 << 10;  // power of two
  uint32_t chunk_bytes = 32 << 10;

  uint64_t file_bytes() const { return kControlBytes + 2 * ring_bytes; }
  bool valid() const {
    return valid_ring(ring_bytes) && chunk_bytes >= kMinChunkBytes &&
           chunk_bytes <= kMaxChunkBytes && chunk_bytes % kRingAlign == 0 &&
           chunk_bytes <= ring_bytes / 4;
  }
  // Returns this geometry with rings of at most |most| bytes. |most| must be a valid size.
  Geometry within(uint64_t most) const {
    const uint64_t ring = ring_bytes < most ? ring_bytes : most;
    return {ring, chunk_bytes < ring / 4 ? chunk_bytes : static_cast<uint32_t>(ring / 4)};
  }
};

// Reads a value exactly once, since the peer may be changing it.
template <typename T>
T load_once(const T& shared) {
  return __atomic_load_n(&shared, __ATOMIC_RELAXED);
}

// Copies bytes exactly once, since the peer may be changing them. Only the copy may be used
// afterwards.
inline void copy_once(void* target, const void* shared, size_t length) {
  copy_long(static_cast<std::byte*>(target), static_cast<const std::byte*>(shared), length);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace hetcomm::shm
