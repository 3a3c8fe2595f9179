// Device data uses the network interfaces near that device, on both sides:
//
//   * the data of each of a rank's devices uses only that device's interface, whichever of the two
//     ranks sends first;
//   * if subnets do not join the two interfaces, or connections between them fail, the data uses
//     others, and its own again when they work;
//   * devices that are added later use the nearest of the job's interfaces;
//   * every message arrives once, whole, while connections break and are re-established.
//
// The ranks see a recorded machine of eight accelerators and eight network interfaces.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/core_job.h"
#include "tests/support/core_window.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kBytes = 3 << 20;

std::vector<Device> devices_at(const std::vector<const char*>& addresses) {
  std::vector<Device> devices;
  for (const char* const address : addresses) {
    Result<Device> device =
        create_sim_device("sim-address", std::string("memory=64M:pci=") + address);
    if (!device.ok()) throw std::runtime_error(std::string(device.status().text()));
    devices.push_back(device.value());
  }
  return devices;
}
// Devices 1 and 2 of each rank. Their interfaces are the first two that the rank binds.
std::vector<Device> make_devices() { return devices_at({"0000:13:00.0", "0000:93:00.0"}); }
// Returns the number of the transport over the interface of |device|.
size_t transport_of(size_t device) { return device - 1; }

std::string machine() {
  const char* const machines = std::getenv("HETCOMM_TEST_MACHINES");
  if (machines == nullptr) throw std::runtime_error("HETCOMM_TEST_MACHINES is not set");
  return std::string(machines) + "/eight_nics";
}
std::string settings(const std::string& path, const std::string& more) {
  return "TIMEOUT=30s;LOG=error;TOPOLOGY_TRUST=on;TOPOLOGY=" + path + ".xml;" + more;
}

// Puts all interfaces of the machine into one subnet during its lifetime.
class OneSubnet {
 public:
  OneSubnet() {
    std::string folder = (std::filesystem::temp_directory_path() / "hetcomm-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no folder for a machine");
    folder_ = folder;
    std::filesystem::copy_file(machine() + ".xml", path() + ".xml");
    std::stringstream text;
    text << std::ifstream(machine() + ".nics.json").rdbuf();
    std::ofstream(path() + ".nics.json")
        << std::regex_replace(text.str(), std::regex("10\\.[0-9]\\.0\\.0"), "10.0.0.0");
  }
  OneSubnet(const OneSubnet&) = delete;
  OneSubnet& operator=(const OneSubnet&) = delete;
  ~OneSubnet() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/machine"; }

 private:
  std::string folder_;
};

FaultPlan bound_plan() {
  FaultPlan plan;
  plan.bound = true;
  plan.fail_rail = 1e-12;  // not lossless, like rails that may fail
  return plan;
}

void run_pair(const FaultPlan& plan, const std::string& more,
              const std::function<void(CoreMember&)>& body, const std::string& path = machine(),
              const std::function<std::vector<Device>()>& devices = make_devices) {
  run_core_job(
      2, settings(path, more),
      [&](int rank) {
        FaultPlan own = plan;
        own.seed = plan.seed * 2 + static_cast<uint64_t>(rank);
        Factories result;
        result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), own));
        return result;
      },
      body, devices);
}

// Returns the bulk bytes that each transport of this rank has moved for the peer, indexed by
// transport number.
std::vector<uint64_t> loads(CoreMember& me) {
  std::vector<hetcomm_counters_t> counters(32);
  counters.resize(me.communicator().counters(1 - me.rank(), counters.size(), counters.data()));
  std::vector<uint64_t> bytes(8);
  for (const hetcomm_counters_t& each : counters) {
    const std::string name = each.transport;
    const size_t mark = name.find('#');
    bytes.at(mark == std::string::npos ? 0 : std::stoul(name.substr(mark + 1))) += each.bulk_bytes;
  }
  return bytes;
}

// Returns the transports that have moved bulk data since |before|.
std::vector<size_t> used_since(const std::vector<uint64_t>& before, CoreMember& me) {
  const std::vector<uint64_t> now = loads(me);
  std::vector<size_t> used;
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] > before[i]) used.push_back(i);
  }
  return used;
}

// Sends from device |from| on rank |sender| to device |to| on the other rank. Neither is the host.
void pass(CoreMember& me, int sender, size_t from, size_t to, uint64_t seed) {
  const bool sends = me.rank() == sender;
  OnDevice memory(me, kBytes, sends ? from : to);
  if (sends) memory.fill(seed);
  const Status status = me.finish(me.post(sends ? OperationKind::kSend : OperationKind::kReceive,
                                          1 - me.rank(), seed, memory.part(0, kBytes)));
  ASSERT_TRUE(status.ok()) << status.text();
  if (sends) return;
  EXPECT_FALSE(find_mismatch(memory.contents(0, kBytes), seed).has_value()) << "message " << seed;
}

