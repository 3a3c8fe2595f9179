// Network interfaces open on first use, with the whole core over fake verbs (not run on hardware):
//
//   * a job whose ranks have four interfaces and do not communicate opens none, and uses no
//     descriptors except those for their listening sockets
//   * if one pair communicates, each of its ranks opens one interface and the other ranks open
//     none; bulk data opens the interfaces that share it
//   * an interface that cannot be opened on either side causes no message loss: other interfaces,
//     or another transport, take over, and it is used later if it has recovered
//   * neither does one without shared receive queues, which no file shows; it is logged on one line
//   * a pair that sends small messages returns to its interface after a failover, and closes the
//     one that replaced it
//   * if no other way is left, operations fail with a text that names the interface
//   * memory registered while nothing was open is accessed directly once its peer has connected
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "src/core/memory/registration.h"
#include "tests/support/core_job.h"
#include "tests/support/descriptors.h"
#include "tests/support/fake_verbs.h"
#include "tests/support/pattern.h"
#include "tests/support/temporary_folder.h"
#include "transports/rdma/factory.h"
#include "transports/self/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kNics = 4;
constexpr uint64_t kBulk = 8 << 20;

std::function<Factories(int)> rdma_with(bool tcp) {
  return [tcp](int) {
    Factories factories;
    factories.push_back(make_self_factory());
    factories.push_back(rdma::make_factory(FakeFabric::verbs()));
    if (tcp) factories.push_back(make_tcp_factory());
    return factories;
  };
}

class RdmaOpening : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<FakeDeviceSpec> devices(kNics);
    for (size_t i = 0; i < kNics; ++i) {
      devices[i].name = "fake" + std::to_string(i);
      devices[i].ports.push_back({.gids = {ipv4_gid(static_cast<uint8_t>(i + 1))}});
    }
    FakeFabric::reset(devices);
    FakeFabric::show_files(folder_.path());
  }
  void TearDown() override {
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }

  static void run(int size, bool tcp, const std::function<void(CoreMember&)>& body) {
    run_core_job(size, "TIMEOUT=20s;LOG=error;INTERFACE=lo;RAILS=4;COOL_DOWN=100ms;SHM_MAP=off",
                 rdma_with(tcp), body);
  }
  // Sends a message from rank 0 to rank 1.
  static Status pass(CoreMember& me, uint64_t bytes, uint64_t seed) {
    std::vector<std::byte> data(bytes);
    const bool sends = me.rank() == 0;
    if (sends) fill_pattern(data, seed);
    Status status = me.finish(me.post(sends ? OperationKind::kSend : OperationKind::kReceive,
                                      1 - me.rank(), seed, data.data(), data.size()));
    if (!sends && status.ok()) {
      EXPECT_FALSE(find_mismatch(data, seed).has_value());
    }
    return status;
  }
  static void pass_well(CoreMember& me, uint64_t bytes, uint64_t seed) {
    const Status status = pass(me, bytes, seed);
    EXPECT_TRUE(status.ok()) << "rank " << me.rank() << ": " << status.text();
  }
  // Returns the names of the open devices. A device that is open in several ranks appears once.
  static std::vector<std::string> different_devices() {
    std::vector<std::string> names = FakeFabric::open_devices();
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }

  const TemporaryFolder folder_;
};

TEST_F(RdmaOpening, JobWithoutCommunicationOpensNoInterface) {
  constexpr int kRanks = 3;
  std::barrier<> together(kRanks);
  run(kRanks, false, [&](CoreMember& me) {
    for (int i = 0; i < 50; ++i) me.context().engine().poke();
    together.arrive_and_wait();
    EXPECT_EQ(FakeFabric::opens(), 0u) << "rank " << me.rank();
    together.arrive_and_wait();
  });
}

TEST_F(RdmaOpening, PairThatCommunicatesOpensOneInterfacePerRank) {
  constexpr int kRanks = 3;
  std::barrier<> together(kRanks);
  run(kRanks, false, [&](CoreMember& me) {
    const bool talks = me.rank() < 2;
    if (talks) pass_well(me, 100, 1);
    together.arrive_and_wait();
    EXPECT_EQ(FakeFabric::open_devices().size(), 2u) << "one at each end";
    EXPECT_THAT(FakeFabric::open_devices(), Each("fake0"));
    together.arrive_and_wait();
    // All interfaces share bulk data.
    for (uint64_t i = 0; talks && i < 4; ++i) pass_well(me, kBulk, 2 + i);
    together.arrive_and_wait();
    EXPECT_EQ(different_devices().size(), kNics);
    EXPECT_LE(FakeFabric::open_devices().size(), 2 * kNics) << "rank 2 has opened some";
    together.arrive_and_wait();
  });
}

