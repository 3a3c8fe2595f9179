#include "devices/opencl/context.h"

#include <array>
#include <new>

namespace hetcomm::opencl {

Code Context::make(const Api& api, cl_device_id device, std::unique_ptr<Context>* out_context) {
  cl_platform_id platform = nullptr;
  cl_int status =
      api.GetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof(platform), &platform, nullptr);
  if (status != CL_SUCCESS) return code_of(status);
  const std::array<cl_context_properties, 3> properties = {
      CL_CONTEXT_PLATFORM, reinterpret_cast<cl_context_properties>(platform), 0};
  const cl_context context =
      api.CreateContext(properties.data(), 1, &device, nullptr, nullptr, &status);
  if (context == nullptr) return code_of(status);
  ContextReference reference(api, context);
  try {
    *out_context = std::make_unique<Context>(api, std::move(reference), device);
  } catch (const std::bad_alloc&) {
    return Code::kOutOfMemory;
  }
  return Code::kOk;
}

}  // namespace hetcomm::opencl
