// Device memory, accessed directly and staged (HETCOMM_DEVICE_PATH), over every transport:
//
//   * the bytes are right either way, for messages and one-sided operations alike, and no other
//     bytes change;
//   * memory that a network interface can reach moves directly unless that was forbidden, other
//     memory is staged, and the counters show which it was;
//   * a user who requires direct access gets UNSUPPORTED and the reason if there is none;
//   * freed memory and new memory at the same address are never confused;
//   * the explanation names each way that was tried and why it was refused.
//
// Over rdma this runs on real verbs, directly by plain registration. Dma-bufs are not tested on
// hardware (tests/unit/rdma/device_memory_test.cc).
//
// The suite runs over simulated devices and over OpenCL devices. If the machine has two vendors,
// both are used in each process, in the same or a different order on the two ranks.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "tests/conformance/capi/device/device.h"
#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

// Devices of each rank. OpenCL devices replace both.
constexpr int32_t kByHandle = 1;   // no network interface can reach it
constexpr int32_t kByAddress = 2;  // the kernel can pin it

// Returns the number of OpenCL devices. A child process counts them, because a process that has
// loaded a vendor's run-time cannot fork.
int opencl_devices() {
  static const int count = [] {
    const pid_t child = fork();
    if (child == 0) {
      int found = 0;
      for (const char* devices :
           {"HETCOMM_DEVICES=opencl:0", "HETCOMM_DEVICES=opencl:0,opencl:1"}) {
        hetcomm_context_options_t options{};
        options.struct_size = sizeof(options);
        options.settings = devices;
        hetcomm_context_t* context = nullptr;
        if (hetcomm_context_create(&options, &context) != HETCOMM_OK) break;
        ++found;
      }
      _exit(found);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return count;
}

// Each rank has its own vendor second. Most tests use the second device.
void set_opencl_devices(bool mixed, int32_t rank) {
  const char* const second = opencl_devices() > 1 ? "opencl:1" : "opencl:0";
  const std::string devices =
      mixed && rank == 1 ? std::string(second) + ",opencl:0" : std::string("opencl:0,") + second;
  setenv("HETCOMM_DEVICES", devices.c_str(), 1);
}

void append_opencl_cases(std::vector<CapiCase>& cases) {
  for (const char* transport : {"shm", "tcp", "rdma"}) {
    for (const bool mixed : {false, true}) {
      for (const bool threaded : {false, true}) {
        CapiCase each{.name = std::string(transport) + (mixed ? "_opencl_mixed" : "_opencl"),
                      .transports = transport,
                      .settings = "STAGING_CHUNK=64K;",
                      .thread_progress = threaded,
                      .processes = true,
                      .prepare = [mixed](int32_t rank) { set_opencl_devices(mixed, rank); }};
        if (threaded) each.name += "_thread";
        cases.push_back(each);
      }
    }
  }
}

std::vector<CapiCase> device_cases() {
  std::vector<CapiCase> cases;
  for (const char* path : {"auto", "direct", "staged"}) {
    for (const char* transport : {"shm", "tcp", "rdma"}) {
      for (const bool processes : {false, true}) {
        cases.push_back({.name = std::string(transport) + "_" + path,
                         .transports = transport,
                         .settings = std::string("DEVICES=sim-handle,sim-address;DEVICE_PATH=") +
                                     path + ";STAGING_CHUNK=64K;",
                         .processes = processes});
      }
    }
  }
  append_opencl_cases(cases);
  return cases;
}

hetcomm_counters_t counters(Member& me) {
  hetcomm_counters_t all[4] = {{.struct_size = sizeof(all[0])}};
  size_t count = 0;
  EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), me.partner(), 4, all, &count),
            HETCOMM_OK);
  hetcomm_counters_t sum{};
  for (size_t i = 0; i < count; ++i) {
    sum.direct += all[i].direct;
    sum.device_bytes_direct += all[i].device_bytes_direct;
    sum.device_bytes_staged += all[i].device_bytes_staged;
  }
  return sum;
}