TEST_F(RdmaOpening, InterfaceThatCannotBeOpenedIsReplaced) {
  // Opening fails at the first attempt of either side, or always.
  for (const int times : {1, 2, 1 << 30}) {
    for (const bool tcp : {false, true}) {
      SCOPED_TRACE(testing::Message() << times << " times, with tcp: " << tcp);
      SetUp();
      FakeFabric::fail_opens(0, EIO, times);
      FakeFabric::fail_opens(2, EMFILE, times);
      run(2, tcp, [&](CoreMember& me) {
        for (uint64_t i = 0; i < 4; ++i) pass_well(me, 100, 10 + i);
        for (uint64_t i = 0; i < 4; ++i) pass_well(me, kBulk, 20 + i);
      });
    }
  }
}

TEST_F(RdmaOpening, InterfaceWithoutSharedReceiveQueuesIsReplaced) {
  // Opening fails for one of four interfaces, or for all of them if there is tcp.
  for (const bool all : {false, true}) {
    SCOPED_TRACE(all);
    std::vector<FakeDeviceSpec> devices(kNics);
    for (size_t i = 0; i < kNics; ++i) {
      devices[i].name = "fake" + std::to_string(i);
      devices[i].ports.push_back({.gids = {ipv4_gid(static_cast<uint8_t>(i + 1))}});
      if (all || i == 0) devices[i].max_shared_queues = 0;
    }
    FakeFabric::reset(devices);
    FakeFabric::show_files(folder_.path());
    std::barrier<> together(2);
    run(2, all, [&](CoreMember& me) {
      std::vector<std::string> lines;
      me.context().log().set_level(LogLevel::kWarn);
      me.context().log().set_sink(
          [](void* lines_of, int32_t, const char* line) {
            static_cast<std::vector<std::string>*>(lines_of)->emplace_back(line);
          },
          &lines);
      together.arrive_and_wait();
      for (uint64_t i = 0; i < 4; ++i) pass_well(me, 100, 10 + i);
      for (uint64_t i = 0; i < 20; ++i) pass_well(me, kBulk, 20 + i);
      EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
      me.context().log().set_sink(nullptr, nullptr);
      const auto count = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
        return line.find("fake0:1: device has no shared receive queues") != std::string::npos;
      });
      // The other rank learns of a connection only if the lower one has opened its interface.
      EXPECT_GE(count, me.rank() == 0 ? 1 : 0);
      EXPECT_LE(count, 1);
    });
  }
}

TEST_F(RdmaOpening, RecoveredInterfaceIsUsed) {
  FakeFabric::fail_opens(0, EIO, 1);
  std::barrier<> together(2);
  run(2, false, [&](CoreMember& me) {
    pass_well(me, 100, 1);
    const uint64_t limit = now_ns() + 15'000'000'000;
    for (uint64_t i = 0;; ++i) {
      pass_well(me, kBulk, 2 + i);
      together.arrive_and_wait();
      const bool done = different_devices().size() == kNics || now_ns() > limit;
      static std::atomic<bool> stop;
      if (me.rank() == 0) stop = done;
      together.arrive_and_wait();
      if (stop) break;
    }
    EXPECT_EQ(different_devices().size(), kNics);
  });
}

TEST_F(RdmaOpening, SmallMessagesReturnToTheirInterfaceAfterAFailover) {
  // Waiting ranks drive progress, because messages lost with a broken connection may be pending.
  const auto meet = [](CoreMember& me) {
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
  };
  run(2, false, [&](CoreMember& me) {
    const auto counters_of = [&](const std::string& transport) {
      hetcomm_counters_t all[8] = {};
      const size_t count = me.communicator().counters(1 - me.rank(), 8, all);
      for (size_t i = 0; i < std::min<size_t>(count, 8); ++i) {
        if (transport == all[i].transport) return all[i];
      }
      return hetcomm_counters_t{};
    };
    uint64_t seed = 0;
    // Repeats until |done| is true at both ends. Both ranks send.
    const auto pass_until = [&](const auto& done) {
      const uint64_t limit = now_ns() + 20'000'000'000;
      std::array<std::byte, 100> sent{};
      std::array<std::byte, 100> received{};
      while (!::testing::Test::HasFailure()) {
        ++seed;
        Operation* receive =
            me.post(OperationKind::kReceive, 1 - me.rank(), seed, received.data(), received.size());
        Operation* send =
            me.post(OperationKind::kSend, 1 - me.rank(), seed, sent.data(), sent.size());
        for (Operation* each : {receive, send}) {
          const Status status = me.finish(each);
          EXPECT_TRUE(status.ok()) << "rank " << me.rank() << ": " << status.text();
        }
        const bool here = done() || now_ns() > limit;
        static std::atomic<int> agreed;
        if (me.rank() == 0) agreed = 0;
        meet(me);
        agreed += here ? 1 : 0;
        meet(me);
        if (agreed == 2) break;
      }
      EXPECT_TRUE(done());
      meet(me);
    };
    pass_until([&] { return counters_of("rdma").messages_received > 0; });
    EXPECT_EQ(different_devices().size(), 1u);
    meet(me);  // no interface fails while the other rank still counts
    if (me.rank() == 0) FakeFabric::raise(IBV_EVENT_PORT_ERR);
    pass_until([&] { return counters_of("rdma").failures > 0; });
    const uint64_t before = counters_of("rdma").messages_received;
    const uint64_t sent_before = counters_of("rdma").messages_sent;
    pass_until([&] {
      return counters_of("rdma").messages_received > before + 10 &&
             counters_of("rdma").messages_sent > sent_before + 10;
    });
    pass_until([&] { return counters_of("rdma#1").connected == 0; });
    EXPECT_EQ(counters_of("rdma").connected, 1);
    const uint64_t spare = counters_of("rdma#1").messages_received;
    EXPECT_GT(spare, 0u) << "it stood in";
  });
}

