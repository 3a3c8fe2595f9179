// PinnedMemory is host memory that the copy engines of devices reach at full speed. It comes from a
// device's own allocator if the device has one. Otherwise, all devices that can pin host memory pin
// it. Copies also work with unpinned memory, but more slowly.
//
// Memory that is freed while users' streams are held back is released when the last hold has ended
// (see WaitingCalls). Memory that a copy of an abandoned device may still use is released when that
// copy has ended (see AbandonedCopies).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/core/device/abandoned_copies.h"
#include "src/core/device/memory.h"
#include "src/system/numa_memory.h"

namespace hetcomm {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory() { free(); }
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    if (this == &other) return *this;
    free();
    devices_ = std::exchange(other.devices_, nullptr);
    maker_ = std::exchange(other.maker_, nullptr);
    host_ = std::exchange(other.host_, nullptr);
    pinning_ = std::exchange(other.pinning_, {});
    plain_ = std::move(other.plain_);
    bytes_ = std::exchange(other.bytes_, nullptr);
    size_ = other.size_;
    met_ = std::exchange(other.met_, 0);
    abandoned_ = other.abandoned_;
    return *this;
  }

  // States whether the memory may be a file that other processes map.
  enum class Sharing : bool { kNo, kYes };

  // Allocates |size| bytes from the allocator of |maker|. If |maker| is null, has no allocator, or
  // cannot allocate now, allocates them near NUMA node |node| and pins them. Returns false if out
  // of memory. The devices outlive this object. May throw std::bad_alloc.
  bool allocate(DeviceSet& devices, const Device* maker, size_t size, int node, const NoHolds& none,
                Sharing sharing = Sharing::kNo);
  // Frees the memory that this object holds. Then acts like allocate() if |*pins| is true and no
  // user's stream is held back. Otherwise allocates memory without pinning it, since pinning might
  // wait for a held stream, and sets |*pins| to false.
  bool allocate_unless_held(DeviceSet& devices, const Device* maker, size_t size, int node,
                            bool* pins, Sharing sharing = Sharing::kNo);

  // Pins the memory for devices added since allocate(), unless users' streams are held back. The
  // memory must not be in use during the call.
  void meet_devices(DeviceSet& devices) {
    if (met_ != 0 && met_ != devices.size()) [[unlikely]]
      pin_for_more(devices);
  }

  std::byte* get() const { return bytes_; }
  // Returns the file that backs the memory, which starts at |*offset| in the file; -1 if there is
  // none.
  int file(uint64_t* offset) const;
  HostRange range() const { return HostRange::of(bytes_, size_); }
  // Returns whether a device has allocated or pinned the memory.
  bool is_pinned() const { return maker_ != nullptr || !pinning_.empty(); }

 private:
  class Kept;

  // Allocates memory without pinning it.
  bool allocate_pageable(const DeviceSet& devices, size_t size, int node, Sharing sharing);
  void pin_for_more(DeviceSet& devices);
  void pin(const DeviceSet& devices, size_t count);
  void free();
  // Resets the members. Frees only |plain_|.
  void forget();
  bool is_used(const AbandonedCopies::List& copies) const;

  DeviceSet* devices_ = nullptr;   // set by allocate(): devices may have pinned the memory
  const Device* maker_ = nullptr;  // device whose allocator made the memory
  const Device* host_ = nullptr;   // the host device, if its allocator made the memory, as a file
  std::vector<const Device*> pinning_;
  NumaMemory plain_;
  std::byte* bytes_ = nullptr;
  size_t size_ = 0;
  size_t met_ = 0;  // number of devices tried for pinning; 0: none will be
  AbandonedCopies* abandoned_ = nullptr;
};

}  // namespace hetcomm
