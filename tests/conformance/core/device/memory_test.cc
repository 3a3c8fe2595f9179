// Device memory that connections access directly, over fake verbs: not run on hardware.
//
//   * messages and one-sided operations are right over dma-bufs and over plain registration;
//   * when the connection breaks during transfers, direct transfers in flight continue staged over
//     a transport for host memory only, and directly again when the first transport is back;
//   * memory that the network interface refuses during transfers is staged;
//   * the device is notified before its user sees data that a network interface wrote;
//   * nothing stays registered;
//   * a device is tried when its memory is first about to move, not earlier; it is tried again if
//     the trial failed for lack of resources.
#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/core_job.h"
#include "tests/support/fake_verbs.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "transports/rdma/factory.h"
#include "transports/self/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

std::atomic<uint64_t> flushes;

// A device of sim-address that counts flushes. The table outlives it.
std::vector<Device> make_devices() {
  Result<Device> device = create_sim_device("sim-address", "memory=64M");
  if (!device.ok()) throw std::runtime_error(std::string(device.status().text()));
  static const DeviceTable table = [&] {
    DeviceTable own = *device->table;
    own.flush_remote_writes = [](void*) {
      ++flushes;
      return hetcomm_status_t{HETCOMM_OK};
    };
    return own;
  }();
  return {{&table, device->instance}};
}

// |plan| is for rdma; tcp never fails.
Factories make_factories(const FaultPlan& plan) {
  Factories factories;
  factories.push_back(make_self_factory());
  factories.push_back(
      std::make_unique<FaultyFactory>(rdma::make_factory(FakeFabric::verbs()), plan));
  factories.push_back(make_tcp_factory());
  return factories;
}

struct Moved {
  uint64_t direct = 0;
  uint64_t staged = 0;
};
Moved moved(CoreMember& me) {
  hetcomm_counters_t all[4] = {};
  const size_t count = me.communicator().counters(1 - me.rank(), 4, all);
  Moved sum;
  for (size_t i = 0; i < count; ++i) {
    sum.direct += all[i].device_bytes_direct;
    sum.staged += all[i].device_bytes_staged;
  }
  return sum;
}

std::vector<std::byte> pattern(uint64_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  fill_pattern(bytes, seed);
  return bytes;
}

// Exchanges |count| messages of |size| bytes in each direction at once.
void exchange(CoreMember& me, uint64_t size, uint64_t count, uint64_t seed) {
  OnDevice out(me, size * count);
  OnDevice in(me, size * count);
  const int peer = 1 - me.rank();
  for (uint64_t i = 0; i < count; ++i) {
    const std::vector<std::byte> bytes =
        pattern(size, seed + 2 * i + static_cast<uint64_t>(me.rank()));
    EXPECT_TRUE((*out).write(i * size, bytes.data(), size).ok());
  }
  std::vector<Operation*> running;
  for (uint64_t i = 0; i < count; ++i) {
    running.push_back(me.post(OperationKind::kReceive, peer, i, in.part(i * size, size)));
    running.push_back(me.post(OperationKind::kSend, peer, i, out.part(i * size, size)));
  }
  for (Operation* operation : running) {
    const Status status = me.finish(operation);
    EXPECT_TRUE(status.ok()) << status.text();
  }
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(same_bytes(in.contents(i * size, size),
                           pattern(size, seed + 2 * i + static_cast<uint64_t>(peer))))
        << "message " << i;
  }
}

class CoreDeviceMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeFabric::reset();
    flushes = 0;
  }
  void TearDown() override {
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }
};

TEST_F(CoreDeviceMemory, MessagesArriveIntactWithEitherRegistration) {
  for (const bool dmabuf : {false, true}) {
    if (dmabuf) FakeFabric::accept_dmabufs();
    flushes = 0;
    run_core_job(
        2, "", [](int) { return make_factories({}); },
        [&](CoreMember& me) {
          for (const uint64_t size : {uint64_t{1}, uint64_t{5000}, uint64_t{3'000'000}}) {
            exchange(me, size, 3, size);
          }
          EXPECT_EQ(moved(me).direct, 2 * 3 * 3'005'001u);
          EXPECT_EQ(moved(me).staged, 0u);
          const std::string text = me.communicator().explain(1 - me.rank());
          const char* const way =
              dmabuf ? "over rdma: direct (dma-buf: what was written was read back)"
                     : "plain registration: what was written was read back)";
          EXPECT_NE(text.find(way), std::string::npos) << text;
        },
        make_devices);
    // The flushes are those from two trials, and one for each message that arrived.
    EXPECT_EQ(flushes, 2u + 2 * 9);
  }
}

