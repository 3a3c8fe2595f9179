// Usm: memory in an OpenCL context that is addressed by pointers, as a program allocates it
// (cl_intel_unified_shared_memory).
#pragma once

#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "devices/opencl/api.h"

namespace hetcomm::test {

enum class UsmKind : uint8_t { kDevice, kHost, kShared };

class Usm {
 public:
  // Binds the vendor's functions. With a null |context| there is no vendor.
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
    allocate_host_ = reinterpret_cast<clHostMemAllocINTEL_fn>(
        api.GetExtensionFunctionAddressForPlatform(platform, "clHostMemAllocINTEL"));
    allocate_shared_ = reinterpret_cast<clSharedMemAllocINTEL_fn>(
        api.GetExtensionFunctionAddressForPlatform(platform, "clSharedMemAllocINTEL"));
    free_ = reinterpret_cast<clMemBlockingFreeINTEL_fn>(
        api.GetExtensionFunctionAddressForPlatform(platform, "clMemBlockingFreeINTEL"));
  }

  bool offered() const { return allocate_ != nullptr && free_ != nullptr; }
  // Allocates memory. Returns null if the vendor does not support |kind|.
  std::byte* allocate(uint64_t size, UsmKind kind = UsmKind::kDevice) const {
    cl_int status = CL_SUCCESS;
    void* const made =
        kind == UsmKind::kDevice ? allocate_(context_, device_, nullptr, size, 0, &status)
        : kind == UsmKind::kHost ? allocate_host_(context_, nullptr, size, 0, &status)
                                 : allocate_shared_(context_, device_, nullptr, size, 0, &status);
    EXPECT_TRUE(made != nullptr || kind != UsmKind::kDevice) << status;
    return static_cast<std::byte*>(made);
  }
  void free(void* pointer) const { EXPECT_EQ(free_(context_, pointer), CL_SUCCESS); }

 private:
  cl_context context_;
  cl_device_id device_ = nullptr;
  clDeviceMemAllocINTEL_fn allocate_ = nullptr;
  clHostMemAllocINTEL_fn allocate_host_ = nullptr;
  clSharedMemAllocINTEL_fn allocate_shared_ = nullptr;
  clMemBlockingFreeINTEL_fn free_ = nullptr;
};

}  // namespace hetcomm::test
