// A device whose vendor calls fail: each call fails once, at the first or a later time, or all
// calls fail from that point. For every call and point:
//
//   * the operation that involves the device, a message or a put, ends with the reason or, if there
//     is another way, with the right data; so does the other rank's
//   * messages between host memory still work
//   * after a call that failed once, device memory can be moved again
//   * all resources are returned
#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/core/communicator/registered_memories.h"
#include "tests/support/core_job.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kSize = 2'000'000;  // size of the device memory

enum class Call : uint8_t {
  kStreamCreate,
  kCopyToHost,
  kCopyFromHost,
  kEventRecord,
  kEventQuery,
  kAllocateHost,
  kPinHost,
  kEventNotify,
};
constexpr std::array<const char*, 8> kCalls = {"stream_create", "copy_to_host", "copy_from_host",
                                               "event_record",  "event_query",  "allocate_host",
                                               "pin_host",      "event_notify"};

// Selects the failing call among the calls from all ranks.
struct Failure {
  Call call = Call::kStreamCreate;
  int earlier = 0;      // calls that succeed before
  bool sticks = false;  // the vendor never recovers
};

class Vendor {
 public:
  static void plan(const Failure& failure) {
    failure_ = failure;
    left_ = failure.earlier;
    failed_ = 0;
    is_lost_ = false;
    is_armed_ = true;
  }
  static void disarm() { is_armed_ = false; }
  static int failures() { return failed_; }
  static bool fails(Call call) {
    if (!is_armed_) return false;
    if (is_lost_) return true;
    if (call != failure_.call || left_.fetch_sub(1) != 0) return false;
    ++failed_;
    if (failure_.sticks) is_lost_ = true;
    return true;
  }

 private:
  static inline Failure failure_;
  static inline std::atomic<int> left_{0};
  static inline std::atomic<int> failed_{0};
  static inline std::atomic<bool> is_lost_{false};
  static inline std::atomic<bool> is_armed_{false};
};

// Returns the table of a kind of simulated device, whose calls fail as planned. Each |kIndex| has
// its own table.
template <int kIndex>
const DeviceTable& failing_table(const DeviceTable& real_table) {
  static DeviceTable real;
  static DeviceTable table;
  static const bool made = [&] {
    real = real_table;
    table = real;
    table.stream_create = [](void* device, void** out) {
      return Vendor::fails(Call::kStreamCreate) ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                                : real.stream_create(device, out);
    };
    table.copy_to_host = [](void* device, void* stream, void* host, const void* address,
                            uint64_t offset, uint64_t size) {
      return Vendor::fails(Call::kCopyToHost)
                 ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                 : real.copy_to_host(device, stream, host, address, offset, size);
    };
    table.copy_from_host = [](void* device, void* stream, void* address, uint64_t offset,
                              const void* host, uint64_t size) {
      return Vendor::fails(Call::kCopyFromHost)
                 ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                 : real.copy_from_host(device, stream, address, offset, host, size);
    };
    table.event_record = [](void* device, void* stream, void** out) {
      return Vendor::fails(Call::kEventRecord) ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                               : real.event_record(device, stream, out);
    };
    // A copy that has failed has ended.
    table.event_query = [](void* device, void* event) {
      if (!Vendor::fails(Call::kEventQuery)) return real.event_query(device, event);
      (void)real.event_wait(device, event);
      return hetcomm_status_t{HETCOMM_DEVICE_LOST};
    };
    if (real.allocate_host != nullptr) {
      table.allocate_host = [](void* device, uint64_t size, void** out) {
        return Vendor::fails(Call::kAllocateHost) ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                                  : real.allocate_host(device, size, out);
      };
    }
    if (real.pin_host != nullptr) {
      table.pin_host = [](void* device, void* host, uint64_t size) {
        return Vendor::fails(Call::kPinHost) ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                             : real.pin_host(device, host, size);
      };
    }
    table.event_notify = [](void* device, void* event, int file) {
      return Vendor::fails(Call::kEventNotify) ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                               : real.event_notify(device, event, file);
    };
    return true;
  }();
  static_cast<void>(made);
  return table;
}

