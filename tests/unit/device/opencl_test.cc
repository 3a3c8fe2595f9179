// OpenCL devices over every run-time on this machine, in addition to the suite for all devices:
// options; a caller's buffers and their parts; invalid names; foreign contexts.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <hetcomm/datatype.h>

#include "devices/opencl/api.h"
#include "devices/opencl/objects.h"
#include "devices/opencl/options.h"
#include "tests/support/usm.h"
#include "tests/unit/device/fixture.h"

namespace hetcomm {

// Returns all available kinds.
std::vector<std::string> kinds_to_test() {
  std::vector<std::string> kinds;
  for (int i = 0; i < 16; ++i) {
    Result<Device> device = create_opencl_device(std::to_string(i));
    if (!device.ok()) break;
    device->table->destroy(device->instance);
    kinds.push_back("opencl:" + std::to_string(i));
  }
  return kinds;
}

namespace {

using testing::HasSubstr;

TEST(OpenCl, InstalledRuntimesAreFound) {
  const std::vector<std::string> kinds = kinds_to_test();
  if (std::getenv("OCL_ICD_VENDORS") == nullptr && kinds.empty()) {
    GTEST_SKIP() << "this machine has no OpenCL run-time; tools/install-deps --opencl brings two";
  }
  const size_t wanted = std::getenv("OCL_ICD_VENDORS") != nullptr ? 2 : 1;
  EXPECT_GE(kinds.size(), wanted);
}

// Forbids process_vm_readv() permanently. Returns false if the kernel does not allow that.
bool forbid_reading_processes() {
  constexpr auto kNumber = static_cast<uint32_t>(offsetof(seccomp_data, nr));
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(steps), steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

// An object begins with the address of its vendor's table. Unreadable memory is not an object.
TEST(OpenCl, ObjectsAreRecognizedByTheirVendorTable) {
  const auto table = reinterpret_cast<uintptr_t>(&forbid_reading_processes);
  const uintptr_t known[] = {table, 1};
  const uintptr_t another[] = {table, 2};
  const uintptr_t none[] = {table + 8, 3};
  void* const closed = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(closed, MAP_FAILED);
  const auto wrong = [&] {
    opencl::note_vendor(known);
    return (opencl::looks_like_object(another) ? 0 : 1) +
           (opencl::are_of_one_vendor(known, another) ? 0 : 2) +
           (opencl::looks_like_object(none) ? 4 : 0) + (opencl::looks_like_object(closed) ? 8 : 0) +
           (opencl::looks_like_object(reinterpret_cast<void*>(8)) ? 16 : 0) +
           (opencl::looks_like_object(nullptr) ? 32 : 0) +
           (opencl::looks_like_object(reinterpret_cast<const char*>(another) + 1) ? 64 : 0);
  };
  // Tested in a sandbox too.
  for (const bool forbidden : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      if (forbidden && !forbid_reading_processes()) _exit(128);
      _exit(wrong());
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << (forbidden ? "forbidden" : "allowed");
  }
  munmap(closed, 4096);
}

TEST(OpenCl, OnlyValidOptionsParse) {
  const auto parsed = [](std::string_view text) {
    const Result<opencl::Options> options = opencl::parse_options(text);
    EXPECT_TRUE(options.ok()) << text;
    return options.ok() ? options.value() : opencl::Options{};
  };
  EXPECT_EQ(parsed("").index, 0u);
  EXPECT_EQ(parsed("3").index, 3u);
  EXPECT_EQ(parsed("platform=intel").platform, "intel");
  EXPECT_EQ(parsed("platform=intel:2").index, 2u);
  EXPECT_EQ(parsed("2:platform=intel").platform, "intel");
  for (const char* text : {"x", "-1", "1:2", "platform=", "platform=a:platform=b", ":",
                           "1:", "4294967296", "1x", "gpu"}) {
    const Result<opencl::Options> options = opencl::parse_options(text);
    // A trailing colon separates nothing.
    if (std::string(text) == "1:") continue;
    EXPECT_EQ(options.status().code(), Code::kInvalidArgument) << text;
  }
  EXPECT_TRUE(opencl::contains_word("Portable Computing Language", "PORTABLE"));
  EXPECT_TRUE(opencl::contains_word("x", ""));
  EXPECT_FALSE(opencl::contains_word("Intel", "intel(r)"));
}

TEST(OpenCl, ErrorNamesTheMissingPlatformAndDevice) {
  const Result<Device> none = create_opencl_device("platform=acme:1");
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_THAT(none.status().text(), HasSubstr("opencl: "));
  if (kinds_to_test().empty()) return;
  EXPECT_THAT(none.status().text(), HasSubstr("no OpenCL device 1 of platform acme: 0 found"));
}

// A device, and buffers that a caller creates in the device's context.
class OpenClBuffers : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    address_ = device_.allocate(16);
    context_ = context_of(address_);
    ASSERT_NE(context_, nullptr);
  }
  void TearDown() override { device_.free(address_); }

