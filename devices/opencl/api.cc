#include "devices/opencl/api.h"

#include <dlfcn.h>
#include <link.h>

#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace hetcomm::opencl {
namespace {

constexpr const char* kLibrary = "libOpenCL.so.1";

struct Opened {
  Api api;
  Status status;
};

// Callback of dl_iterate_phdr(). Stores the path of an OpenCL loader that this process has loaded,
// possibly under a name other than kLibrary, such as a Python wheel's libOpenCL-1a2b3c.so.1.0.0.
int note_loader(dl_phdr_info* info, size_t /*size*/, void* out_path) {
  const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  if (!path.substr(path.rfind('/') + 1).starts_with("libOpenCL")) return 0;
  *static_cast<std::string*>(out_path) = path;
  return 1;
}

void* open_loaded() {
  std::string path;
  dl_iterate_phdr(note_loader, &path);
  if (path.empty()) return nullptr;
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

Opened load() {
  Opened opened;
  // Prefers a library that the process has already loaded.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) library = open_loaded();
  if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = dlerror();
    opened.status =
        Status(Code::kNotFound, fmt::format("OpenCL cannot be loaded (Debian: apt install "
                                            "ocl-icd-libopencl1 and a vendor's run-time): {}",
                                            why != nullptr ? why : kLibrary));
    return opened;
  }
#define HETCOMM_OPENCL_LOAD(name)                                                                 \
  opened.api.name = reinterpret_cast<decltype(opened.api.name)>(dlsym(library, "cl" #name));      \
  if (opened.api.name == nullptr && opened.status.ok()) {                                         \
    opened.status = Status(Code::kUnsupported,                                                    \
                           fmt::format("{} has no cl{}: OpenCL 1.2 is needed", kLibrary, #name)); \
  }
  HETCOMM_OPENCL_FUNCTIONS(HETCOMM_OPENCL_LOAD)
#undef HETCOMM_OPENCL_LOAD
  return opened;
}

}  // namespace

Result<const Api*> Api::open() {
  // A failure is not cached: a run-time may be installed later.
  static const Opened* known = nullptr;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (known == nullptr) {
    Opened opened = load();
    if (!opened.status.ok()) return opened.status;
    known = new Opened(std::move(opened));
  }
  return &known->api;
}

namespace {

thread_local cl_int kept_failure = CL_SUCCESS;

Code meaning_of(cl_int status) {
  switch (status) {
    case CL_SUCCESS:
      return Code::kOk;
    case CL_OUT_OF_HOST_MEMORY:
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_INVALID_BUFFER_SIZE:
      return Code::kOutOfMemory;
    case CL_OUT_OF_RESOURCES:
      return Code::kOutOfResources;
    case CL_INVALID_MEM_OBJECT:
    case CL_INVALID_CONTEXT:
    case CL_INVALID_VALUE:
    case CL_MISALIGNED_SUB_BUFFER_OFFSET:
      return Code::kInvalidArgument;
    case CL_INVALID_OPERATION:
      return Code::kUnsupported;
    case CL_DEVICE_NOT_FOUND:
    case -1001:
      return Code::kNotFound;
    default:
      return Code::kDeviceLost;
  }
}

}  // namespace

Code code_of(cl_int status) {
  const Code code = meaning_of(status);
  if (code == Code::kDeviceLost || code == Code::kOutOfMemory || code == Code::kOutOfResources) {
    kept_failure = status;
  }
  return code;
}

cl_int take_failure() { return std::exchange(kept_failure, CL_SUCCESS); }

std::string name_of(cl_int status) {
  switch (status) {
#define HETCOMM_OPENCL_NAME(name) \
  case name:                      \
    return #name;
    HETCOMM_OPENCL_NAME(CL_DEVICE_NOT_FOUND)
    HETCOMM_OPENCL_NAME(CL_DEVICE_NOT_AVAILABLE)
    HETCOMM_OPENCL_NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE)
    HETCOMM_OPENCL_NAME(CL_OUT_OF_RESOURCES)
    HETCOMM_OPENCL_NAME(CL_OUT_OF_HOST_MEMORY)
    HETCOMM_OPENCL_NAME(CL_MISALIGNED_SUB_BUFFER_OFFSET)
    HETCOMM_OPENCL_NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
    HETCOMM_OPENCL_NAME(CL_INVALID_VALUE)
    HETCOMM_OPENCL_NAME(CL_INVALID_DEVICE)
    HETCOMM_OPENCL_NAME(CL_INVALID_CONTEXT)
    HETCOMM_OPENCL_NAME(CL_INVALID_COMMAND_QUEUE)
    HETCOMM_OPENCL_NAME(CL_INVALID_MEM_OBJECT)
    HETCOMM_OPENCL_NAME(CL_INVALID_EVENT)
    HETCOMM_OPENCL_NAME(CL_INVALID_OPERATION)
    HETCOMM_OPENCL_NAME(CL_INVALID_BUFFER_SIZE)
#undef HETCOMM_OPENCL_NAME
    case -1001:
      return "CL_PLATFORM_NOT_FOUND_KHR";
    default:
      return fmt::format("OpenCL error {}", status);
  }
}

}  // namespace hetcomm::opencl
