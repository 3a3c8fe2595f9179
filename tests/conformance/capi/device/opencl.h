// An OpenCL framework for the C API suites: a context from one of this machine's vendors, with
// buffers and queues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "devices/opencl/api.h"
#include "tests/conformance/capi/job.h"
#include "tests/support/usm.h"

namespace hetcomm_test {

using OpenCl = hetcomm::opencl::Api;

// Returns whether this machine has a device. A child process looks, because a process that has
// loaded a vendor's run-time cannot fork.
bool has_opencl();

// Skips its tests where has_opencl() is false.
class OpenClTest : public CapiTest {
 protected:
  void SetUp() override {
    CapiTest::SetUp();
    if (!has_opencl()) GTEST_SKIP() << "this machine has no OpenCL device";
  }
};
// Returns processes with a progress thread, over shm and tcp: streams need both.
std::vector<CapiCase> stream_cases();

class Framework {
 public:
  // Even numbers select one vendor, odd numbers the other.
  explicit Framework(int32_t number);
  Framework(const Framework&) = delete;
  Framework& operator=(const Framework&) = delete;
  ~Framework() { release(); }

  void release();
  const OpenCl& api() const { return api_; }
  cl_context context() const { return context_; }
  hetcomm::test::Usm usm() const { return {api_, context_}; }
  // Returns whether the vendor's run-time distinguishes the kinds of its objects. NVIDIA's run-time
  // for GPUs takes any object for the kind that it is passed as.
  bool knows_its_objects() const;
  cl_mem buffer(const std::vector<std::byte>& bytes);
  void release(cl_mem buffer) { EXPECT_EQ(api_.ReleaseMemObject(buffer), CL_SUCCESS); }
  cl_command_queue queue(bool out_of_order = false);

 private:
  const OpenCl& api_;
  cl_device_id device_ = nullptr;
  cl_context context_ = nullptr;
};

// Adds the framework's context as a device of |me|. Returns the device number.
int32_t add_device(Member& me, const Framework& framework);

}  // namespace hetcomm_test