  cl_context context_of(void* buffer) const {
    cl_context context = nullptr;
    EXPECT_EQ(api_.GetMemObjectInfo(static_cast<cl_mem>(buffer), CL_MEM_CONTEXT, sizeof(context),
                                    &context, nullptr),
              CL_SUCCESS);
    return context;
  }
  // Checks the platform's name, because device names contain processor names.
  bool is_intels() const {
    cl_device_id device = nullptr;
    EXPECT_EQ(api_.GetContextInfo(context_, CL_CONTEXT_DEVICES, sizeof(device), &device, nullptr),
              CL_SUCCESS);
    cl_platform_id platform = nullptr;
    EXPECT_EQ(api_.GetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof(platform), &platform, nullptr),
              CL_SUCCESS);
    char name[256] = {};
    EXPECT_EQ(api_.GetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(name) - 1, name, nullptr),
              CL_SUCCESS);
    return std::string_view(name).starts_with("Intel");
  }
  cl_mem make(uint64_t size) {
    const cl_mem buffer = api_.CreateBuffer(context_, CL_MEM_READ_WRITE, size, nullptr, nullptr);
    EXPECT_NE(buffer, nullptr);
    return buffer;
  }
  // Polls a count for a while until it is |expected|, because a vendor thread may release its own
  // reference later.
  template <typename Read>
  static cl_uint wait_for(cl_uint expected, Read&& read) {
    cl_uint count = 0;
    for (int tries = 0; tries < 1000; ++tries) {
      EXPECT_EQ(read(&count), CL_SUCCESS);
      if (count == expected) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return count;
  }
  cl_uint references(cl_mem buffer, cl_uint expected) {
    return wait_for(expected, [&](cl_uint* out_count) {
      return api_.GetMemObjectInfo(buffer, CL_MEM_REFERENCE_COUNT, sizeof(*out_count), out_count,
                                   nullptr);
    });
  }
  hetcomm_status_t retain(void* address, uint64_t size) {
    return device_.table().retain(device_.instance(), address, size);
  }
  void release(void* address) { device_.table().release(device_.instance(), address); }
  hetcomm_status_t find(const void* address) {
    void* base = nullptr;
    uint64_t size = 0;
    return device_.table().find(device_.instance(), address, &base, &size);
  }

  const opencl::Api& api_ = *opencl::Api::open().value();
  TestDevice device_{GetParam()};
  void* address_ = nullptr;
  cl_context context_ = nullptr;
};

