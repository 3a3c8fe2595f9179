// Pointers finds and copies context memory that is identified by pointers, called "unified shared
// memory" (USM). Only vendors with the extension cl_intel_unified_shared_memory support it. The
// memory remains owned by the code that allocated it. Host USM and shared USM count as host memory
// here, since the CPU can access them.
#pragma once

#include <cstdint>

#include "devices/opencl/api.h"

namespace hetcomm::opencl {

// All functions may be called by any thread.
class Pointers {
 public:
  // |context| contains |device| and must outlive this object.
  Pointers(const Api& api, cl_context context, cl_device_id device);

  // Returns whether the vendor supports USM.
  bool exist() const { return get_info_ != nullptr; }
  // Finds the device's allocation that contains |pointer|, which may be any value. kNotFound: there
  // is none. Any other error: the vendor's call failed. The vendor may still report an allocation
  // that was freed.
  Code find(const void* pointer, void** out_base, uint64_t* out_size) const;
  // Starts copying |size| bytes. Either side may be host memory. The vendor must support USM.
  cl_int copy(cl_command_queue queue, void* to, const void* from, uint64_t size,
              cl_event* out_event) const {
    return copy_(queue, CL_FALSE, to, from, size, 0, nullptr, out_event);
  }

  // Returns whether kernels accept pointers as arguments.
  bool are_arguments() const { return set_argument_ != nullptr; }
  // Passes |pointer| as an argument of a kernel. Requires are_arguments() and a USM allocation.
  cl_int set_argument(cl_kernel kernel, cl_uint index, const void* pointer) const {
    return set_argument_(kernel, index, pointer);
  }

 private:
  const cl_context context_;
  const cl_device_id device_;
  clGetMemAllocInfoINTEL_fn get_info_ = nullptr;  // null: the vendor does not support USM
  clEnqueueMemcpyINTEL_fn copy_ = nullptr;
  clSetKernelArgMemPointerINTEL_fn set_argument_ = nullptr;
};

}  // namespace hetcomm::opencl