std::vector<Device> make_devices() {
  constexpr const char* kOptions = "memory=64M:bandwidth=500M";
  const Device first = create_sim_device("sim-address", kOptions).value();
  const Device second = create_sim_device("sim-handle", kOptions).value();
  return {{&failing_table<0>(*first.table), first.instance},
          {&failing_table<1>(*second.table), second.instance}};
}

Factories make_factories(const std::string& transport) {
  Factories factories;
  factories.push_back(transport == "shm" ? make_shm_factory() : make_tcp_factory());
  return factories;
}

// Returns the status of a message from rank 0's |out| to rank 1's |in|.
Status pass(CoreMember& me, const hetcomm_buffer_t& out, const hetcomm_buffer_t& in) {
  return me.finish(me.rank() == 0 ? me.post(OperationKind::kSend, 1, 1, out)
                                  : me.post(OperationKind::kReceive, 0, 1, in));
}

void pass_host(CoreMember& me, uint64_t seed) {
  std::vector<std::byte> bytes(300'000);
  if (me.rank() == 0) fill_pattern(bytes, seed);
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes.data(), bytes.size());
  const Status status = pass(me, buffer, buffer);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(find_mismatch(bytes, seed), std::nullopt);
}

class DeviceDeath : public ::testing::TestWithParam<std::string> {};

// Returns whether a transfer of |device|'s memory needs the call. For other calls there is an
// alternative.
bool is_needed(Call call) { return call <= Call::kEventQuery; }
bool is_made(Call call, size_t device) {
  if (call == Call::kAllocateHost) return device == 1;
  if (call == Call::kPinHost) return device == 2;
  return call != Call::kEventNotify;  // made only where a thread is about to sleep
}

// Returns when both ranks have called it.
void meet(CoreMember& me) {
  char there = 0;
  char back = 0;
  const int peer = 1 - me.rank();
  Operation* const receive = me.post(OperationKind::kReceive, peer, 2, &back, 1);
  EXPECT_TRUE(me.finish(me.post(OperationKind::kSend, peer, 2, &there, 1)).ok());
  EXPECT_TRUE(me.finish(receive).ok());
}

// A way to move rank 0's device memory to rank 1's.
class Way {
 public:
  virtual ~Way() = default;
  // Makes one attempt, and returns its status on this rank.
  virtual Status go() = 0;
};

class Messages final : public Way {
 public:
  Messages(CoreMember& me, OnDevice& memory) : me_(me), all_(memory.part(0, kSize)) {}
  Status go() override { return pass(me_, all_, all_); }

 private:
  CoreMember& me_;
  const hetcomm_buffer_t all_;
};

