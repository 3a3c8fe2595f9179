// OnDevice: memory on one of a member's devices, released the way the C ABI releases it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/core_job.h"
#include "tests/support/pattern.h"

namespace hetcomm::test {

class OnDevice {
 public:
  // Allocates |size| bytes on |device|, an index in the context, where 0 is the host.
  OnDevice(CoreMember& me, uint64_t size, size_t device = 1) : me_(me) {
    const Device& owner = me.context().devices().device(device);
    void* address = nullptr;
    if (owner.table->allocate(owner.instance, size, &address) != HETCOMM_OK) {
      throw std::runtime_error("no device memory");
    }
    memory_ = std::make_unique<Memory>(me.context().devices(), device, address, size, true);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    const Engine::Baton baton(me_.context().engine());
    me_.context().devices().forget(*memory_);
  }
  Memory& operator*() { return *memory_; }
  hetcomm_buffer_t part(uint64_t offset, uint64_t length) {
    return {reinterpret_cast<hetcomm_memory_t*>(memory_.get()), offset, length};
  }
  void fill(uint64_t seed) {
    std::vector<std::byte> bytes(memory_->size());
    fill_pattern(bytes, seed);
    EXPECT_TRUE(memory_->write(0, bytes.data(), bytes.size()).ok());
  }
  std::vector<std::byte> contents(uint64_t offset, uint64_t length) {
    std::vector<std::byte> bytes(length);
    EXPECT_TRUE(memory_->read(offset, bytes.data(), length).ok());
    return bytes;
  }

 private:
  CoreMember& me_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace hetcomm::test
