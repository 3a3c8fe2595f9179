// Devices of what a framework works with already (hetcomm_device_from_native), here contexts of
// OpenCL that the test makes:
//
//   * one is added while a communicator is in use, and memory of it moves at once
//   * the same context is the same device, for threads that ask at the same time too
//   * the framework may let go of its context and buffers first
//   * what is no context is refused, and the rest goes on
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "devices/opencl/api.h"
#include "tests/conformance/capi_device.h"
#include "tests/conformance/capi_job.h"

namespace hetcomm_test {
namespace {

using hetcomm::opencl::Api;

// The devices of all platforms.
std::vector<cl_device_id> all_devices(const Api& api) {
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

// A child looks, because a process that has loaded a vendor's run-time cannot fork.
bool has_opencl() {
  static const bool found = [] {
    const pid_t child = fork();
    if (child == 0) {
      hetcomm::Result<const Api*> api = Api::open();
      _exit(api.ok() && !all_devices(*api.value()).empty() ? 0 : 1);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }();
  return found;
}

// What a framework has: a context, of one vendor for even ranks and of the other for odd ones.
class Framework {
 public:
  explicit Framework(int32_t rank) : api_(*Api::open().value()) {
    const std::vector<cl_device_id> devices = all_devices(api_);
    device_ = devices[static_cast<size_t>(rank) % devices.size()];
    cl_int status = CL_SUCCESS;
    context_ = api_.CreateContext(nullptr, 1, &device_, nullptr, nullptr, &status);
    EXPECT_EQ(status, CL_SUCCESS);
  }
  Framework(const Framework&) = delete;
  Framework& operator=(const Framework&) = delete;
  ~Framework() { release(); }

  void release() {
    if (context_ != nullptr) {
      EXPECT_EQ(api_.ReleaseContext(context_), CL_SUCCESS);
    }
    context_ = nullptr;
  }
  cl_context context() const { return context_; }
  // The vendor tells its objects apart. NVIDIA's (of GPUs) reads through any as what it was given as.
  bool knows_its_objects() const {
    cl_device_type type = 0;
    EXPECT_EQ(api_.GetDeviceInfo(device_, CL_DEVICE_TYPE, sizeof(type), &type, nullptr),
              CL_SUCCESS);
    return (type & CL_DEVICE_TYPE_CPU) != 0;
  }
  cl_mem buffer(const std::vector<std::byte>& bytes) {
    cl_int status = CL_SUCCESS;
    auto* const from = const_cast<std::byte*>(bytes.data());
    const cl_mem made = api_.CreateBuffer(context_, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                          bytes.size(), from, &status);
    EXPECT_EQ(status, CL_SUCCESS);
    return made;
  }
  void release(cl_mem buffer) { EXPECT_EQ(api_.ReleaseMemObject(buffer), CL_SUCCESS); }

 private:
  const Api& api_;
  cl_device_id device_ = nullptr;
  cl_context context_ = nullptr;
};

std::vector<CapiCase> cases() {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp", "rdma"}) {
    for (const bool threaded : {false, true}) {
      all.push_back({.name = std::string(transport) + (threaded ? "_thread" : ""),
                     .transports = transport,
                     .settings = "",
                     .thread_progress = threaded,
                     .processes = true});
    }
  }
  return all;
}

class NativeDevices : public CapiTest {
 protected:
  void SetUp() override {
    CapiTest::SetUp();
    if (!has_opencl()) GTEST_SKIP() << "this machine has no OpenCL device";
  }
};

// Rank 0's |size| bytes go to rank 1.
void move(Member& me, hetcomm_buffer_t buffer) {
  const Outcome outcome = finish(start_move(me, buffer));
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
}

int32_t add_device(Member& me, void* native) {
  int32_t device = -1;
  EXPECT_EQ(hetcomm_device_from_native(me.context(), "opencl", native, &device), HETCOMM_OK)
      << hetcomm_last_error();
  return device;
}

void check_wrapped(Member& me, Framework& framework, int32_t device, uint64_t size, bool let_go) {
  const std::vector<std::byte> sent = pattern(size, size);
  const cl_mem buffer =
      framework.buffer(me.rank() == 0 ? sent : std::vector<std::byte>(size, std::byte{0}));
  hetcomm_memory_t* memory = nullptr;
  ASSERT_EQ(hetcomm_memory_wrap(me.context(), device, buffer, size, &memory), HETCOMM_OK)
      << hetcomm_last_error();
  framework.release(buffer);
  if (let_go) framework.release();
  move(me, hetcomm_buffer_memory(memory, 0, size));
  std::vector<std::byte> got(size);
  EXPECT_EQ(hetcomm_memory_read(memory, 0, got.data(), size), HETCOMM_OK);
  EXPECT_EQ(got, sent) << size;
  EXPECT_EQ(hetcomm_memory_free(memory), HETCOMM_OK);
}

TEST_P(NativeDevices, AreAddedWhileACommunicatorIsInUse) {
  run(2, [](Member& me) {
    std::vector<std::byte> host = pattern(3'000'000, 1);
    move(me, hetcomm_buffer_host(host.data(), host.size()));
    // The second device comes when memory of the first one has moved.
    for (int32_t wanted = 1; wanted <= 2; ++wanted) {
      Framework framework(me.rank() + wanted);
      const int32_t device = add_device(me, framework.context());
      EXPECT_EQ(device, wanted);
      EXPECT_EQ(add_device(me, framework.context()), wanted);
      int32_t count = 0;
      EXPECT_EQ(hetcomm_device_count(me.context(), &count), HETCOMM_OK);
      EXPECT_EQ(count, wanted + 1);
      for (const uint64_t size : std::vector<uint64_t>{1, 5000, 300'000, 5'000'000}) {
        check_wrapped(me, framework, device, size, size == 5'000'000);
      }
      DeviceMemory own(me, device, 100'000);
      own.fill(pattern(100'000, 7));
      move(me, own.part(0, 100'000));
      EXPECT_TRUE(holds(own.contents(), 7, 100'000));
    }
    me.meet();
  });
}

TEST_P(NativeDevices, ThreadsThatAskAtTheSameTime) {
  run(2, [](Member& me) {
    std::vector<std::unique_ptr<Framework>> frameworks;
    for (int i = 0; i < 4; ++i) frameworks.push_back(std::make_unique<Framework>(i));
    std::vector<std::thread> threads;
    std::vector<std::vector<int32_t>> given(8, std::vector<int32_t>(4));
    for (auto& own : given) {
      threads.emplace_back([&] {
        for (size_t i = 0; i < frameworks.size(); ++i) {
          own[i] = add_device(me, frameworks[i]->context());
        }
      });
    }
    // Messages go on meanwhile.
    std::vector<std::byte> host(200'000);
    for (int i = 0; i < 20; ++i) move(me, hetcomm_buffer_host(host.data(), host.size()));
    for (std::thread& thread : threads) thread.join();
    for (const auto& own : given) EXPECT_EQ(own, given.front());
    int32_t count = 0;
    EXPECT_EQ(hetcomm_device_count(me.context(), &count), HETCOMM_OK);
    EXPECT_EQ(count, 5);
    me.meet();
  });
}

TEST_P(NativeDevices, WhatIsNoneIsRefused) {
  run(2, [](Member& me) {
    Framework framework(me.rank());
    const std::vector<std::byte> some(64);
    const cl_mem buffer = framework.buffer(some);
    uint64_t word = 0;
    std::vector<void*> wrong = {&word, reinterpret_cast<void*>(8), reinterpret_cast<void*>(3),
                                reinterpret_cast<void*>(~uintptr_t{7})};
    if (framework.knows_its_objects()) wrong.push_back(buffer);
    for (void* const native : wrong) {
      int32_t device = -5;
      EXPECT_EQ(hetcomm_device_from_native(me.context(), "opencl", native, &device),
                HETCOMM_INVALID_ARGUMENT);
      EXPECT_NE(std::string(hetcomm_last_error()).find("cl_context"), std::string::npos)
          << hetcomm_last_error();
      EXPECT_EQ(device, -5);
    }
    framework.release(buffer);
    EXPECT_EQ(add_device(me, framework.context()), 1) << "what was refused left no device";
    std::vector<std::byte> host(1000);
    move(me, hetcomm_buffer_host(host.data(), host.size()));
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, NativeDevices, ::testing::ValuesIn(cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