Outcome send(Member& me, hetcomm_buffer_t buffer) {
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_send(me.communicator(), me.partner(), 1, buffer, nullptr, &request), HETCOMM_OK)
      << hetcomm_last_error();
  return finish(request);
}
Outcome receive(Member& me, hetcomm_buffer_t buffer) {
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_recv(me.communicator(), me.partner(), 1, HETCOMM_EXACT_TAG, buffer, nullptr,
                         &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return finish(request);
}

class DevicePath : public CapiTest {
 protected:
  void SetUp() override {
    CapiTest::SetUp();
    if (has("opencl") && opencl_devices() == 0) {
      GTEST_SKIP() << "this machine has no OpenCL device";
    }
  }
  static bool has(std::string_view part) { return GetParam().name.find(part) != std::string::npos; }
  static bool is_direct() { return has("rdma") && !has("staged") && !has("opencl"); }
  // Returns whether the user requires direct access and there is none.
  static bool is_refused() { return !has("rdma") && has("direct"); }
};

// Sends from rank 0 to rank 1 and back, at different offsets.
void check_message(Member& me, uint64_t size) {
  DeviceMemory memory(me, kByAddress, size + 100);
  memory.fill(std::vector<std::byte>(size + 100, std::byte{0x11}));
  if (me.rank() == 0) {
    DeviceMemory source(me, kByAddress, size + 100);
    source.fill(pattern(size + 100, size));
    EXPECT_EQ(send(me, source.part(0, size)).status, HETCOMM_OK);
    const Outcome outcome = receive(me, memory.part(33, size));
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    EXPECT_EQ(outcome.bytes_received, size);
    std::vector<std::byte> got = memory.contents();
    EXPECT_TRUE(holds({got.begin() + 33, got.end()}, size, size, std::byte{0x11})) << size;
    EXPECT_EQ(std::vector<std::byte>(got.begin(), got.begin() + 33),
              std::vector<std::byte>(33, std::byte{0x11}));
  } else {
    const Outcome outcome = receive(me, memory.part(0, size));
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    EXPECT_TRUE(holds(memory.contents(), size, size, std::byte{0x11})) << size;
    EXPECT_EQ(send(me, memory.part(0, size)).status, HETCOMM_OK);
  }
}

TEST_P(DevicePath, MessagesOfManySizesArriveIntact) {
  if (is_refused()) GTEST_SKIP() << "refused: see RequiredDirectAccessFailsIfUnavailable";
  run(2, [](Member& me) {
    for (const uint64_t size :
         std::vector<uint64_t>{1, 100, 4096, 5000, 65'536, 65'537, 300'000, 9'000'000}) {
      const hetcomm_counters_t before = counters(me);
      check_message(me, size);
      me.meet();
      const hetcomm_counters_t after = counters(me);
      // Each rank sends and receives the message once. What was in flight when a connection broke
      // is sent again.
      const bool some_broke = after.failures != before.failures;
      const auto expect_bytes = [&](uint64_t bytes, uint64_t expected) {
        if (some_broke && expected > 0) {
          EXPECT_GE(bytes, expected);
        } else {
          EXPECT_EQ(bytes, expected);
        }
      };
      expect_bytes(after.device_bytes_direct - before.device_bytes_direct,
                   is_direct() ? 2 * size : 0);
      expect_bytes(after.device_bytes_staged - before.device_bytes_staged,
                   is_direct() ? 0 : 2 * size);
    }
  });
}

// Expects that only the beginning of the message arrives and that nothing after the receive's
// buffer changes, whether the receive or the message came first.
void check_truncated(Member& me, uint64_t size, uint64_t room, bool receive_first) {
  constexpr uint64_t kBefore = 33;
  constexpr uint64_t kSecondTag = 2;
  const auto start = [&](bool sends, uint64_t tag, hetcomm_buffer_t buffer) {
    hetcomm_request_t* request = nullptr;
    const hetcomm_status_t status =
        sends ? hetcomm_send(me.communicator(), me.partner(), tag, buffer, nullptr, &request)
              : hetcomm_recv(me.communicator(), me.partner(), tag, HETCOMM_EXACT_TAG, buffer,
                             nullptr, &request);
    EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
    return request;
  };
  std::byte mark{1};
  if (me.rank() == 0) {
    std::vector<std::byte> source = pattern(size, size);
    if (receive_first) me.meet();
    hetcomm_request_t* const first = start(true, 1, hetcomm_buffer_host(source.data(), size));
    // When this message has arrived, the other one is there too.
    hetcomm_request_t* const second = start(true, kSecondTag, hetcomm_buffer_host(&mark, 1));
    EXPECT_EQ(finish(first).status, HETCOMM_OK);
    EXPECT_EQ(finish(second).status, HETCOMM_OK);
    return;
  }
  const uint64_t behind = size - room + 50;
  DeviceMemory memory(me, kByAddress, kBefore + room + behind);
  memory.fill(std::vector<std::byte>(kBefore + room + behind, std::byte{0x11}));
  hetcomm_request_t* request = nullptr;
  if (receive_first) request = start(false, 1, memory.part(kBefore, room));
  if (receive_first) me.meet();
  EXPECT_EQ(finish(start(false, kSecondTag, hetcomm_buffer_host(&mark, 1))).status, HETCOMM_OK);
  if (!receive_first) request = start(false, 1, memory.part(kBefore, room));
  const Outcome outcome = finish(request);
  EXPECT_EQ(outcome.status, HETCOMM_TRUNCATED) << outcome.text;
  EXPECT_EQ(outcome.bytes_received, room);
  EXPECT_NE(outcome.text.find(std::to_string(size)), std::string::npos) << outcome.text;
  std::vector<std::byte> expected(kBefore + room + behind, std::byte{0x11});
  const std::vector<std::byte> sent = pattern(size, size);
  std::copy_n(sent.begin(), room, expected.begin() + kBefore);
  EXPECT_TRUE(memory.contents() == expected) << size << " bytes into " << room;
}

TEST_P(DevicePath, MessageLongerThanItsReceiveIsTruncated) {
  if (is_refused()) GTEST_SKIP() << "refused: see RequiredDirectAccessFailsIfUnavailable";
  run(2, [](Member& me) {
    for (const bool receive_first : {true, false}) {
      // The message is sent whole, in fragments, pulled, or by request.
      check_truncated(me, 100, 99, receive_first);
      check_truncated(me, 4096, 1, receive_first);
      check_truncated(me, 20'000, 7000, receive_first);
      check_truncated(me, 60'000, 59'999, receive_first);
      check_truncated(me, 300'000, 70'000, receive_first);
    }
    me.meet();
  });
}

TEST_P(DevicePath, MessageSpanningSeveralMemoryKindsArrivesIntact) {
  if (has("direct")) GTEST_SKIP() << "memory known by handle is reached by no network";
  run(2, [](Member& me) {
    constexpr uint64_t kPart = 200'000;
    DeviceMemory by_address(me, kByAddress, kPart);
    DeviceMemory by_handle(me, kByHandle, kPart);
    std::vector<std::byte> host(kPart);
    // Only the first message has a part that must be staged.
    for (const size_t count : {size_t{3}, size_t{2}}) {
      const hetcomm_buffer_t buffers[] = {hetcomm_buffer_host(host.data(), kPart),
                                          by_address.part(0, kPart), by_handle.part(0, kPart)};
      hetcomm_request_t* request = nullptr;
      const std::vector<std::byte> all = pattern(count * kPart, count);
      if (me.rank() == 0) {
        host.assign(all.begin(), all.begin() + kPart);
        by_address.fill({all.begin() + kPart, all.begin() + 2 * kPart});
        if (count == 3) by_handle.fill({all.begin() + 2 * kPart, all.end()});
        EXPECT_EQ(hetcomm_sendv(me.communicator(), 1, 1, buffers, count, nullptr, &request),
                  HETCOMM_OK);
        EXPECT_EQ(finish(request).status, HETCOMM_OK);
      } else {
        EXPECT_EQ(hetcomm_recvv(me.communicator(), 0, 1, HETCOMM_EXACT_TAG, buffers, count, nullptr,
                                &request),
                  HETCOMM_OK);
        const Outcome outcome = finish(request);
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        std::vector<std::byte> got = host;
        const std::vector<std::byte> middle = by_address.contents();
        got.insert(got.end(), middle.begin(), middle.end());
        const std::vector<std::byte> last = by_handle.contents();
        if (count == 3) got.insert(got.end(), last.begin(), last.end());
        EXPECT_TRUE(holds(got, count, count * kPart));
      }
      me.meet();
    }
  });
}

// Rank 0 accesses rank 1's memory from and to its own device memory.
void check_one_sided(Member& me, bool direct) {
  constexpr uint64_t kSize = 1'000'000;
  DeviceMemory memory(me, kByAddress, kSize);
  std::vector<std::byte> exported(HETCOMM_EXPORT_MAX_BYTES);
  if (me.rank() == 1) {
    memory.fill(pattern(kSize, 5));
    EXPECT_EQ(hetcomm_memory_register(memory.get(), me.communicator(),
                                      HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET,
                                      HETCOMM_REGISTER_CALLER_PROGRESS),
              HETCOMM_OK);
    size_t size = 0;
    EXPECT_EQ(hetcomm_memory_export(memory.get(), exported.size(), exported.data(), &size),
              HETCOMM_OK);
    exported.resize(size);
    EXPECT_EQ(send(me, hetcomm_buffer_host(exported.data(), size)).status, HETCOMM_OK);
    hetcomm_notification_t notification{};
    EXPECT_EQ(hetcomm_memory_wait_notification(memory.get(), kPatienceNs, &notification),
              HETCOMM_OK)
        << hetcomm_last_error();
    EXPECT_EQ(notification.value, 99u);
    std::vector<std::byte> expected = pattern(kSize, 5);
    const std::vector<std::byte> written = pattern(700'000, 6);
    std::copy(written.begin(), written.end(), expected.begin() + 12'345);
    EXPECT_EQ(memory.contents(), expected);
    me.meet();
    EXPECT_EQ(hetcomm_memory_unregister(memory.get(), kPatienceNs), HETCOMM_OK);
    return;
  }
  const Outcome arrived = receive(me, hetcomm_buffer_host(exported.data(), exported.size()));
  hetcomm_remote_memory_t* remote = nullptr;
  ASSERT_EQ(
      hetcomm_memory_import(me.communicator(), exported.data(), arrived.bytes_received, &remote),
      HETCOMM_OK)
      << hetcomm_last_error();
  const hetcomm_counters_t before = counters(me);
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_get(remote, 100, memory.part(7, 500'000), nullptr, &request), HETCOMM_OK);
  const Outcome got = finish(request);
  EXPECT_EQ(got.status, HETCOMM_OK) << got.text;
  const std::vector<std::byte> bytes = memory.contents();
  const std::vector<std::byte> theirs = pattern(kSize, 5);
  EXPECT_TRUE(std::equal(bytes.begin() + 7, bytes.begin() + 500'007, theirs.begin() + 100));
  memory.fill(pattern(700'000, 6));
  hetcomm_operation_options_t notify{};
  notify.struct_size = sizeof(notify);
  notify.flags = HETCOMM_OPERATION_NOTIFY;
  notify.notify_value = 99;
  EXPECT_EQ(hetcomm_put(remote, 12'345, memory.part(0, 700'000), &notify, &request), HETCOMM_OK);
  const Outcome put = finish(request);
  EXPECT_EQ(put.status, HETCOMM_OK) << put.text;
  const hetcomm_counters_t after = counters(me);
  EXPECT_EQ(after.direct - before.direct, direct ? 2u : 0u) << "without the owner's help";
  EXPECT_EQ(after.device_bytes_direct - before.device_bytes_direct, direct ? 1'200'000u : 0u);
  EXPECT_EQ(after.device_bytes_staged - before.device_bytes_staged, direct ? 0u : 1'200'000u);
  me.meet();
  EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
}

TEST_P(DevicePath, OneSidedOperationsMoveTheRightBytes) {
  if (is_refused()) GTEST_SKIP() << "refused: see RequiredDirectAccessFailsIfUnavailable";
  run(2, [](Member& me) { check_one_sided(me, is_direct()); });
}

// Frees the pages as well. A stale registration would show other pages.
TEST_P(DevicePath, MemoryReallocatedAtTheSameAddressIsNotMistakenForTheOld) {
  if (is_refused()) GTEST_SKIP() << "refused: see RequiredDirectAccessFailsIfUnavailable";
  run(2, [](Member& me) {
    constexpr uint64_t kSize = 2u << 20;
    for (uint64_t round = 0; round < 20; ++round) {
      DeviceMemory memory(me, kByAddress, kSize);
      if (me.rank() == 0) {
        memory.fill(pattern(kSize, round));
        EXPECT_EQ(send(me, memory.part(0, kSize)).status, HETCOMM_OK);
      } else {
        memory.fill(std::vector<std::byte>(kSize));
        const Outcome outcome = receive(me, memory.part(0, kSize));
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        EXPECT_TRUE(holds(memory.contents(), round, kSize)) << round;
      }
    }
    me.meet();
  });
}

TEST_P(DevicePath, RequiredDirectAccessFailsIfUnavailable) {
  if (!has("direct")) GTEST_SKIP() << "nobody insists";
  run(2, [](Member& me) {
    // There is no direct access to memory known by address over transports that move only host
    // memory, nor to memory known by handle over any transport.
    const int32_t device = is_refused() ? kByAddress : kByHandle;
    DeviceMemory memory(me, device, 300'000);
    std::vector<std::byte> host(300'000);
    for (const int refused : {0, 1}) {
      const bool on_device = me.rank() == refused;
      const hetcomm_buffer_t buffer =
          on_device ? memory.part(0, host.size()) : hetcomm_buffer_host(host.data(), host.size());
      const Outcome outcome = me.rank() == 0 ? send(me, buffer) : receive(me, buffer);
      EXPECT_NE(outcome.status, HETCOMM_OK);
      if (on_device) {
        EXPECT_EQ(outcome.status, HETCOMM_UNSUPPORTED) << outcome.text;
        EXPECT_NE(outcome.text.find("HETCOMM_DEVICE_PATH=direct"), std::string::npos)
            << outcome.text;
        const char* const why = is_refused() ? "host memory only" : "the device exports none";
        EXPECT_NE(outcome.text.find(why), std::string::npos) << outcome.text;
      }
      me.meet();
    }
  });
}

TEST_P(DevicePath, ExplanationGivesThePathAndItsReason) {
  run(2, [](Member& me) {
    size_t size = 0;
    EXPECT_EQ(hetcomm_communicator_explain(me.communicator(), me.partner(), 0, nullptr, &size),
              HETCOMM_OK);
    std::vector<char> text(size + 1);
    EXPECT_EQ(hetcomm_communicator_explain(me.communicator(), me.partner(), text.size(),
                                           text.data(), &size),
              HETCOMM_OK);
    const std::string said = text.data();
    const auto says = [&](const std::string& what) {
      EXPECT_NE(said.find(what), std::string::npos) << what << "\n" << said;
    };
    if (has("opencl")) {
      says("memory of opencl (device 2) over " + me.test_case().transports + ": staged (");
    } else if (!has("rdma")) {
      says("memory of sim-address (device 2) over " + me.test_case().transports +
           ": staged (it moves host memory only)");
    } else if (has("staged")) {
      says("memory of sim-address (device 2) over rdma: staged (HETCOMM_DEVICE_PATH=staged)");
    } else {
      says(
          "memory of sim-handle (device 1) over rdma: staged (dma-buf: the device exports none; "
          "plain registration: the device names no address for it)");
      says("memory of sim-address (device 2) over rdma: direct (dma-buf: ");
      says("plain registration: what was written was read back)");
    }
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, DevicePath, ::testing::ValuesIn(device_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
