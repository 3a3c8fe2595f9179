// The devices of a context by kind, so that one query tells whether a pointer leads to memory of
// any of them.
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

  // Where an address leads: an allocation of a device, by the device's number in the context.
  struct Place {
    size_t device = 0;
    void* base = nullptr;
    uint64_t size = 0;
    uint64_t allocation_id = 0;  // 0: the vendor has none
  };

  DeviceKinds() = default;
  DeviceKinds(const DeviceKinds&) = delete;
  DeviceKinds& operator=(const DeviceKinds&) = delete;

  // Makes room for one more device, while there are fewer than kMaxDevices. False: there is no
  // memory. One thread at a time makes room and adds.
  bool make_room();
  // Notes device number |index|, which lives as long as this. make_room() has made room for it.
  void add(const Device& device, size_t index);
  // Finds the allocation that contains |address|, which may be any number, among the devices whose
  // memory the CPU may not touch. kNotFound: there is none, and no device has failed. Otherwise
  // |*out_failed| is the number of a device that has failed or whose memory was freed, or of
  // another device of its kind. [any-thread]
  Code find(const void* address, Place* out_place, size_t* out_failed) const;
  // Returns whether |address|, of which find() has said kNotFound, names an object of a vendor of
  // device |*out_device|, and no host memory. [any-thread]
  bool is_object(const void* address, size_t* out_device) const;

 private:
  // Devices that one call asks.
  struct Kind {
    const DeviceTable* table;  // table of the first device
    std::array<void*, kMaxDevices> instances;
    std::array<uint16_t, kMaxDevices> numbers;
    std::atomic<size_t> count{0};
  };
  static Code ask(const Kind& kind, size_t count, const void* address, Place* out_place,
                  size_t* out_failed);

  std::array<std::unique_ptr<Kind>, kMaxDevices> kinds_;
  std::atomic<size_t> count_{0};
};

}  // namespace hetcomm
