// Device memory for the C API suites.
#pragma once

#include <vector>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {

// Memory of a device or of the host (device 0), filled and checked through the C API.
class DeviceMemory {
 public:
  DeviceMemory(Member& me, int32_t device, uint64_t size) : size_(size) {
    EXPECT_EQ(hetcomm_memory_allocate(me.context(), device, size, &memory_), HETCOMM_OK)
        << hetcomm_last_error();
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK) << hetcomm_last_error();
  }

  void fill(const std::vector<std::byte>& bytes) {
    EXPECT_EQ(hetcomm_memory_write(memory_, 0, bytes.data(), bytes.size()), HETCOMM_OK)
        << hetcomm_last_error();
  }
  std::vector<std::byte> contents() {
    std::vector<std::byte> bytes(size_);
    EXPECT_EQ(hetcomm_memory_read(memory_, 0, bytes.data(), bytes.size()), HETCOMM_OK)
        << hetcomm_last_error();
    return bytes;
  }
  hetcomm_buffer_t part(uint64_t offset, uint64_t length) {
    return hetcomm_buffer_memory(memory_, offset, length);
  }
  hetcomm_memory_t* get() { return memory_; }

 private:
  hetcomm_memory_t* memory_ = nullptr;
  uint64_t size_;
};

}  // namespace hetcomm_test