void meet(CoreMember& me) {
  const Status met = barrier(me.communicator(), 20'000'000'000);
  ASSERT_TRUE(met.ok()) << met.text();
}

TEST(CoreDeviceRails, DeviceDataUsesTheInterfaceOfItsDevice) {
  for (const char* const progress : {"", "PROGRESS=thread;"}) {
    for (const int first_sender : {0, 1}) {
      SCOPED_TRACE(testing::Message() << progress << " rank " << first_sender << " sends first");
      run_pair(bound_plan(), std::string("RAILS=1;") + progress, [&](CoreMember& me) {
        uint64_t seed = 1;
        for (const size_t device : {2u, 1u, 2u}) {
          for (const int sender : {first_sender, 1 - first_sender}) {
            const std::vector<uint64_t> before = loads(me);
            meet(me);
            ASSERT_NO_FATAL_FAILURE(pass(me, sender, device, device, seed++));
            meet(me);
            if (me.rank() != sender) continue;  // only the sender counts
            EXPECT_EQ(used_since(before, me), std::vector<size_t>{transport_of(device)})
                << "device " << device << " of rank " << sender;
          }
        }
      });
    }
  }
}

// Devices that are added during the job use the nearest of its interfaces.
TEST(CoreDeviceRails, LateDevicesUseTheNearestInterface) {
  run_pair(bound_plan(), "RAILS=1;", [&](CoreMember& me) {
    for (const Device& late : devices_at({"0000:93:00.0", "0000:13:00.0"})) {
      Result<size_t> index = me.context().add_device(late);
      ASSERT_TRUE(index.ok()) << index.status().text();
    }
    uint64_t seed = 1;
    for (const size_t device : {3u, 4u}) {
      for (const int sender : {0, 1}) {
        const std::vector<uint64_t> before = loads(me);
        meet(me);
        ASSERT_NO_FATAL_FAILURE(pass(me, sender, device, device, seed++));
        meet(me);
        if (me.rank() != sender) continue;  // only the sender counts
        EXPECT_EQ(used_since(before, me), std::vector<size_t>{transport_of(device == 3 ? 2 : 1)})
            << "device " << device << " of rank " << sender;
      }
    }
  });
}

// Only its own rank sees this device: the recorded machine does not contain it.
TEST(CoreDeviceRails, NicsAreDividedAmongTheDevicesOfAllRanksOfAHost) {
  for (const char* const size : {"", "SMALL_JOB=0;"}) {
    SCOPED_TRACE(size);
    constexpr int kRanks = 3;
    const std::vector<const char*> hidden{"0000:f1:00.0", "0000:f2:00.0", "0000:f3:00.0"};
    std::atomic<size_t> next{0};
    std::vector<std::string> nics(kRanks);
    std::vector<size_t> known(kRanks);
    run_core_job(
        kRanks, settings(machine(), std::string("RAILS=1;") + size),
        [&](int) {
          Factories result;
          result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), bound_plan()));
          return result;
        },
        [&](CoreMember& me) {
          const auto rank = static_cast<size_t>(me.rank());
          known[rank] = me.context().hidden_devices().size();
          Job& job = me.communicator().job();
          const Engine::Baton baton(job.engine());
          for (const auto& transport : job.transports().all()) {
            if ((transport->devices >> 1 & 1) != 0) nics[rank] += transport->nic;
          }
        },
        [&] { return devices_at({hidden.at(next++)}); });
    EXPECT_EQ(known, std::vector<size_t>(kRanks, hidden.size()));
    std::sort(nics.begin(), nics.end());
    EXPECT_NE(nics[0], "");
    EXPECT_EQ(std::unique(nics.begin(), nics.end()), nics.end())
        << nics[0] << ", " << nics[1] << ", " << nics[2];
  }
}

// Both ends use the interface near the data, although the devices have different numbers.
TEST(CoreDeviceRails, DataBetweenTwoDevicesUsesBothTheirInterfaces) {
  const OneSubnet machine;
  run_pair(
      bound_plan(), "RAILS=1;",
      [&](CoreMember& me) {
        uint64_t seed = 1;
        for (const int sender : {1, 0}) {
          const std::vector<uint64_t> before = loads(me);
          ASSERT_NO_FATAL_FAILURE(pass(me, sender, 2, 1, seed++));
          meet(me);
          if (me.rank() != sender) continue;
          EXPECT_EQ(used_since(before, me), std::vector<size_t>{transport_of(2)});
          std::istringstream lines(me.communicator().explain(1 - me.rank()));
          bool in_use = false;
          for (std::string line; std::getline(lines, line);) {
            in_use = in_use || (line.find("tcp#1 to tcp ") != std::string::npos &&
                                line.find("in use") != std::string::npos);
          }
          EXPECT_TRUE(in_use) << lines.str();
        }
      },
      machine.path());
}

// The interfaces of the two devices are in different subnets, so others replace them.
TEST(CoreDeviceRails, InterfacesWithoutACommonSubnetAreReplaced) {
  run_pair(bound_plan(), "RAILS=1;", [&](CoreMember& me) {
    uint64_t seed = 1;
    for (const int sender : {0, 1, 0}) {
      const auto begun = std::chrono::steady_clock::now();
      ASSERT_NO_FATAL_FAILURE(pass(me, sender, 1, 2, seed++));
      EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
    }
    ASSERT_NO_FATAL_FAILURE(pass(me, 0, 1, 1, seed++));
  });
}

