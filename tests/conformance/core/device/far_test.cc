// Bulk data of a device whose network interface is outside of its root complex, over fake verbs
// (not run on hardware):
//
//   * moves directly if that is faster, and staged if staging is faster, both when sent and when
//     received
//   * switches when the other way becomes faster, in both directions
//   * always moves directly over an interface under the same root complex, and with
//     HETCOMM_DEVICE_PATH=direct, however slow that is
//   * moves directly if staging would be faster but there is no memory to stage through
//   * arrives whole in all cases
//
// The test sets the time that the network interface needs for a direct access.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <fstream>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/core_job.h"
#include "tests/support/fake_verbs.h"
#include "tests/support/machines.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "transports/rdma/factory.h"
#include "transports/self/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kDeviceBytes = 64 << 20;
constexpr const char* kSlowCopies = ":bandwidth=100M";  // staging takes 10 ms per message

// Device memory, and the time that the interface needs for a MiB of it, in us.
struct SlowMemory {
  std::mutex mutex;
  std::vector<uint64_t> begins;
  std::atomic<uint64_t> us_per_mib{0};
};
SlowMemory& slow_memory() {
  static auto* const instance = new SlowMemory();
  return *instance;
}
uint64_t bytes_on_devices(uint64_t address, uint64_t length) {
  const std::lock_guard<std::mutex> lock(slow_memory().mutex);
  for (const uint64_t begin : slow_memory().begins) {
    if (address - begin < kDeviceBytes) return length;
  }
  return 0;
}
int slow_post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  uint64_t bytes = 0;
  for (const ibv_send_wr* each = list; each != nullptr; each = each->next) {
    if ((each->send_flags & IBV_SEND_INLINE) != 0) continue;
    uint64_t all = 0;
    for (int i = 0; i < each->num_sge; ++i) {
      all += each->sg_list[i].length;
      bytes += bytes_on_devices(each->sg_list[i].addr, each->sg_list[i].length);
    }
    if (each->opcode != IBV_WR_SEND) bytes += bytes_on_devices(each->wr.rdma.remote_addr, all);
  }
  const uint64_t us = bytes * slow_memory().us_per_mib >> 20;
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
  return FakeFabric::verbs().post_send(qp, list, bad);
}
const rdma::Verbs& slow_verbs() {
  static const rdma::Verbs table = [] {
    rdma::Verbs own = FakeFabric::verbs();
    own.post_send = slow_post_send;
    return own;
  }();
  return table;
}

std::vector<Device> devices_at(const std::string& address, const std::string& more) {
  Result<Device> device = create_sim_device("sim-address", "memory=64M:pci=" + address + more);
  if (!device.ok()) throw std::runtime_error(std::string(device.status().text()));
  const DeviceTable& table = *device->table;
  void* first = nullptr;
  void* place = nullptr;
  if (table.allocate(device->instance, 1, &first) != HETCOMM_OK ||
      table.registrable_address(device->instance, first, 0, 1, &place) != HETCOMM_OK) {
    throw std::runtime_error("no memory of the device");
  }
  table.free(device->instance, first);
  const std::lock_guard<std::mutex> lock(slow_memory().mutex);
  slow_memory().begins.push_back(reinterpret_cast<uint64_t>(place));
  return {device.value()};
}

struct Moved {
  uint64_t direct = 0;
  uint64_t staged = 0;
};
Moved moved(CoreMember& me) {
  hetcomm_counters_t all[8] = {};
  const size_t count = me.communicator().counters(1 - me.rank(), 8, all);
  Moved sum;
  for (size_t i = 0; i < std::min<size_t>(count, 8); ++i) {
    sum.direct += all[i].device_bytes_direct;
    sum.staged += all[i].device_bytes_staged;
  }
  return sum;
}

class FarDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    slow_memory().begins.clear();
    slow_memory().us_per_mib = 0;
  }

  // Both ranks have a device at |address| of |machine|, whose interface is |nic|.
  static void run(const std::string& machine, const std::string& nic, const std::string& address,
                  const std::string& more, const std::string& settings,
                  const std::function<void(CoreMember&)>& body) {
    FakeFabric::reset({{.name = nic, .ports = {{.gids = {ipv4_gid(1)}}}}});
    run_core_job(
        2,
        "TIMEOUT=60s;LOG=error;INTERFACE=lo;RAILS=1;TOPOLOGY_TRUST=on;TOPOLOGY=" +
            machine_path(machine + ".xml") + ";" + settings,
        [](int) {
          Factories factories;
          factories.push_back(make_self_factory());
          factories.push_back(rdma::make_factory(slow_verbs()));
          return factories;
        },
        body, [&] { return devices_at(address, more); });
  }
  static void run_far(const std::string& more, const std::function<void(CoreMember&)>& body) {
    run("one_nic", "bnxt_re0", "0000:93:00.0", more, "", body);
  }

  // Passes messages from rank 0's device to rank 1's host memory, or from rank 0's host memory to
  // rank 1's device. Returns the bytes that moved to or from this rank's device.
  static Moved pass(CoreMember& me, uint64_t count, bool from_device) {
    const Moved before = moved(me);
    const bool sends = me.rank() == 0;
    const bool on_device = sends == from_device;
    OnDevice memory(me, kBytes);
    std::vector<std::byte> bytes(kBytes);
    for (uint64_t i = 0; i < count; ++i) {
      if (sends && on_device) memory.fill(i + 1);
      if (sends && !on_device) fill_pattern(bytes, i + 1);
      const hetcomm_buffer_t buffer =
          on_device ? memory.part(0, kBytes) : hetcomm_buffer_host(bytes.data(), kBytes);
      const Status status = me.finish(me.post(
          sends ? OperationKind::kSend : OperationKind::kReceive, 1 - me.rank(), i, buffer));
      EXPECT_TRUE(status.ok()) << status.text();
      if (!status.ok()) break;
      if (!sends) {
        EXPECT_FALSE(
            find_mismatch(on_device ? memory.contents(0, kBytes) : bytes, i + 1).has_value());
      }
    }
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
    const Moved after = moved(me);
    return {after.direct - before.direct, after.staged - before.staged};
  }
  // Expects that the rank whose device is used moves most of |count| messages staged if |staged|,
  // otherwise directly.
  static void expect_way(CoreMember& me, const Moved& moved, uint64_t count, bool from_device,
                         bool staged) {
    if ((me.rank() == 0) != from_device) return;
    EXPECT_GT(staged ? moved.staged : moved.direct, count * kBytes * 2 / 3)
        << "direct " << moved.direct << ", staged " << moved.staged << ", from a device "
        << from_device << "\n"
        << me.communicator().explain(1 - me.rank());
  }
};

TEST_F(FarDevices, DataMovesDirectlyIfThatIsFaster) {
  for (const bool from_device : {true, false}) {
    run_far(kSlowCopies, [&](CoreMember& me) {
      expect_way(me, pass(me, 40, from_device), 40, from_device, false);
    });
  }
}

TEST_F(FarDevices, DataIsStagedIfThatIsFaster) {
  slow_memory().us_per_mib = 60'000;
  for (const bool from_device : {true, false}) {
    run_far("", [&](CoreMember& me) {
      expect_way(me, pass(me, 40, from_device), 40, from_device, true);
      const std::string text = me.communicator().explain(1 - me.rank());
      EXPECT_NE(text.find("direct or staged (beyond one root complex"), std::string::npos) << text;
    });
  }
}

TEST_F(FarDevices, SwitchesWhenTheOtherMethodBecomesFaster) {
  std::atomic<bool> changed{false};
  run_far(kSlowCopies, [&](CoreMember& me) {
    expect_way(me, pass(me, 30, true), 30, true, false);
    slow_memory().us_per_mib = 90'000;  // a busy machine copies slowly, too
    pass(me, 60, true);                 // the change is noticed after a few messages
    expect_way(me, pass(me, 30, true), 30, true, true);
    slow_memory().us_per_mib = 0;
    // A trial costs at most a small share of the time, so the next one may be far away.
    for (int round = 0; round < 60 && !changed; ++round) {
      const Moved last = pass(me, 50, true);
      if (me.rank() == 0) changed = last.direct > last.staged;
      ASSERT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
    }
    EXPECT_TRUE(changed) << me.communicator().explain(1 - me.rank());
  });
}

// Limits the process to |bytes| more address space than it has now.
void limit_addresses(uint64_t bytes) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  if (bytes > 0) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limit.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + bytes;
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

TEST_F(FarDevices, DataMovesDirectlyIfStagingMemoryRunsOut) {
#if defined(HETCOMM_ASAN) || defined(HETCOMM_TSAN)
  GTEST_SKIP() << "a sanitizer takes more addresses than can be limited";
#endif
  slow_memory().us_per_mib = 5'000;
  std::barrier<> together(2);
  // A staging block is as large as a chunk.
  run("one_nic", "bnxt_re0", "0000:93:00.0", "", "STAGING_CHUNK=1G", [&](CoreMember& me) {
    if (me.rank() == 0) limit_addresses(700 << 20);
    together.arrive_and_wait();
    for (const bool from_device : {true, false}) {
      EXPECT_EQ(pass(me, 30, from_device).staged, 0u);
    }
    EXPECT_GT(moved(me).direct, 0u);
    together.arrive_and_wait();
    if (me.rank() == 0) limit_addresses(0);
  });
}

TEST_F(FarDevices, DataNearItsInterfaceIsNotStaged) {
  slow_memory().us_per_mib = 5'000;
  run("eight_nics", "mlx5_0", "0000:13:00.0", "", "", [&](CoreMember& me) {
    for (const bool from_device : {true, false}) {
      EXPECT_EQ(pass(me, 60, from_device).staged, 0u);
    }
    EXPECT_GT(moved(me).direct, 0u);
  });
}

TEST_F(FarDevices, RequiredDirectAccessIsUsedEvenIfSlow) {
  slow_memory().us_per_mib = 5'000;
  run("one_nic", "bnxt_re0", "0000:93:00.0", "", "DEVICE_PATH=direct", [&](CoreMember& me) {
    for (const bool from_device : {true, false}) {
      EXPECT_EQ(pass(me, 40, from_device).staged, 0u);
    }
    EXPECT_GT(moved(me).direct, 0u);
  });
}

}  // namespace
}  // namespace hetcomm::test
