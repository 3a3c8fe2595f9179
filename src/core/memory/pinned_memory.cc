#include "src/core/memory/pinned_memory.h"

#include <mutex>

namespace hetcomm {

bool PinnedMemory::allocate(const DeviceSet& devices, const Device* maker, size_t size, int node) {
  free();
  if (maker != nullptr && maker->table->allocate_host != nullptr) {
    void* host = nullptr;
    if (maker->table->allocate_host(maker->instance, size, &host) == HETCOMM_OK) {
      maker_ = maker;
      bytes_ = static_cast<std::byte*>(host);
      return true;
    }
  }
  pinning_.reserve(devices.size());
  if (!allocate_pageable(size, node)) return false;
  for (size_t i = 0; i < devices.size(); ++i) {
    const Device& device = devices.device(i);
    if (device.table->pin_host != nullptr &&
        device.table->pin_host(device.instance, bytes_, size) == HETCOMM_OK) {
      pinning_.push_back(&device);
    }
  }
  return true;
}

bool PinnedMemory::allocate_unless_held(DeviceSet& devices, const Device* maker, size_t size,
                                        int node, bool* pins) {
  // Who has the mutex may be in a vendor's call that waits for what this memory is for.
  const std::unique_lock lock(devices.holding(), std::try_to_lock);
  *pins = *pins && lock.owns_lock() && !devices.has_holds();
  return *pins ? allocate(devices, maker, size, node) : allocate_pageable(size, node);
}

bool PinnedMemory::allocate_pageable(size_t size, int node) {
  free();
  plain_ = allocate_near(size, node);
  bytes_ = plain_.get();
  return bytes_ != nullptr;
}

void PinnedMemory::free() {
  if (bytes_ == nullptr) return;
  if (maker_ != nullptr) maker_->table->free_host(maker_->instance, bytes_);
  for (const Device* device : pinning_) device->table->unpin_host(device->instance, bytes_);
  pinning_.clear();
  plain_.reset();
  maker_ = nullptr;
  bytes_ = nullptr;
}

}  // namespace hetcomm