class Puts final : public Way {
 public:
  Puts(CoreMember& me, OnDevice& memory) : me_(me), memory_(memory) {
    EXPECT_TRUE(
        me.communicator().memories().register_memory(*memory, HETCOMM_ACCESS_PUT, true).ok());
    std::vector<std::byte> mine = RegisteredMemories::export_memory(*memory).value();
    std::vector<std::byte> theirs(mine.size());
    const hetcomm_buffer_t out = hetcomm_buffer_host(mine.data(), mine.size());
    const hetcomm_buffer_t in = hetcomm_buffer_host(theirs.data(), theirs.size());
    Operation* const receive = me.post(OperationKind::kReceive, 1 - me.rank(), 3, in);
    EXPECT_TRUE(me.finish(me.post(OperationKind::kSend, 1 - me.rank(), 3, out)).ok());
    EXPECT_TRUE(me.finish(receive).ok());
    ExportedMemory named;
    std::vector<RemoteKey> keys;
    EXPECT_TRUE(me.communicator().memories().import_memory(theirs, &named, &keys).ok());
    remote_.emplace(me.communicator(), named, std::move(keys));
  }
  ~Puts() override {
    remote_.reset();
    meet(me_);
    EXPECT_TRUE(RegisteredMemories::unregister_memory(*memory_, 20'000'000'000).ok());
  }
  Status go() override {
    if (me_.rank() == 1) return {};
    return me_.finish(
        me_.access(OperationKind::kPut, {.remote = &*remote_}, memory_.part(0, kSize)));
  }

 private:
  CoreMember& me_;
  OnDevice& memory_;
  std::optional<RemoteMemory> remote_;
};

using MakeWay = std::function<std::unique_ptr<Way>(CoreMember& me, OnDevice& memory)>;

// Moves |device|'s memory on both sides, while messages between host memory continue. Counts the
// operations that report a lost device.
void go_through(CoreMember& me, const Failure& failure, size_t device, const MakeWay& make_way,
                std::atomic<int>& lost) {
  OnDevice memory(me, kSize, device);
  memory.fill(me.rank() == 0 ? 5 : 6);
  const std::unique_ptr<Way> way = make_way(me, memory);
  pass_host(me, 1);
  meet(me);
  if (me.rank() == 0) Vendor::plan(failure);
  meet(me);
  for (int round = 0; round < 3; ++round) {
    const Status status = way->go();
    EXPECT_EQ(status.ok(), status.text() == code_text(Code::kOk)) << status.text();
    // The other rank receives it as the reason from the rank that owns the device.
    const bool of_other = status.code() == Code::kAborted &&
                          status.text().find("DEVICE_LOST") != std::string_view::npos;
    if (status.code() == Code::kDeviceLost || of_other) {
      ++lost;
      EXPECT_TRUE(of_other || status.text().find("sim-") != std::string_view::npos)
          << status.text();
    }
    EXPECT_NE(status.code(), Code::kTimedOut) << status.text();
    EXPECT_NE(status.code(), Code::kInternal) << status.text();
    pass_host(me, 2);
  }
  meet(me);
  if (me.rank() == 0) Vendor::disarm();
  meet(me);
  // The vendor works again, whatever failed before.
  memory.fill(me.rank() == 0 ? 7 : 8);
  meet(me);
  const Status status = way->go();
  EXPECT_TRUE(status.ok()) << status.text();
  meet(me);
  EXPECT_EQ(find_mismatch(memory.contents(0, kSize), 7), std::nullopt);
}

void every_call_fails(const std::string& kind, const MakeWay& make_way) {
  const std::string transport = kind.substr(0, 3);
  const std::string settings = std::string("HETCOMM_TIMEOUT=20s;HETCOMM_PROGRESS=") +
                               (kind.ends_with("thread") ? "thread" : "caller");
  for (size_t call = 0; call < kCalls.size(); ++call) {
    for (const int earlier : {0, 2}) {
      for (const bool sticks : {false, true}) {
        for (const size_t device : {size_t{1}, size_t{2}}) {
          SCOPED_TRACE(std::string(kCalls[call]) + " #" + std::to_string(earlier) +
                       (sticks ? ", and all after it" : "") + ", device " + std::to_string(device));
          const Failure failure{static_cast<Call>(call), earlier, sticks};
          std::atomic<int> lost{0};
          run_core_job(
              2, settings, [&](int) { return make_factories(transport); },
              [&](CoreMember& me) { go_through(me, failure, device, make_way, lost); },
              make_devices);
          Vendor::disarm();
          // Only some calls are made more than once.
          const bool happens = earlier == 0 && is_made(failure.call, device);
          EXPECT_TRUE(Vendor::failures() == 1 || !happens) << "the call was not made";
          EXPECT_TRUE(lost > 0 || !happens || !is_needed(failure.call)) << "nobody was told";
          EXPECT_TRUE(lost == 0 || is_needed(failure.call) || sticks) << "there is another way";
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(DeviceDeath, MessagesEndIfAVendorCallFails) {
  every_call_fails(GetParam(), [](CoreMember& me, OnDevice& memory) {
    return std::make_unique<Messages>(me, memory);
  });
}

TEST_P(DeviceDeath, PutsEndIfAVendorCallFails) {
  every_call_fails(GetParam(), [](CoreMember& me, OnDevice& memory) {
    return std::make_unique<Puts>(me, memory);
  });
}

INSTANTIATE_TEST_SUITE_P(Over, DeviceDeath,
                         ::testing::Values("shm", "tcp", "shm_thread", "tcp_thread"),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace hetcomm::test
