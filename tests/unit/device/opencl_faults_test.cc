// Every OpenCL call fails once, at every point in a device's life. The device reports the failure
// or works around it; it never ends the process, never hangs, and never returns wrong data as
// correct.
#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/datatype.h>

#include "devices/opencl/api.h"
#include "src/system/unique_fd.h"
#include "tests/unit/device/fixture.h"

namespace hetcomm {
namespace {

thread_local bool is_spared = false;  // this thread's calls succeed, and do not count

// Makes only call number |fails_at| since begin() fail.
struct Faults {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> fails_at{-1};
  std::atomic<const char*> failed{nullptr};  // the failed function
  std::atomic<bool> is_compilers{false};     // on a compiler thread of the device
  std::thread::id main;

  void begin(int64_t at) {
    failed = nullptr;
    is_compilers = false;
    main = std::this_thread::get_id();
    fails_at = at;
    calls = 0;
  }
  bool fails(const char* name) {
    if (is_spared || calls.fetch_add(1) != fails_at) return false;
    failed = name;
    is_compilers = std::this_thread::get_id() != main;
    return true;
  }
};
Faults faults;

// Replaces one OpenCL function. A failing call has no effect: it returns a null handle, and stores
// the error in its last argument if that is a status.
template <auto kMember, typename Function>
struct Failing;
template <auto kMember, typename Value, typename... Arguments>
struct Failing<kMember, Value(CL_API_CALL*)(Arguments...)> {
  static inline Value(CL_API_CALL* real)(Arguments...) = nullptr;
  static inline const char* name = nullptr;

  static Value CL_API_CALL call(Arguments... arguments) {
    if (!faults.fails(name)) return real(arguments...);
    if constexpr (std::is_same_v<Value, cl_int>) {
      return CL_OUT_OF_RESOURCES;
    } else {
      set_status(arguments...);
      return nullptr;
    }
  }

 private:
  template <typename First, typename... Rest>
  static void set_status(First first, Rest... rest) {
    if constexpr (sizeof...(rest) > 0) {
      set_status(rest...);
    } else if constexpr (std::is_same_v<First, cl_int*>) {
      if (first != nullptr) *first = CL_OUT_OF_RESOURCES;
    }
  }
};

// Enables failures in all functions while the object exists.
class FailingApi {
 public:
  FailingApi() : real_(*opencl::Api::open().value()) {
    opencl::Api& api = all();
#define HETCOMM_FAIL(function)                                                    \
  {                                                                               \
    using Own = Failing<&opencl::Api::function, decltype(opencl::Api::function)>; \
    Own::real = real_.function;                                                   \
    Own::name = #function;                                                        \
    api.function = Own::call;                                                     \
  }
    HETCOMM_OPENCL_FUNCTIONS(HETCOMM_FAIL)
#undef HETCOMM_FAIL
    // This call never fails: without it, the vendor never releases the queue.
    api.SetUserEventStatus = real_.SetUserEventStatus;
  }
  ~FailingApi() { all() = real_; }
  FailingApi(const FailingApi&) = delete;
  FailingApi& operator=(const FailingApi&) = delete;

 private:
  static opencl::Api& all() { return const_cast<opencl::Api&>(*opencl::Api::open().value()); }
  const opencl::Api real_;
};

constexpr uint64_t kSize = 64 * 1024;

// A device's life. Host memory is kept, because copies may still run after a failed wait.
class Life {
 public:
  explicit Life(const std::string& kind) : kind_(kind) {}

  // Runs the whole life. Returns whether all calls have succeeded; the data is then correct.
  bool run() {
    Result<Device> device = create_opencl_device(kind_.substr(std::strlen("opencl:")));
    if (!device.ok()) return false;
    table_ = device->table;
    device_ = device->instance;
    all_ok_ = true;
    use();
    table_->destroy(device_);
    return all_ok_;
  }

 private:
  bool ok(hetcomm_status_t status) {
    EXPECT_NE(status, HETCOMM_INTERNAL);
    EXPECT_NE(status, HETCOMM_PENDING);
    all_ok_ = all_ok_ && status == HETCOMM_OK;
    return status == HETCOMM_OK;
  }

  void use() {
    void* stream = nullptr;
    std::array<void*, 3> memories{};
    bool has_all = ok(table_->stream_create(device_, &stream));
    for (void*& memory : memories) {
      has_all = ok(table_->allocate(device_, kSize, &memory)) && has_all;
    }
    if (has_all) move(stream, memories);
    host_memory();
    for (void* const memory : memories) {
      if (memory != nullptr) table_->free(device_, memory);
    }
    if (stream != nullptr) table_->stream_destroy(device_, stream);
    user_stream();
  }