TEST_F(RdmaOpening, OperationsReportWhyNoInterfaceOpens) {
  for (size_t i = 0; i < kNics; ++i) FakeFabric::fail_opens(i, EACCES);
  hetcomm_test::LocalStore store;
  std::vector<std::thread> threads;
  std::barrier<> together(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CoreMember me(store, rank, 2, "TIMEOUT=4s;LOG=error;INTERFACE=lo;RAILS=4;DETECTION_TIME=2s",
                    rdma_with(false)(rank));
      const Status status = pass(me, 100, 1);
      EXPECT_FALSE(status.ok());
      if (rank == 0) {
        EXPECT_THAT(std::string(status.text()), HasSubstr("fake"));
        EXPECT_THAT(std::string(status.text()), HasSubstr("cannot be opened: Permission denied"));
      }
      together.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RdmaOpening, MemoryIsExportedOnceItsInterfaceOpens) {
  // Each rank tries each interface at most once while opening fails.
  for (size_t i = 0; i < 2; ++i) FakeFabric::fail_opens(i, EMFILE, 2);
  std::barrier<> together(2);
  run(2, false, [&](CoreMember& me) {
    std::vector<std::byte> bytes(1000);
    Memory memory(me.context().devices(), 0, bytes.data(), bytes.size(), false);
    ASSERT_TRUE(
        me.communicator().memories().register_memory(memory, HETCOMM_ACCESS_ALL, true).ok());
    const auto count_keys = [&] {
      auto exported = ExportedMemory::decode(RegisteredMemories::export_memory(memory).value());
      return exported.ok() ? exported->keys.size() : 0;
    };
    EXPECT_EQ(count_keys(), kNics - 2);
    together.arrive_and_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    EXPECT_EQ(count_keys(), kNics) << "they open now";
    EXPECT_EQ(count_keys(), kNics);
    together.arrive_and_wait();
    EXPECT_TRUE(RegisteredMemories::unregister_memory(memory, 20'000'000'000).ok());
  });
}

TEST_F(RdmaOpening, MemoryRegisteredBeforeOpeningIsAccessible) {
  run(2, false, [&](CoreMember& me) {
    std::vector<std::byte> bytes(kBulk);
    fill_pattern(bytes, 40 + static_cast<uint64_t>(me.rank()));
    Memory memory(me.context().devices(), 0, bytes.data(), kBulk, false);
    ASSERT_TRUE(
        me.communicator().memories().register_memory(memory, HETCOMM_ACCESS_ALL, true).ok());
    const std::vector<std::byte> mine = RegisteredMemories::export_memory(memory).value();
    std::vector<std::byte> theirs(mine.size());
    const int peer = 1 - me.rank();
    Operation* receive = me.post(OperationKind::kReceive, peer, 7, theirs.data(), theirs.size());
    Operation* send =
        me.post(OperationKind::kSend, peer, 7, const_cast<std::byte*>(mine.data()), mine.size());
    EXPECT_TRUE(me.finish(receive).ok());
    EXPECT_TRUE(me.finish(send).ok());
    ExportedMemory exported;
    std::vector<RemoteKey> keys;
    ASSERT_TRUE(me.communicator().memories().import_memory(theirs, &exported, &keys).ok());
    EXPECT_EQ(std::count_if(keys.begin(), keys.end(),
                            [](const RemoteKey& key) { return key != RemoteKey{}; }),
              static_cast<int>(kNics))
        << "each interface that shares the load has a key";
    {
      RemoteMemory remote(me.communicator(), exported, std::move(keys));
      std::vector<std::byte> copy(kBulk);
      const Status status =
          me.finish(me.access(OperationKind::kGet, {.remote = &remote}, copy.data(), kBulk));
      EXPECT_TRUE(status.ok()) << status.text();
      EXPECT_FALSE(find_mismatch(copy, 40 + static_cast<uint64_t>(peer)).has_value());
      EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
    }
    hetcomm_counters_t counters[8] = {};
    const size_t count = me.communicator().counters(peer, 8, counters);
    uint64_t gets = 0;
    for (size_t i = 0; i < std::min<size_t>(count, 8); ++i) gets += counters[i].gets;
    EXPECT_EQ(gets, 1u);
    EXPECT_TRUE(RegisteredMemories::unregister_memory(memory, 20'000'000'000).ok());
  });
}

}  // namespace
}  // namespace hetcomm::test
