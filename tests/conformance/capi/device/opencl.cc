#include "tests/conformance/capi/device/opencl.h"

#include <sys/wait.h>
#include <unistd.h>

namespace hetcomm_test {
namespace {

// Returns the first device of each platform.
std::vector<cl_device_id> all_devices(const OpenCl& api) {
  cl_uint count = 0;
  std::vector<cl_device_id> found;
  if (api.GetPlatformIDs(0, nullptr, &count) != CL_SUCCESS) return found;
  std::vector<cl_platform_id> platforms(count);
  EXPECT_EQ(api.GetPlatformIDs(count, platforms.data(), nullptr), CL_SUCCESS);
  for (const cl_platform_id platform : platforms) {
    cl_device_id device = nullptr;
    if (api.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr) == CL_SUCCESS) {
      found.push_back(device);
    }
  }
  return found;
}

}  // namespace

bool has_opencl() {
  static const bool found = [] {
    const pid_t child = fork();
    if (child == 0) {
      hetcomm::Result<const OpenCl*> api = OpenCl::open();
      _exit(api.ok() && !all_devices(*api.value()).empty() ? 0 : 1);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }();
  return found;
}

Framework::Framework(int32_t number) : api_(*OpenCl::open().value()) {
  const std::vector<cl_device_id> devices = all_devices(api_);
  device_ = devices[static_cast<size_t>(number) % devices.size()];
  cl_int status = CL_SUCCESS;
  context_ = api_.CreateContext(nullptr, 1, &device_, nullptr, nullptr, &status);
  EXPECT_EQ(status, CL_SUCCESS);
}

void Framework::release() {
  if (context_ != nullptr) {
    EXPECT_EQ(api_.ReleaseContext(context_), CL_SUCCESS);
  }
  context_ = nullptr;
}

bool Framework::knows_its_objects() const {
  cl_device_type type = 0;
  EXPECT_EQ(api_.GetDeviceInfo(device_, CL_DEVICE_TYPE, sizeof(type), &type, nullptr), CL_SUCCESS);
  return (type & CL_DEVICE_TYPE_CPU) != 0;
}

cl_mem Framework::buffer(const std::vector<std::byte>& bytes) {
  cl_int status = CL_SUCCESS;
  auto* const from = const_cast<std::byte*>(bytes.data());
  const cl_mem made = api_.CreateBuffer(context_, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                        bytes.size(), from, &status);
  EXPECT_EQ(status, CL_SUCCESS);
  return made;
}

cl_command_queue Framework::queue(bool out_of_order) {
  cl_int status = CL_SUCCESS;
  const cl_command_queue made = api_.CreateCommandQueue(
      context_, device_, out_of_order ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &status);
  EXPECT_EQ(status, CL_SUCCESS);
  return made;
}

std::vector<CapiCase> stream_cases() {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp"}) {
    all.push_back({.name = transport,
                   .transports = transport,
                   .settings = "",
                   .thread_progress = true,
                   .processes = true});
  }
  return all;
}

int32_t add_device(Member& me, const Framework& framework) {
  int32_t device = -1;
  EXPECT_EQ(hetcomm_device_from_native(me.context(), "opencl", framework.context(), &device),
            HETCOMM_OK)
      << hetcomm_last_error();
  return device;
}

}  // namespace hetcomm_test
