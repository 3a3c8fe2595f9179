#include "devices/opencl/pointers.h"

#include <string>

namespace hetcomm::opencl {
namespace {

bool has_extension(const Api& api, cl_device_id device) {
  size_t size = 0;
  if (api.GetDeviceInfo(device, CL_DEVICE_EXTENSIONS, 0, nullptr, &size) != CL_SUCCESS) {
    return false;
  }
  std::string names(size, '\0');
  return api.GetDeviceInfo(device, CL_DEVICE_EXTENSIONS, size, names.data(), nullptr) ==
             CL_SUCCESS &&
         names.find("cl_intel_unified_shared_memory") != std::string::npos;
}

}  // namespace

Pointers::Pointers(const Api& api, cl_context context, cl_device_id device)
    : context_(context), device_(device) {
  cl_platform_id platform = nullptr;
  if (!has_extension(api, device) || api.GetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof(platform),
                                                       &platform, nullptr) != CL_SUCCESS) {
    return;
  }
  copy_ = reinterpret_cast<clEnqueueMemcpyINTEL_fn>(
      api.GetExtensionFunctionAddressForPlatform(platform, "clEnqueueMemcpyINTEL"));
  if (copy_ == nullptr) return;
  set_argument_ = reinterpret_cast<clSetKernelArgMemPointerINTEL_fn>(
      api.GetExtensionFunctionAddressForPlatform(platform, "clSetKernelArgMemPointerINTEL"));
  get_info_ = reinterpret_cast<clGetMemAllocInfoINTEL_fn>(
      api.GetExtensionFunctionAddressForPlatform(platform, "clGetMemAllocInfoINTEL"));
}

Code Pointers::find(const void* pointer, void** out_base, uint64_t* out_size) const {
  if (get_info_ == nullptr) return Code::kNotFound;
  cl_int status = CL_SUCCESS;
  const auto ask = [&](cl_mem_info_intel what, auto* answer) {
    status = get_info_(context_, pointer, what, sizeof(*answer), answer, nullptr);
    return status == CL_SUCCESS;
  };
  cl_unified_shared_memory_type_intel type = CL_MEM_TYPE_UNKNOWN_INTEL;
  cl_device_id owner = nullptr;
  void* base = nullptr;
  size_t size = 0;
  if (ask(CL_MEM_ALLOC_TYPE_INTEL, &type) && type != CL_MEM_TYPE_DEVICE_INTEL) {
    return Code::kNotFound;
  }
  if (status == CL_SUCCESS && ask(CL_MEM_ALLOC_DEVICE_INTEL, &owner) && owner == device_ &&
      ask(CL_MEM_ALLOC_BASE_PTR_INTEL, &base) && base != nullptr) {
    ask(CL_MEM_ALLOC_SIZE_INTEL, &size);
  }
  // Some vendors reject a foreign pointer with a status in this range. NVIDIA uses several of these
  // statuses.
  if (status <= CL_INVALID_VALUE && status >= CL_INVALID_DEVICE_PARTITION_COUNT) {
    return Code::kNotFound;
  }
  if (status != CL_SUCCESS) return code_of(status);
  if (size == 0) return Code::kNotFound;
  *out_base = base;
  *out_size = size;
  return Code::kOk;
}

}  // namespace hetcomm::opencl