TEST_P(OpenClBuffers, CallerBufferIsRetainedUntilReleased) {
  const cl_mem buffer = make(1000);
  EXPECT_EQ(find(buffer), HETCOMM_NOT_FOUND);
  void* const stream = device_.stream();
  std::vector<std::byte> sent = random_bytes(1000, 1);
  EXPECT_EQ(device_.write(stream, buffer, 0, sent.data(), 1000), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(retain(buffer, 1001), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(references(buffer, 1), 1u);
  ASSERT_EQ(retain(buffer, 1000), HETCOMM_OK);
  ASSERT_EQ(retain(buffer, 10), HETCOMM_OK);
  EXPECT_EQ(references(buffer, 3), 3u);
  api_.ReleaseMemObject(buffer);  // the caller's own reference
  ASSERT_EQ(device_.write(stream, buffer, 0, sent.data(), 1000), HETCOMM_OK);
  std::vector<std::byte> back(1000);
  ASSERT_EQ(device_.read(stream, back.data(), buffer, 0, 1000), HETCOMM_OK);
  device_.finish(stream);
  EXPECT_EQ(back, sent);
  release(buffer);
  EXPECT_EQ(find(buffer), HETCOMM_OK);
  EXPECT_EQ(references(buffer, 1), 1u);
  release(buffer);
  EXPECT_EQ(find(buffer), HETCOMM_NOT_FOUND);
  device_.destroy_stream(stream);
}

TEST_P(OpenClBuffers, PointersThatAreNotBuffersAreRefused) {
  std::vector<uint64_t> words(64, 7);
  int here = 0;
  for (void* const name :
       {static_cast<void*>(words.data()), static_cast<void*>(&here), static_cast<void*>(context_),
        reinterpret_cast<void*>(8), reinterpret_cast<void*>(~uintptr_t{0}),
        reinterpret_cast<void*>(uintptr_t{0xd5} << 56),
        static_cast<void*>(reinterpret_cast<char*>(address_) + 1),
        static_cast<void*>(static_cast<void**>(address_) + 1)}) {
    if (name == context_) continue;  // an object but not a buffer: only OpenCL itself can tell
    EXPECT_EQ(retain(name, 1), HETCOMM_INVALID_ARGUMENT) << name;
    EXPECT_EQ(find(name), HETCOMM_NOT_FOUND) << name;
  }
}

TEST_P(OpenClBuffers, BufferOfAnotherContextIsRefused) {
  TestDevice other(GetParam());
  void* const strange = other.allocate(64);
  EXPECT_EQ(retain(strange, 64), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(find(strange), HETCOMM_NOT_FOUND);
  void* const stream = device_.stream();
  char host[8] = {};
  EXPECT_EQ(device_.read(stream, host, strange, 0, 8), HETCOMM_INVALID_ARGUMENT);
  device_.destroy_stream(stream);
  other.free(strange);
  // Buffers of other vendors are rejected too.
  for (const std::string& kind : kinds_to_test()) {
    TestDevice foreign(kind);
    void* const memory = foreign.allocate(64);
    EXPECT_EQ(retain(memory, 64), HETCOMM_INVALID_ARGUMENT) << kind;
    foreign.free(memory);
  }
}

TEST_P(OpenClBuffers, SubBufferIsAcceptedAsABuffer) {
  const cl_mem whole = make(1 << 20);
  const cl_buffer_region region = {.origin = 64 << 10, .size = 4096};
  cl_int status = CL_SUCCESS;
  const cl_mem part = api_.CreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION,
                                           &region, &status);
  ASSERT_EQ(status, CL_SUCCESS);
  ASSERT_EQ(retain(whole, 1 << 20), HETCOMM_OK);
  ASSERT_EQ(retain(part, 4096), HETCOMM_OK);
  void* const stream = device_.stream();
  const std::vector<std::byte> sent = random_bytes(4096, 1);
  ASSERT_EQ(device_.write(stream, part, 0, sent.data(), 4096), HETCOMM_OK);
  std::vector<std::byte> back(4096);
  ASSERT_EQ(device_.read(stream, back.data(), whole, 64 << 10, 4096), HETCOMM_OK);
  device_.finish(stream);
  EXPECT_EQ(back, sent);
  EXPECT_EQ(device_.write(stream, part, 4000, sent.data(), 97), HETCOMM_OUT_OF_RANGE);
  release(part);
  release(whole);
  api_.ReleaseMemObject(part);
  api_.ReleaseMemObject(whole);
  device_.destroy_stream(stream);
}

// Copies tensor-sized rows into |memory| and back. OpenCL's rectangles can express some of these
// rows but not others. The memory has kRowsSize bytes.
constexpr uint64_t kRowsSize = 1 << 20;

void check_rows(TestDevice& device, void* memory) {
  void* const stream = device.stream();
  std::vector<std::byte> model = random_bytes(kRowsSize, 3);
  ASSERT_EQ(device.write(stream, memory, 0, model.data(), kRowsSize), HETCOMM_OK);
  const DeviceRows cases[] = {
      {.offset = 128, .row_bytes = 256, .extents = {1, 500}, .strides = {0, 1024}},
      {.offset = 1000, .row_bytes = 100, .extents = {1, 500}, .strides = {0, 1024}},
      {.offset = 4096 + 64, .row_bytes = 64, .extents = {8, 16}, .strides = {65536, 1024}},
      {.offset = 12, .row_bytes = 64, .extents = {8, 16}, .strides = {65000, 1024}},
      {.offset = 4, .row_bytes = 4, .extents = {10, 1000}, .strides = {100000, 8}},
      {.offset = 4, .row_bytes = 8, .extents = {100, 10}, .strides = {8, 4096}},  // transposed
  };
  for (const DeviceRows& rows : cases) {
    SCOPED_TRACE(testing::Message() << rows.offset << "+" << rows.row_bytes);
    const std::vector<std::byte> sent = random_bytes(bytes_of(rows), 4);
    std::vector<std::byte> back(sent.size());
    std::vector<std::byte> whole(kRowsSize);
    const DeviceTable& table = device.table();
    ASSERT_EQ(table.copy_rows_from_host(device.instance(), stream, memory, &rows, sent.data()),
              HETCOMM_OK);
    ASSERT_EQ(table.copy_rows_to_host(device.instance(), stream, back.data(), memory, &rows),
              HETCOMM_OK);
    ASSERT_EQ(device.read(stream, whole.data(), memory, 0, kRowsSize), HETCOMM_OK);
    device.finish(stream);
    size_t next = 0;
    for_each_row(rows, [&](uint64_t at) {
      std::copy_n(sent.begin() + static_cast<ptrdiff_t>(next), rows.row_bytes,
                  model.begin() + static_cast<ptrdiff_t>(at));
      next += rows.row_bytes;
    });
    EXPECT_TRUE(whole == model);
    EXPECT_TRUE(back == sent);
  }
  device.destroy_stream(stream);
}

TEST_P(OpenClBuffers, RowsOfATensorReachTheRightBytes) {
  void* const memory = device_.allocate(kRowsSize);
  check_rows(device_, memory);
  device_.free(memory);
}

TEST_P(OpenClBuffers, DestroyedDeviceLeavesNoReferences) {
  const cl_mem buffer = make(4096);
  {
    TestDevice other(GetParam());
    for (int i = 0; i < 100; ++i) {
      void* const stream = other.stream();
      void* const memory = other.allocate(1000);
      std::vector<std::byte> bytes(1000);
      ASSERT_EQ(other.write(stream, memory, 0, bytes.data(), 1000), HETCOMM_OK);
      other.destroy_stream(stream);
      if (i % 2 == 0) other.free(memory);  // the other buffers are freed with the device
    }
  }
  cl_uint before = 0;
  ASSERT_EQ(
      api_.GetContextInfo(context_, CL_CONTEXT_REFERENCE_COUNT, sizeof(before), &before, nullptr),
      CL_SUCCESS);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(retain(buffer, 4096), HETCOMM_OK);
    release(buffer);
    void* const stream = device_.stream();
    void* const event = device_.record(stream);
    EXPECT_EQ(device_.table().event_wait(device_.instance(), event), HETCOMM_OK);
    device_.table().event_release(device_.instance(), event);
    device_.destroy_stream(stream);
  }
  const cl_uint after = wait_for(before, [&](cl_uint* out_count) {
    return api_.GetContextInfo(context_, CL_CONTEXT_REFERENCE_COUNT, sizeof(*out_count), out_count,
                               nullptr);
  });
  EXPECT_EQ(after, before);
  EXPECT_EQ(references(buffer, 1), 1u);
  api_.ReleaseMemObject(buffer);
}

// Memory named by pointers, for vendors that support it.
class OpenClPointers : public OpenClBuffers {
 protected:
  void SetUp() override {
    OpenClBuffers::SetUp();
    usm_ = test::Usm(api_, context_);
    ASSERT_TRUE(usm_.offered() || !is_intels()) << "Intel's run-time has such memory";
    if (!usm_.offered()) GTEST_SKIP() << "this vendor has no memory that pointers name (USM)";
    pointer_ = usm_.allocate(kSize);
  }
  void TearDown() override {
    if (pointer_ != nullptr) usm_.free(pointer_);
    OpenClBuffers::TearDown();
  }

  static constexpr uint64_t kSize = kRowsSize;
  test::Usm usm_{api_, nullptr};
  std::byte* pointer_ = nullptr;
};

TEST_P(OpenClPointers, PointerAnywhereInAnAllocationIsFound) {
  for (const uint64_t before : {uint64_t{0}, uint64_t{1}, uint64_t{777}, kSize - 1}) {
    void* base = nullptr;
    uint64_t size = 0;
    ASSERT_EQ(device_.table().find(device_.instance(), pointer_ + before, &base, &size),
              HETCOMM_OK);
    EXPECT_EQ(base, pointer_);
    EXPECT_GE(size, kSize);
  }
  EXPECT_EQ(find(pointer_ - 1), HETCOMM_NOT_FOUND);
  EXPECT_EQ(find(&pointer_), HETCOMM_NOT_FOUND);
  EXPECT_EQ(find(nullptr), HETCOMM_NOT_FOUND);
  EXPECT_EQ(find(reinterpret_cast<void*>(~uintptr_t{0})), HETCOMM_NOT_FOUND);
}

// The CPU may access host memory allocated by the vendor.
TEST_P(OpenClPointers, HostAllocationsCountAsHostMemory) {
  for (const test::UsmKind kind : {test::UsmKind::kHost, test::UsmKind::kShared}) {
    std::byte* const memory = usm_.allocate(64, kind);
    if (memory == nullptr) continue;  // some devices lack some memory kinds
    EXPECT_EQ(find(memory), HETCOMM_NOT_FOUND);
    usm_.free(memory);
  }
}

TEST_P(OpenClPointers, CopyToAnInnerPointerReachesTheRightBytes) {
  void* const stream = device_.stream();
  const std::vector<std::byte> sent = random_bytes(5000, 1);
  ASSERT_EQ(retain(pointer_ + 300, kSize - 300), HETCOMM_OK);
  ASSERT_EQ(device_.write(stream, pointer_ + 300, 40, sent.data(), 5000), HETCOMM_OK);
  std::vector<std::byte> back(5000);
  ASSERT_EQ(device_.read(stream, back.data(), pointer_, 340, 5000), HETCOMM_OK);
  device_.finish(stream);
  EXPECT_EQ(back, sent);
  release(pointer_ + 300);
  EXPECT_EQ(find(pointer_), HETCOMM_OK) << "it stays its owner's";
  device_.destroy_stream(stream);
}

TEST_P(OpenClPointers, RowsOfATensorReachTheRightBytes) { check_rows(device_, pointer_); }

TEST_P(OpenClPointers, RangeBeyondItsAllocationIsRefused) {
  void* base = nullptr;
  uint64_t size = 0;
  ASSERT_EQ(device_.table().find(device_.instance(), pointer_, &base, &size), HETCOMM_OK);
  EXPECT_EQ(retain(pointer_, size), HETCOMM_OK);
  EXPECT_EQ(retain(pointer_, size + 1), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(retain(pointer_ + 10, size - 9), HETCOMM_OUT_OF_RANGE);
  void* const stream = device_.stream();
  std::vector<std::byte> bytes(100);
  EXPECT_EQ(device_.read(stream, bytes.data(), pointer_, size - 99, 100), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_.write(stream, pointer_ + 50, size - 100, bytes.data(), 51),
            HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_.read(stream, bytes.data(), pointer_, ~uint64_t{0}, 2), HETCOMM_OUT_OF_RANGE);
  const DeviceRows rows = {
      .offset = size - 900, .row_bytes = 100, .extents = {1, 10}, .strides = {0, 100}};
  std::vector<std::byte> packed(1000);
  EXPECT_EQ(
      device_.table().copy_rows_to_host(device_.instance(), stream, packed.data(), pointer_, &rows),
      HETCOMM_OUT_OF_RANGE);
  device_.destroy_stream(stream);
}

// Reduces pointers together with a buffer, and from addresses with minimal alignment.
TEST_P(OpenClPointers, ReductionAcceptsPointersAndBuffers) {
  constexpr uint64_t kNumbers = 500;
  void* const stream = device_.stream();
  void* const buffer = device_.allocate(kSize);
  std::vector<int32_t> numbers(kNumbers);
  for (size_t i = 0; i < kNumbers; ++i) numbers[i] = static_cast<int32_t>(i);
  const uint64_t size = kNumbers * sizeof(int32_t);
  ASSERT_EQ(device_.write(stream, pointer_, 8, numbers.data(), size), HETCOMM_OK);
  ASSERT_EQ(device_.write(stream, buffer, 4, numbers.data(), size), HETCOMM_OK);
  DeviceReduction sum{};
  sum.first = pointer_;
  sum.first_offset = 8;
  sum.second = buffer;
  sum.second_offset = 4;
  sum.out = pointer_ + 8;
  sum.reduction = HETCOMM_REDUCE_SUM;
  sum.datatype = sum.first_datatype = sum.out_datatype = HETCOMM_INT32;
  sum.divisor = 1;
  const auto reduce = [&](void* in) {
    return device_.table().reduce(device_.instance(), in, &sum);
  };
  for (int tries = 0; tries < 1000 && reduce(nullptr) != HETCOMM_OK; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // while the kernel is compiled
  }
  sum.elements = kNumbers;
  ASSERT_EQ(reduce(stream), HETCOMM_OK);
  std::vector<int32_t> result(kNumbers);
  ASSERT_EQ(device_.read(stream, result.data(), pointer_, 8, size), HETCOMM_OK);
  device_.finish(stream);
  for (size_t i = 0; i < kNumbers; ++i) ASSERT_EQ(result[i], 2 * numbers[i]) << i;
  sum.first = pointer_ + 1;
  EXPECT_EQ(reduce(stream), HETCOMM_UNSUPPORTED);
  sum.first = pointer_;
  sum.second_offset = 6;
  EXPECT_EQ(reduce(stream), HETCOMM_UNSUPPORTED);
  device_.free(buffer);
  device_.destroy_stream(stream);
}

// For some vendors (NVIDIA), device pointers are valid in each of the device's contexts.
TEST_P(OpenClPointers, PointerOfAnotherContextIsRefusedOrUsable) {
  TestDevice other(GetParam());
  void* const memory = other.allocate(16);
  const test::Usm usm(api_, context_of(memory));
  std::byte* const strange = usm.allocate(64);
  if (is_intels() || retain(strange, 64) != HETCOMM_OK) {
    EXPECT_EQ(retain(strange, 64), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(find(strange), HETCOMM_NOT_FOUND);
  } else {
    void* const stream = device_.stream();
    const std::vector<std::byte> sent = random_bytes(64, 1);
    std::vector<std::byte> back(64);
    EXPECT_EQ(device_.write(stream, strange, 0, sent.data(), 64), HETCOMM_OK);
    EXPECT_EQ(device_.read(stream, back.data(), strange, 0, 64), HETCOMM_OK);
    device_.finish(stream);
    EXPECT_EQ(back, sent);
    release(strange);
  }
  usm.free(strange);
  other.free(memory);
}

INSTANTIATE_TEST_SUITE_P(RunTimes, OpenClPointers, testing::ValuesIn(kinds_to_test()), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpenClPointers);
INSTANTIATE_TEST_SUITE_P(RunTimes, OpenClBuffers, testing::ValuesIn(kinds_to_test()), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpenClBuffers);

}  // namespace
}  // namespace hetcomm
