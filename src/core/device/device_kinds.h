// DeviceKinds groups the devices of a context by kind, so that one query per kind determines
// whether a pointer belongs to the memory of a device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

class DeviceKinds {
 public:
  static constexpr size_t kMaxDevices = 256;

  // The allocation that contains an address, with the number of its device in the context.
  struct Found {
    size_t device = 0;
    void* base = nullptr;
    uint64_t size = 0;
    uint64_t allocation_id = 0;  // 0: the vendor provides none
  };

  DeviceKinds() = default;
  DeviceKinds(const DeviceKinds&) = delete;
  DeviceKinds& operator=(const DeviceKinds&) = delete;

  // Reserves memory for one more device. There must be fewer than kMaxDevices. Returns false if out
  // of memory. Only one thread at a time may call make_room() and add().
  bool make_room();
  // Adds device number |index|, which lives as long as this object. Call make_room() first.
  void add(const Device& device, size_t index);
  // Finds the allocation that contains |address|, which can be any value, on the devices whose
  // memory the CPU cannot access. Returns kNotFound if there is none and no device has failed. With
  // any other error, a device has failed or its memory was freed. |*out_failed| is then the number
  // of that device, or of another one of its kind. [any-thread]
  Code find(const void* address, Found* out_found, size_t* out_failed) const;
  // Returns whether |address|, for which find() has returned kNotFound, is a handle of a vendor
  // object and not an address of host memory. |*out_device| is then a device of that vendor.
  // [any-thread]
  bool is_object(const void* address, size_t* out_device) const;

 private:
  // The devices that a single vendor call can query.
  struct Kind {
    const DeviceTable* table;  // table of the first device
    std::array<void*, kMaxDevices> instances;
    std::array<uint16_t, kMaxDevices> numbers;
    std::atomic<size_t> count{0};
  };
  static Code ask(const Kind& kind, size_t count, const void* address, Found* out_found,
                  size_t* out_failed);

  std::array<std::unique_ptr<Kind>, kMaxDevices> kinds_;
  std::atomic<size_t> count_{0};
};

}  // namespace hetcomm
