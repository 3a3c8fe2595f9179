// Producer and Consumer are the two ends of one direction of a connection. A direction consists of
// a FIFO of slots, and a ring of bytes for payloads that do not fit in a slot.
//
// Each end is in its own process and is used by one thread. A slot is published through its
// sequence word (release, acquire), so that a short message transfers one cache line. The consumer
// reports the amount that it has consumed after every quarter of the FIFO or the ring. The producer
// reads the report only if the last one that it read shows too little free space. Three amounts fit
// into the ring together: bytes consumed but not yet reported (less than a quarter), bytes skipped
// at the ring's end, and bytes requested (one chunk each, at most a quarter). So neither end
// starves. Neither end trusts the other.
//
// A ring has the agreed size, but the producer may use only its beginning. The producer then skips
// the rest of each lap, as it skips space that is too short for an entry. It must not wait until
// the used part has free space, since the consumer reports only after a quarter of the whole ring.
#pragma once

#include <cstring>

#include "src/base/span.h"
#include "transports/shm/wire.h"

namespace hetcomm::shm {

class Producer {
 public:
  // Creates a producer that uses no part of the ring before grow().
  Producer(Side& mine, const Side& peer, std::byte* ring, uint64_t ring_bytes)
      : slots_(mine.slots.data()), peer_(peer), ring_(ring), ring_bytes_(ring_bytes) {}

  bool has_slot() { return head_ - consumed_slots_ < kSlotCount || (refresh(), has_slot_now()); }
  // Returns whether there is a free slot, and space for |length| contiguous bytes in the whole
  // ring. fits() returns whether the used part has that space, too.
  bool has_room(uint64_t length) {
    if (!has_slot()) return false;
    if (fits(length)) return true;
    refresh();
    return fits(length) || has_bytes_now(length, ring_bytes_);
  }
  // Returns whether the used part of the ring has space for |length| contiguous bytes.
  bool fits(uint64_t length) const { return length <= used_ && has_bytes_now(length, used_); }
  // Extends the used part to the first |bytes| of the ring. Called once memory is allocated for
  // them.
  void grow(uint64_t bytes) { used_ = bytes; }
  uint64_t used_ring_bytes() const { return used_; }

  // Returns the slot that the next publish() publishes.
  FifoSlot& slot() const { return slots_[head_ % kSlotCount]; }
  // Returns the position for |length| bytes. fits(|length|) must have returned true.
  // publish_bytes() then reserves the position.
  RingPosition position_for(uint64_t length) const { return position_for(length, used_); }
  std::byte* at(RingPosition position) const { return ring_ + (position & (ring_bytes_ - 1)); }

  // Publishes |next|, which must be slot(). The caller passes it because the compiler cannot infer
  // that writing to the slot leaves |head_| unchanged.
  void publish(FifoSlot& next, SlotKind kind, uint64_t length) {
    next.kind_and_length = static_cast<uint32_t>(kind) << 24 | static_cast<uint32_t>(length);
    ++head_;
    next.sequence.store(static_cast<uint32_t>(head_), std::memory_order_release);
  }
  void publish_bytes(SlotKind kind, RingPosition position, uint64_t length) {
    head_bytes_ = position + (length + kRingAlign - 1) / kRingAlign * kRingAlign;
    publish(slot(), kind, length);
  }
  // Returns whether the peer has reported impossible amounts.
  bool broken() const { return broken_; }

 private:
  bool has_slot_now() const { return head_ - consumed_slots_ < kSlotCount; }
  // Returns the next position at which |length| bytes fit into the first |used| bytes of a lap.
  RingPosition position_for(uint64_t length, uint64_t used) const {
    const uint64_t at = head_bytes_ & (ring_bytes_ - 1);
    return at + length > used ? head_bytes_ + ring_bytes_ - at : head_bytes_;
  }
  bool has_bytes_now(uint64_t length, uint64_t used) const {
    const uint64_t end =
        position_for(length, used) + (length + kRingAlign - 1) / kRingAlign * kRingAlign;
    return end - consumed_bytes_ <= ring_bytes_;
  }
  void refresh() {
    const uint64_t slots = peer_.consumed_slots.load(std::memory_order_acquire);
    const uint64_t bytes = peer_.consumed_bytes.load(std::memory_order_acquire);
    if (head_ - slots > kSlotCount || head_bytes_ - bytes > ring_bytes_) {
      broken_ = true;
      return;
    }
    consumed_slots_ = slots;
    consumed_bytes_ = bytes;
  }

  FifoSlot* slots_;
  const Side& peer_;
  std::byte* ring_;
  uint64_t ring_bytes_;
  uint64_t used_ = 0;
  uint64_t head_ = 0;
  uint64_t head_bytes_ = 0;
  uint64_t consumed_slots_ = 0;  // the peer's counters as last read
  uint64_t consumed_bytes_ = 0;
  bool broken_ = false;
};

class Consumer {
 public:
  Consumer(const Side& peer, Side& mine, const std::byte* ring, uint64_t ring_bytes)
      : next_(peer.slots.data()),
        slots_(peer.slots.data()),
        mine_(mine),
        ring_(ring),
        ring_bytes_(ring_bytes) {}

  bool ready() const {
    return next_->sequence.load(std::memory_order_acquire) == static_cast<uint32_t>(tail_ + 1);
  }
  // Returns the next entry, which is valid while ready().
  const FifoSlot& slot() const { return *next_; }
  // Prefetches the next entry while this one is handled. In a fast sequence of messages the next
  // entry has already been published.
  void prefetch_following() const {
    const auto* line = reinterpret_cast<const std::byte*>(slots_ + (tail_ + 1) % kSlotCount);
    __builtin_prefetch(line);
  }

  // Returns the |length| bytes at |position|, or null if the entry is invalid. The bytes are
  // consumed together with the slot.
  const std::byte* take_bytes(RingPosition position, uint64_t length) {
    const uint64_t ahead = position - tail_bytes_;
    const uint64_t at = position & (ring_bytes_ - 1);
    if (ahead > ring_bytes_ || length > ring_bytes_ - ahead || at + length > ring_bytes_ ||
        position % kRingAlign != 0) {
      return nullptr;
    }
    tail_bytes_ = position + (length + kRingAlign - 1) / kRingAlign * kRingAlign;
    return ring_ + at;
  }
  // Releases the entry. The next publish() reports that to the producer.
  void pop() {
    ++tail_;
    next_ = slots_ + tail_ % kSlotCount;
  }

  // Returns whether enough has been consumed to report it to the producer.
  bool should_publish() const {
    return tail_ - published_ >= kSlotCount / 4 ||
           tail_bytes_ - published_bytes_ >= ring_bytes_ / 4;
  }
  void publish() {
    mine_.consumed_bytes.store(tail_bytes_, std::memory_order_release);
    mine_.consumed_slots.store(tail_, std::memory_order_release);
    published_ = tail_;
    published_bytes_ = tail_bytes_;
  }

 private:
  const FifoSlot* next_;
  const FifoSlot* slots_;
  Side& mine_;
  const std::byte* ring_;
  uint64_t ring_bytes_;
  uint64_t tail_ = 0;
  uint64_t tail_bytes_ = 0;
  uint64_t published_ = 0;
  uint64_t published_bytes_ = 0;
};

}  // namespace hetcomm::shm
