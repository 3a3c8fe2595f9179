// Usm: memory of a context of OpenCL that pointers name, as a program allocates it
// (cl_intel_unified_shared_memory).
#pragma once

#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "devices/opencl/api.h"

namespace hetcomm::test {

class Usm {
 public:
  // |context| null: of no vendor.
  Usm(const opencl::Api& api, cl_context context) : context_(context) {
    if (context == nullptr) return;
    size_t bytes = 0;
    EXPECT_EQ(api.GetContextInfo(context, CL_CONTEXT_DEVICES, sizeof(device_), &device_, &bytes),
              CL_SUCCESS);
    cl_platform_id platform = nullptr;
    EXPECT_EQ(api.GetDeviceInfo(device_, CL_DEVICE_PLATFORM, sizeof(platform), &platform, nullptr),
              CL_SUCCESS);
    allocate_ = reinterpret_cast<clDeviceMemAllocINTEL_fn>(
        api.GetExtensionFunctionAddressForPlatform(platform, "clDeviceMemAllocINTEL"));
    free_ = reinterpret_cast<clMemBlockingFreeINTEL_fn>(
        api.GetExtensionFunctionAddressForPlatform(platform, "clMemBlockingFreeINTEL"));
  }

  bool offered() const { return allocate_ != nullptr && free_ != nullptr; }
  std::byte* allocate(uint64_t size) const {
    cl_int status = CL_SUCCESS;
    void* const made = allocate_(context_, device_, nullptr, size, 0, &status);
    EXPECT_EQ(status, CL_SUCCESS);
    return static_cast<std::byte*>(made);
  }
  void free(void* pointer) const { EXPECT_EQ(free_(context_, pointer), CL_SUCCESS); }

 private:
  cl_context context_;
  cl_device_id device_ = nullptr;
  clDeviceMemAllocINTEL_fn allocate_ = nullptr;
  clMemBlockingFreeINTEL_fn free_ = nullptr;
};

}  // namespace hetcomm::test