TEST(CoreDeviceRails, FailedInterfaceIsReplacedUntilItWorks) {
  constexpr uint32_t kFailures = 8;
  FaultPlan plan = bound_plan();
  plan.failing_instance = transport_of(2);
  plan.connect_failures = kFailures;
  run_pair(plan, "RAILS=1;COOL_DOWN=20ms;", [&](CoreMember& me) {
    uint64_t seed = 1;
    ASSERT_NO_FATAL_FAILURE(pass(me, 0, 2, 2, seed++));
    EXPECT_EQ(loads(me)[transport_of(2)], 0u) << "connections over it fail";
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    uint64_t more = 1;
    while (more != 0) {
      const std::vector<uint64_t> before = loads(me);
      ASSERT_NO_FATAL_FAILURE(pass(me, static_cast<int>(seed % 2), 2, 2, seed));
      ++seed;
      const bool back = used_since(before, me) == std::vector<size_t>{transport_of(2)};
      if (me.rank() == 0) more = !back && std::chrono::steady_clock::now() < deadline ? 1 : 0;
      const auto kind = me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive;
      const Status told = me.finish(me.post(kind, 1 - me.rank(), 0, &more, sizeof(more)));
      ASSERT_TRUE(told.ok()) << told.text();
      if (me.rank() == 0 && more == 0) {
        EXPECT_TRUE(back) << me.communicator().explain(1);
      }
    }
  });
}

// The rank runs on a NUMA node whose interface is not its device's. Messages use the device's
// interface, and puts into host memory use the host's.
TEST(CoreDeviceRails, OneSidedAccessUsesTheInterfaceNearTheMemory) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  if (!CPU_ISSET(0, &before)) GTEST_SKIP() << "this process may not run on processor 0";
  cpu_set_t first;
  CPU_ZERO(&first);
  CPU_SET(0, &first);
  ASSERT_EQ(sched_setaffinity(0, sizeof(first), &first), 0);
  constexpr size_t kNearDevice = 0;
  constexpr size_t kNearHost = 4;  // after the device's own and three more near the device
  FaultPlan plan = bound_plan();
  plan.regions = true;
  run_pair(
      plan, "RAILS=1;",
      [&](CoreMember& me) {
        const std::vector<uint64_t> at_first = loads(me);
        ASSERT_NO_FATAL_FAILURE(pass(me, 0, 1, 1, 77));
        if (me.rank() == 0) {
          EXPECT_EQ(used_since(at_first, me), std::vector<size_t>{kNearDevice});
        }
        Window window(me, kBytes);
        {
          // Only these interfaces have a key of the memory.
          const Engine::Baton baton(me.context().engine());
          const auto has_near_keys = [&](const Registration& each) HETCOMM_UNDER_BATON {
            for (const auto& key : each.keys) EXPECT_GE(key.first, kNearHost);
            EXPECT_FALSE(each.keys.empty());
          };
          me.communicator().job().registrations().for_each(has_near_keys);
        }
        for (const OperationKind kind : {OperationKind::kPut, OperationKind::kGet}) {
          for (const int initiator : {0, 1}) {
            meet(me);
            if (me.rank() != initiator) continue;
            const std::vector<uint64_t> at_start = loads(me);
            std::vector<std::byte> bytes(kBytes);
            const uint64_t seed = 10 + static_cast<uint64_t>(me.rank());
            if (kind == OperationKind::kPut) fill_pattern(bytes, seed);
            const AccessArguments remote{.remote = &window.remote()};
            expect_ok(me.finish(me.access(kind, remote, bytes.data(), bytes.size())));
            EXPECT_EQ(used_since(at_start, me), std::vector<size_t>{kNearHost});
            if (kind == OperationKind::kGet) {
              EXPECT_FALSE(find_mismatch(bytes, seed).has_value());
            }
          }
          meet(me);
        }
        EXPECT_FALSE(
            find_mismatch(window.at(0, kBytes), 11 - static_cast<uint64_t>(me.rank())).has_value());
        meet(me);
      },
      machine(), [] { return devices_at({"0000:93:00.0"}); });
  EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(CoreDeviceRails, EveryMessageArrivesWhileConnectionsBreak) {
  for (const char* const progress : {"", "PROGRESS=thread;"}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message() << progress << " seed " << seed);
      FaultPlan plan = bound_plan();
      plan.seed = seed;
      plan.fail_rail = 0.01;
      plan.lose_reported_put = true;
      plan.refuse = 0.1;
      plan.max_delay = 4;
      plan.max_rail_failures = 3;
      run_pair(plan, std::string("RAILS=2;COOL_DOWN=5ms;") + progress, [&](CoreMember& me) {
        std::mt19937_64 choose(seed);  // the same seed on both ranks
        for (uint64_t message = 1; message <= 12; ++message) {
          const int sender = static_cast<int>(choose() % 2);
          const size_t from = 1 + choose() % 2;
          const size_t to = 1 + choose() % 2;
          ASSERT_NO_FATAL_FAILURE(pass(me, sender, from, to, message));
        }
      });
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace hetcomm::test