  void move(void* stream, const std::array<void*, 3>& memories) {
    const DeviceRows rows{.offset = 100, .row_bytes = 50, .extents = {3, 4}, .strides = {1000, 60}};
    std::vector<std::byte>& sent = kept(random_bytes(kSize, 1));
    std::vector<std::byte>& back = kept(std::vector<std::byte>(kSize));
    std::vector<std::byte>& packed = kept(std::vector<std::byte>(bytes_of(rows)));
    const DeviceRows all = one_row(0, kSize);
    void* base = nullptr;
    uint64_t size = 0;
    ok(table_->find(device_, memories[0], &base, &size));
    if (ok(table_->retain(device_, memories[0], kSize))) table_->release(device_, memories[0]);
    const bool moved =
        ok(table_->copy_from_host(device_, stream, memories[0], 0, sent.data(), kSize)) &&
        ok(table_->copy_rows_to_host(device_, stream, packed.data(), memories[0], &rows)) &&
        waited(stream) &&
        ok(table_->copy_rows_from_host(device_, stream, memories[0], &rows, packed.data())) &&
        ok(table_->copy_rows_between(device_, stream, memories[0], &all, device_, memories[1],
                                     &all)) &&
        reduced(stream, memories) &&
        ok(table_->copy_to_host(device_, stream, back.data(), memories[2], 0, kSize));
    void* event = nullptr;
    if (!ok(table_->event_record(device_, stream, &event))) return;
    // The vendor may write the file late, after a failed wait.
    static std::vector<UniqueFd> files;
    const UniqueFd& file = files.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const bool told = ok(table_->event_notify(device_, event, file.get()));
    const bool over = ok(table_->event_wait(device_, event));
    if (over && moved && ok(table_->event_query(device_, event))) {
      for (size_t i = 0; i < kSize; ++i) {
        const auto twice = static_cast<std::byte>(2 * static_cast<unsigned>(sent[i]));
        const char* const failed = faults.failed;
        ASSERT_EQ(back[i], twice) << "at " << i
                                  << "; failed: " << (failed != nullptr ? failed : "none");
      }
    }
    // The vendor writes the descriptor from its own thread, within a short time.
    for (uint64_t count = 0; told && over && read(file.get(), &count, sizeof(count)) < 0;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    table_->event_release(device_, event);
  }

  // Waits until the work in the stream is done. A vendor may read host memory when a copy is
  // submitted.
  bool waited(void* stream) {
    void* event = nullptr;
    if (!ok(table_->event_record(device_, stream, &event))) return false;
    const bool over = ok(table_->event_wait(device_, event));
    table_->event_release(device_, event);
    return over;
  }

  // Computes memories[2] = memories[0] + memories[1]. Faults may leave the device without a kernel
  // for that sum.
  bool reduced(void* stream, const std::array<void*, 3>& memories) {
    DeviceReduction what{};
    what.first = memories[0];
    what.second = memories[1];
    what.out = memories[2];
    what.reduction = HETCOMM_REDUCE_SUM;
    what.datatype = what.first_datatype = what.out_datatype = HETCOMM_UINT8;
    what.divisor = 1;
    hetcomm_status_t asked = table_->reduce(device_, nullptr, &what);
    // The device's kernel is being compiled, which may have failed permanently.
    is_spared = true;
    for (int tries = 0; tries < (faults.is_compilers ? 40 : 4000); ++tries) {
      if (asked != HETCOMM_UNSUPPORTED) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      asked = table_->reduce(device_, nullptr, &what);
    }
    is_spared = false;
    what.elements = kSize;
    return ok(asked) && ok(table_->reduce(device_, stream, &what));
  }

  void host_memory() {
    void* host = nullptr;
    if (!ok(table_->allocate_host(device_, kSize, &host))) return;
    std::memset(host, 1, kSize);
    table_->free_host(device_, host);
  }

  void user_stream() {
    void* stream = nullptr;
    if (!ok(table_->stream_create(device_, &stream))) return;
    void* native = nullptr;
    void* queue = nullptr;
    ok(table_->stream_native(device_, stream, &native));
    if (ok(table_->user_stream_open(device_, native, &queue))) {
      void* hold = nullptr;
      void* event = nullptr;
      const bool held = ok(table_->user_stream_hold(device_, queue, &hold));
      if (ok(table_->user_stream_record(device_, queue, &event))) {
        if (held) table_->hold_end(device_, hold);
        ok(table_->event_wait(device_, event));
        table_->event_release(device_, event);
      } else if (held) {
        table_->hold_end(device_, hold);
      }
      table_->user_stream_close(device_, queue);
    }
    table_->stream_destroy(device_, stream);
  }

  static std::vector<std::byte>& kept(std::vector<std::byte> bytes) {
    static std::vector<std::unique_ptr<std::vector<std::byte>>> all;
    return *all.emplace_back(std::make_unique<std::vector<std::byte>>(std::move(bytes)));
  }

  const std::string kind_;
  const DeviceTable* table_ = nullptr;
  void* device_ = nullptr;
  bool all_ok_ = true;
};

class OpenClFaults : public testing::TestWithParam<std::string> {};

TEST_P(OpenClFaults, FailureOfAnyCallIsReportedOrHandled) {
  const FailingApi api;
  Life life(GetParam());
  faults.begin(-1);
  ASSERT_TRUE(life.run());
  const int64_t calls = faults.calls;
  EXPECT_GT(calls, 60);
  int64_t noticed = 0;
  for (int64_t at = 0; at < calls + 2; ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    faults.begin(at);
    const bool all_ok = life.run();
    if (!all_ok) {
      ++noticed;
      EXPECT_NE(faults.failed, nullptr) << "something else has failed";
    }
    if (HasFailure()) return;
  }
  // The remaining calls release unused objects, or have a substitute.
  EXPECT_GT(noticed, calls / 2);
  faults.begin(-1);
  EXPECT_TRUE(life.run());
}

INSTANTIATE_TEST_SUITE_P(RunTimes, OpenClFaults, testing::ValuesIn(kinds_to_test()), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpenClFaults);

}  // namespace
}  // namespace hetcomm