// The ranks connect, and no device memory moves.
void pass_host_message(CoreMember& me) {
  std::array<std::byte, 100> bytes{};
  const bool sends = me.rank() == 0;
  EXPECT_TRUE(me.finish(me.post(sends ? OperationKind::kSend : OperationKind::kReceive,
                                1 - me.rank(), 1, bytes.data(), bytes.size()))
                  .ok());
}

TEST_F(CoreDeviceMemory, DeviceIsTriedOnFirstUse) {
  std::barrier<> together(2);
  run_core_job(
      2, "", [](int) { return make_factories({}); },
      [&](CoreMember& me) {
        pass_host_message(me);
        together.arrive_and_wait();
        EXPECT_EQ(flushes, 0u) << "nothing of the device has moved";
        together.arrive_and_wait();
        exchange(me, 100'000, 1, 5);
        EXPECT_EQ(moved(me).direct, 200'000u);
        together.arrive_and_wait();
        const uint64_t tried = flushes;
        EXPECT_EQ(tried, 2u + 2) << "once by each rank, and each message";
        together.arrive_and_wait();
        exchange(me, 100'000, 1, 6);
        together.arrive_and_wait();
        EXPECT_EQ(flushes, tried + 2) << "each message";
      },
      make_devices);
}

TEST_F(CoreDeviceMemory, TrialThatFailedForLackOfResourcesIsRepeated) {
  std::barrier<> together(2);
  run_core_job(
      2, "", [](int) { return make_factories({}); },
      [&](CoreMember& me) {
        pass_host_message(me);
        together.arrive_and_wait();
        if (me.rank() == 0) FakeFabric::fail_queue_pairs(ENOMEM);
        together.arrive_and_wait();
        exchange(me, 100'000, 1, 5);
        EXPECT_EQ(moved(me).direct, 0u);
        EXPECT_EQ(moved(me).staged, 200'000u);
        together.arrive_and_wait();
        if (me.rank() == 0) FakeFabric::fail_queue_pairs(0);
        together.arrive_and_wait();
        exchange(me, 100'000, 1, 6);
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        together.arrive_and_wait();
        exchange(me, 100'000, 1, 7);
        EXPECT_GE(moved(me).direct, 200'000u) << me.communicator().explain(1 - me.rank());
      },
      make_devices);
}

TEST_F(CoreDeviceMemory, TransfersFallBackToStagingWhenTheConnectionBreaks) {
  // The counts cover all runs: how soon rdma returns in any one run is a matter of timing.
  std::atomic<uint64_t> direct{0};
  std::atomic<uint64_t> staged{0};
  std::atomic<uint64_t> failures{0};
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    FaultPlan plan;
    plan.seed = seed;
    plan.fail_rail = 0.03;
    plan.lose_reported_put = true;
    plan.refuse = 0.05;
    plan.max_delay = 3;
    run_core_job(
        2,
        seed % 2 == 0 ? "COOL_DOWN=5ms;STAGING_CHUNK=64K;"
                      : "COOL_DOWN=5ms;STAGING_CHUNK=64K;PROGRESS=thread;",
        [&](int) { return make_factories(plan); },
        [&](CoreMember& me) {
          for (uint64_t round = 0; round < 8; ++round) exchange(me, 700'000, 6, 1000 * round);
          direct += moved(me).direct;
          staged += moved(me).staged;
          hetcomm_counters_t all[4] = {};
          const size_t count = me.communicator().counters(1 - me.rank(), 4, all);
          for (size_t i = 0; i < count; ++i) failures += all[i].failures;
        },
        make_devices);
    FakeFabric::reset();
  }
  EXPECT_GT(direct, 0u);
  EXPECT_GT(failures, 12u);
  EXPECT_GT(staged, 0u) << "never over tcp";
}

TEST_F(CoreDeviceMemory, MemoryRefusedDuringATransferIsStaged) {
  FakeFabric::accept_dmabufs();
  run_core_job(
      2, "STAGING_CHUNK=64K;", [](int) { return make_factories({}); },
      [](CoreMember& me) {
        OnDevice memory(me, 20'000'000);
        const auto move = [&](uint64_t seed) {
          if (me.rank() == 0) {
            memory.fill(seed);
            return me.finish(me.post(OperationKind::kSend, 1, 1, memory.part(0, 20'000'000)));
          }
          const Status status =
              me.finish(me.post(OperationKind::kReceive, 0, 1, memory.part(0, 20'000'000)));
          EXPECT_EQ(memory.contents(0, 20'000'000), pattern(20'000'000, seed));
          return status;
        };
        // This sends one small message from another range: all memory is attached, and little is
        // registered for peers.
        const hetcomm_buffer_t little = memory.part(0, 10);
        EXPECT_TRUE(
            me.finish(me.post(me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive,
                              1 - me.rank(), 1, little))
                .ok());
        EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
        FakeFabric::accept_dmabufs(ENOMEM);
        const Moved before = moved(me);
        const Status status = move(3);
        EXPECT_TRUE(status.ok()) << status.text();
        if (me.rank() == 1) {
          EXPECT_EQ(moved(me).direct, before.direct);
          EXPECT_EQ(moved(me).staged - before.staged, 20'000'000u);
        }
      },
      make_devices);
}

TEST_F(CoreDeviceMemory, PutsAndGetsMoveDirectlyWithEitherRegistration) {
  for (const bool dmabuf : {false, true}) {
    if (dmabuf) FakeFabric::accept_dmabufs();
    flushes = 0;
    run_core_job(
        2, "", [](int) { return make_factories({}); },
        [](CoreMember& me) {
          constexpr uint64_t kSize = 500'000;
          OnDevice mine(me, kSize);
          OnDevice local(me, kSize);
          mine.fill(static_cast<uint64_t>(10 + me.rank()));
          EXPECT_TRUE(me.communicator()
                          .memories()
                          .register_memory(*mine, HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET, true)
                          .ok());
          std::vector<std::byte> exported = RegisteredMemories::export_memory(*mine).value();
          std::vector<std::byte> theirs(exported.size());
          const int peer = 1 - me.rank();
          Operation* receive =
              me.post(OperationKind::kReceive, peer, 1, theirs.data(), theirs.size());
          EXPECT_TRUE(
              me.finish(me.post(OperationKind::kSend, peer, 1, exported.data(), exported.size()))
                  .ok());
          EXPECT_TRUE(me.finish(receive).ok());
          ExportedMemory named;
          std::vector<RemoteKey> keys;
          EXPECT_TRUE(me.communicator().memories().import_memory(theirs, &named, &keys).ok());
          {
            RemoteMemory remote(me.communicator(), named, std::move(keys));
            EXPECT_TRUE(me.finish(me.access(OperationKind::kGet, {.remote = &remote, .offset = 7},
                                            local.part(100, 300'000)))
                            .ok());
            const std::vector<std::byte> whole = pattern(kSize, static_cast<uint64_t>(10 + peer));
            EXPECT_EQ(local.contents(100, 300'000),
                      std::vector<std::byte>(whole.begin() + 7, whole.begin() + 300'007));
            EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
            local.fill(static_cast<uint64_t>(20 + me.rank()));
            EXPECT_TRUE(me.finish(me.access(OperationKind::kPut, {.remote = &remote, .offset = 0},
                                            local.part(0, kSize), true))
                            .ok());
            hetcomm_notification_t notification{};
            const uint64_t before = flushes;
            EXPECT_TRUE(RegisteredMemories::wait_notification(*mine, me.context().engine(),
                                                              20'000'000'000, &notification)
                            .ok());
            EXPECT_LE(before, flushes);
            EXPECT_EQ(mine.contents(0, kSize), pattern(kSize, static_cast<uint64_t>(20 + peer)));
            EXPECT_EQ(moved(me).direct, 800'000u);
            EXPECT_EQ(moved(me).staged, 0u);
            EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
            const uint64_t between = flushes;
            EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
            // The owner's device also sees the put, although no notification is sent.
            EXPECT_TRUE(me.finish(me.access(OperationKind::kPut, {.remote = &remote, .offset = 0},
                                            local.part(0, kSize)))
                            .ok());
            EXPECT_LT(between, flushes);
            EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
          }
          EXPECT_TRUE(RegisteredMemories::unregister_memory(*mine, 20'000'000'000).ok());
        },
        make_devices);
    // Each rank has flushes for its trial, for its get, and for the peer's puts.
    EXPECT_EQ(flushes, 2u * 4);
  }
}

}  // namespace
}  // namespace hetcomm::test
