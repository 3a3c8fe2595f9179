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

Code Context::find(const void* address, void** out_base, uint64_t* out_size) {
  if (buffers_.find(address, out_size) == Code::kOk) {
    *out_base = const_cast<void*>(address);
    return Code::kOk;
  }
  return pointers_.find(address, out_base, out_size);
}

namespace {

// Returns the number of bytes from |address| to the end of its allocation.
uint64_t rest_of(const void* address, const void* base, uint64_t size) {
  return size - static_cast<uint64_t>(static_cast<const std::byte*>(address) -
                                      static_cast<const std::byte*>(base));
}

}  // namespace

Code Context::retain(void* address, uint64_t size) {
  void* base = nullptr;
  uint64_t whole = 0;
  const Code code = pointers_.find(address, &base, &whole);
  if (code == Code::kNotFound) return buffers_.retain(address, size);
  if (code != Code::kOk) return code;
  return size <= rest_of(address, base, whole) ? Code::kOk : Code::kOutOfRange;
}

const char* Context::rule_against(void* address, uint64_t size) {
  void* base = nullptr;
  uint64_t whole = 0;
  const Code code = pointers_.find(address, &base, &whole);
  if (code == Code::kNotFound) return buffers_.rule_against(address, size);
  if (code != Code::kOk || size <= rest_of(address, base, whole)) return "";
  return "the range ends past its allocation";
}

Code Context::locate(const void* address, uint64_t offset, uint64_t size, Location* out_location) {
  const Code code = buffers_.check(address, offset, size, &out_location->buffer);
  if (code != Code::kInvalidArgument) {
    out_location->offset = offset;
    return code;
  }
  void* base = nullptr;
  uint64_t whole = 0;
  const Code found = pointers_.find(address, &base, &whole);
  if (found != Code::kOk) return found == Code::kNotFound ? Code::kInvalidArgument : found;
  const uint64_t rest = rest_of(address, base, whole);
  if (offset > rest || size > rest - offset) return Code::kOutOfRange;
  out_location->pointer = static_cast<std::byte*>(const_cast<void*>(address)) + offset;
  return Code::kOk;
}

}  // namespace hetcomm::opencl
