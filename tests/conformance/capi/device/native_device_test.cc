// Devices made from a framework's existing objects (hetcomm_device_from_native), here OpenCL
// contexts that the test creates:
//
//   * a device can be added while a communicator is in use, and its memory can be sent immediately
//   * the same context gives the same device, also for threads that ask at the same time
//   * the framework may release its context and buffers first
//   * memory named by pointers can be sent, too
//   * an object that is not a context is refused, and everything else still works
//   * a handle that names no memory is refused if a pointer is expected, and never written through
//   * refusals of memory name the rule
#include <atomic>
#include <memory>
#include <thread>

#include "tests/conformance/capi/device/device.h"
#include "tests/conformance/capi/device/opencl.h"

namespace hetcomm_test {
namespace {

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

class NativeDevices : public OpenClTest {};

// Rank 0's |size| bytes are sent to rank 1.
void move(Member& me, hetcomm_buffer_t buffer) {
  const Outcome outcome = finish(start_move(me, buffer));
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
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
  EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
}

TEST_P(NativeDevices, DeviceCanBeAddedWhileACommunicatorIsInUse) {
  run(2, [](Member& me) {
    std::vector<std::byte> host = pattern(3'000'000, 1);
    move(me, hetcomm_buffer_host(host.data(), host.size()));
    // The second device is added after memory of the first one has been sent.
    for (int32_t wanted = 1; wanted <= 2; ++wanted) {
      Framework framework(me.rank() + wanted);
      const int32_t device = add_device(me, framework);
      EXPECT_EQ(device, wanted);
      EXPECT_EQ(add_device(me, framework), wanted);
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

// Pointers name the memory, for vendors with such memory. The other rank's memory may be a buffer.
TEST_P(NativeDevices, MemoryGivenByPointerCanBeSent) {
  run(2, [](Member& me) {
    constexpr uint64_t kSize = 3'000'000;
    constexpr uint64_t kBefore = 1000;
    Framework framework(me.rank());
    const int32_t device = add_device(me, framework);
    const hetcomm::test::Usm usm = framework.usm();
    const std::vector<std::byte> sent = pattern(kSize, 9);
    for (const bool wrapped : {false, true}) {
      std::byte* pointer = nullptr;
      hetcomm_memory_t* memory = nullptr;
      hetcomm_buffer_t buffer;
      if (!usm.offered()) {
        ASSERT_EQ(hetcomm_memory_allocate(me.context(), device, kSize, &memory), HETCOMM_OK);
        buffer = hetcomm_buffer_memory(memory, 0, kSize);
      } else {
        pointer = usm.allocate(kBefore + kSize);
        if (wrapped) {
          ASSERT_EQ(hetcomm_memory_wrap(me.context(), device, pointer + kBefore, kSize, &memory),
                    HETCOMM_OK)
              << hetcomm_last_error();
          buffer = hetcomm_buffer_memory(memory, 0, kSize);
        } else {
          ASSERT_EQ(hetcomm_buffer_pointer(me.context(), pointer + kBefore, kSize, &buffer),
                    HETCOMM_OK)
              << hetcomm_last_error();
          ASSERT_NE(buffer.memory, nullptr) << "it is no memory of the host";
          EXPECT_EQ(buffer.offset, kBefore);
        }
      }
      const auto write = [&](const std::vector<std::byte>& bytes) {
        EXPECT_EQ(hetcomm_memory_write(buffer.memory, buffer.offset, bytes.data(), kSize),
                  HETCOMM_OK);
      };
      write(me.rank() == 0 ? sent : std::vector<std::byte>(kSize));
      move(me, buffer);
      std::vector<std::byte> got(kSize);
      EXPECT_EQ(hetcomm_memory_read(buffer.memory, buffer.offset, got.data(), kSize), HETCOMM_OK);
      EXPECT_TRUE(got == sent);
      me.meet();
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
      if (pointer != nullptr) usm.free(pointer);
    }
  });
}

TEST_P(NativeDevices, ConcurrentThreadsGetTheSameDevice) {
  run(2, [](Member& me) {
    std::vector<std::unique_ptr<Framework>> frameworks;
    for (int i = 0; i < 4; ++i) frameworks.push_back(std::make_unique<Framework>(i));
    std::vector<std::thread> threads;
    std::vector<std::vector<int32_t>> given(8, std::vector<int32_t>(4));
    for (auto& own : given) {
      threads.emplace_back([&] {
        for (size_t i = 0; i < frameworks.size(); ++i) {
          own[i] = add_device(me, *frameworks[i]);
        }
      });
    }
    // Messages still work.
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

TEST_P(NativeDevices, ObjectThatIsNotAContextIsRefused) {
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
    EXPECT_EQ(add_device(me, framework), 1) << "what was refused left no device";
    std::vector<std::byte> host(1000);
    move(me, hetcomm_buffer_host(host.data(), host.size()));
    me.meet();
  });
}

// An unwrapped cl_mem is not a pointer to host memory: a receive into it would overwrite the
// run-time's own objects.
TEST_P(NativeDevices, HandleInPlaceOfAPointerIsRefused) {
  run(2, [](Member& me) {
    Framework framework(me.rank());
    Framework elsewhere(me.rank() + 1);  // of the other vendor; not a device of the context
    const int32_t device = add_device(me, framework);
    const std::vector<std::byte> some(512, std::byte{7});
    const cl_mem own = framework.buffer(some);
    const cl_mem other = elsewhere.buffer(some);
    const auto refused = [&](void* object) {
      hetcomm_buffer_t buffer{};
      EXPECT_EQ(hetcomm_buffer_pointer(me.context(), object, 512, &buffer),
                HETCOMM_INVALID_ARGUMENT);
      EXPECT_NE(std::string(hetcomm_last_error()).find("hetcomm_memory_wrap()"), std::string::npos)
          << hetcomm_last_error();
      EXPECT_EQ(buffer.offset, 0u);
      hetcomm_memory_t* memory = nullptr;
      EXPECT_EQ(hetcomm_memory_wrap(me.context(), 0, object, 64, &memory), HETCOMM_INVALID_ARGUMENT)
          << "as host memory";
    };
    refused(own);
    refused(other);
    refused(framework.context());
    hetcomm_memory_t* memory = nullptr;
    ASSERT_EQ(hetcomm_memory_wrap(me.context(), device, own, 512, &memory), HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_buffer_t buffer{};
    ASSERT_EQ(hetcomm_buffer_pointer(me.context(), own, 512, &buffer), HETCOMM_OK)
        << hetcomm_last_error();
    EXPECT_NE(buffer.memory, nullptr);
    move(me, buffer);
    ASSERT_TRUE(me.meet());
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
    refused(own);
    // Host memory is recognized as such, even if an object used it before.
    std::vector<void*> host(64);
    for (const uint64_t at : {0u, 1u, 17u}) {
      EXPECT_EQ(hetcomm_buffer_pointer(me.context(), &host[at], 64, &buffer), HETCOMM_OK)
          << hetcomm_last_error();
      EXPECT_EQ(buffer.memory, nullptr);
    }
    // Nothing reads memory that may not exist.
    for (const uintptr_t address : {uintptr_t{8}, uintptr_t{0xd5} << 56, ~uintptr_t{63}}) {
      EXPECT_EQ(hetcomm_buffer_pointer(me.context(), reinterpret_cast<void*>(address), 8, &buffer),
                HETCOMM_OK);
      EXPECT_EQ(buffer.memory, nullptr);
    }
    framework.release(own);
    elsewhere.release(other);
    me.meet();
  });
}

TEST_P(NativeDevices, ErrorForRefusedMemoryGivesTheReason) {
  run(2, [](Member& me) {
    Framework framework(me.rank());
    Framework second(me.rank());
    const int32_t device = add_device(me, framework);
    const std::vector<std::byte> some(512);
    const cl_mem own = framework.buffer(some);
    const cl_mem strange = second.buffer(some);
    cl_int status = CL_SUCCESS;
    const cl_mem closed = framework.api().CreateBuffer(
        framework.context(), CL_MEM_READ_WRITE | CL_MEM_HOST_NO_ACCESS, 512, nullptr, &status);
    ASSERT_EQ(status, CL_SUCCESS);
    uint64_t word = 0;
    const struct {
      void* address;
      hetcomm_status_t status;
      const char* text;
    } cases[] = {{&word, HETCOMM_INVALID_ARGUMENT, "no cl_mem of this vendor"},
                 {strange, HETCOMM_INVALID_ARGUMENT, "of another cl_context"},
                 {closed, HETCOMM_UNSUPPORTED, "CL_MEM_HOST_NO_ACCESS"},
                 {own, HETCOMM_OUT_OF_RANGE, "ends past the buffer"}};
    for (const auto& each : cases) {
      hetcomm_memory_t* memory = nullptr;
      EXPECT_EQ(hetcomm_memory_wrap(me.context(), device, each.address, 513, &memory), each.status);
      EXPECT_NE(std::string(hetcomm_last_error()).find(each.text), std::string::npos)
          << each.text << ": " << hetcomm_last_error();
    }
    framework.release(own);
    framework.release(closed);
    second.release(strange);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, NativeDevices, ::testing::ValuesIn(cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
