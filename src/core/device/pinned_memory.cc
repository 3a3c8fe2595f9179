#include "src/core/device/pinned_memory.h"

#include <algorithm>
#include <new>
#include <utility>

namespace hetcomm {

// Memory that is freed once no abandoned copy uses it.
class PinnedMemory::Kept final : public AbandonedCopies::Kept {
 public:
  // Takes ownership of |memory|.
  explicit Kept(PinnedMemory& memory) noexcept : memory_(std::move(memory)) {}
  bool is_used(const AbandonedCopies::List& copies) const override {
    return memory_.is_used(copies);
  }
  bool needs(const Device& device) const override {
    return memory_.maker_ == &device || memory_.host_ == &device;
  }
  void forget(const Device& device) override {
    std::erase_if(memory_.pinning_, [&](const Device* each) {
      if (each != &device) return false;
      device.table->unpin_host(device.instance, memory_.bytes_);
      return true;
    });
  }

 private:
  PinnedMemory memory_;
};

bool PinnedMemory::is_used(const AbandonedCopies::List& copies) const {
  return copies.touch(range()) || (maker_ != nullptr && copies.use(*maker_)) ||
         std::any_of(pinning_.begin(), pinning_.end(),
                     [&](const Device* each) { return copies.use(*each); });
}

bool PinnedMemory::allocate(DeviceSet& devices, const Device* maker, size_t size, int node,
                            const NoHolds& /*none*/, Sharing sharing) {
  abandoned_ = &devices.abandoned();
  size_ = size;
  if (maker != nullptr && maker->table->allocate_host != nullptr && !abandoned_->use(*maker)) {
    void* host = nullptr;
    if (maker->table->allocate_host(maker->instance, size, &host) == HETCOMM_OK) {
      devices_ = &devices;
      maker_ = maker;
      bytes_ = static_cast<std::byte*>(host);
      return true;
    }
  }
  const size_t count = devices.size();
  pinning_.reserve(count);
  if (!allocate_pageable(devices, size, node, sharing)) return false;
  devices_ = &devices;
  size_ = size;
  pin(devices, count);
  return true;
}

// Pins the memory for those of the first |count| devices that have not been tried. |pinning_| must
// have capacity for them.
void PinnedMemory::pin(const DeviceSet& devices, size_t count) {
  for (; met_ < count; ++met_) {
    const Device& device = devices.device(met_);
    // Calls to a device with abandoned copies could wait for those copies.
    if (devices.is_abandoned(met_) || devices.abandoned().use(device)) continue;
    if (device.table->pin_host != nullptr &&
        device.table->pin_host(device.instance, bytes_, size_) == HETCOMM_OK) {
      pinning_.push_back(&device);
    }
  }
}

// Pins the memory for devices that were added later. Copies also work without pinning, but more
// slowly, so a failure is ignored.
void PinnedMemory::pin_for_more(DeviceSet& devices) {
  const NoHolds none(devices.calls());
  if (!none) return;
  const size_t count = devices.size();
  try {
    pinning_.reserve(count);
  } catch (const std::bad_alloc&) {
    return;
  }
  pin(devices, count);
}

bool PinnedMemory::allocate_unless_held(DeviceSet& devices, const Device* maker, size_t size,
                                        int node, bool* pins, Sharing sharing) {
  free();
  if (*pins) {
    const NoHolds none(devices.calls());
    if (none) return allocate(devices, maker, size, node, none, sharing);
    *pins = false;
  }
  return allocate_pageable(devices, size, node, sharing);
}

bool PinnedMemory::allocate_pageable(const DeviceSet& devices, size_t size, int node,
                                     Sharing sharing) {
  abandoned_ = &devices.abandoned();
  size_ = size;
  if (sharing == Sharing::kYes && devices.size() > 0) {
    const Device& host = devices.device(0);
    void* shared = nullptr;
    if (host.table->allocate(host.instance, size, &shared) == HETCOMM_OK) {
      host_ = &host;
      bytes_ = static_cast<std::byte*>(shared);
      uint64_t offset = 0;
      if (file(&offset) >= 0) {
        prefer_numa_node(bytes_, size, node);
        return true;
      }
      free();
    }
  }
  plain_ = allocate_near(size, node);
  bytes_ = plain_.get();
  return bytes_ != nullptr;
}

int PinnedMemory::file(uint64_t* offset) const {
  int file = -1;
  if (host_ == nullptr || host_->table->shared_file == nullptr ||
      host_->table->shared_file(host_->instance, bytes_, &file, offset) != HETCOMM_OK) {
    return -1;
  }
  return file;
}

void PinnedMemory::free() {
  if (bytes_ == nullptr) return;
  if (abandoned_ != nullptr && !abandoned_->none() &&
      abandoned_->keep_if([this](const auto& copies) { return is_used(copies); },
                          [this] { return new (std::nothrow) Kept(*this); })) {
    // If the record could not be allocated, the memory is never freed.
    static_cast<void>(plain_.release());
    forget();
    return;
  }
  using Kind = EndingCall::Kind;
  if (maker_ != nullptr) {
    devices_->calls().make_or_put_off(
        {.kind = Kind::kFreeHost, .device = maker_, .object = bytes_});
  }
  // The memory is kept until the last device has unpinned it.
  for (size_t i = 0; i < pinning_.size(); ++i) {
    EndingCall call{.kind = Kind::kUnpinHost, .device = pinning_[i], .object = bytes_};
    if (i + 1 == pinning_.size()) call.memory = std::move(plain_);
    devices_->calls().make_or_put_off(std::move(call));
  }
  if (host_ != nullptr && !pinning_.empty()) {
    devices_->calls().make_or_put_off({.kind = Kind::kFree, .device = host_, .object = bytes_});
  } else if (host_ != nullptr) {
    host_->table->free(host_->instance, bytes_);
  }
  forget();
}

void PinnedMemory::forget() {
  pinning_.clear();
  plain_.reset();
  devices_ = nullptr;
  maker_ = host_ = nullptr;
  bytes_ = nullptr;
  met_ = 0;
}

}  // namespace hetcomm
