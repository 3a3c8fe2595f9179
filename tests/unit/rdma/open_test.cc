// The rdma transport opens its device on first use; over a fake: not run on hardware.
//   - a transport that is created, started, driven, put to sleep and ended without use opens and
//     registers nothing, and its contact equals that of a transport whose device is open;
//   - the first connection, whether initiated or accepted, opens the device, and so does the first
//     memory that needs it;
//   - events from a device that was opened late wake a sleeper;
//   - if a device or a part of it cannot be created, the attempt fails with a text that names it,
//     or a refusal informs the peer; nothing stays open, and a later attempt uses a device that has
//     recovered;
//   - a failed device is not opened again within a short time;
//   - addresses that have changed since the contact was made are noticed when the device opens.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "src/system/unique_fd.h"
#include "tests/support/descriptors.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/rdma/fixture.h"

namespace hetcomm::test {
namespace {

using ::testing::HasSubstr;

template <typename Part>
Part* refused(int error) {
  errno = error;
  return nullptr;
}

class RdmaOpen : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeFabric::reset({{.name = "nic0", .ports = {{.gids = {ipv4_gid(1)}}}}});
    FakeFabric::show_files(folder_.path());
  }
  void TearDown() override {
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }
  // Pauses longer than the time after which a failed device is tried again.
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(150)); }
  static void step(FakePair& pair) {
    for (int i = 0; i < 100; ++i) {
      pair.a.step();
      pair.b.step();
    }
  }
  static bool fails_to_connect(FakePair& pair) {
    const int before = pair.a.connect_outcomes;
    pair.a.connected.erase(1);
    pair.a.connect(1, pair.b.transport().contact());
    return pair.run([&] { return pair.a.connect_outcomes > before; }) &&
           !pair.a.connected.contains(1);
  }
  static std::string why(FakePair& pair) { return std::string(pair.a.connect_failed.at(1).text()); }
  static bool is_right(FakePair& pair) {
    const size_t before = pair.to_a().messages.size();
    return pair.to_b().send(numbered(7), {}) == Code::kOk &&
           pair.run([&] { return pair.to_a().messages.size() == before + 1; });
  }

  const TemporaryFolder folder_;
};

TEST_F(RdmaOpen, DeviceStaysClosedUntilUsed) {
  {
    FakePair pair;
    const size_t descriptors = open_descriptors();
    step(pair);
    EXPECT_TRUE(pair.a.sleep(kMillisecond));
    EXPECT_TRUE(pair.a.sleep(kMillisecond, [] {}));
    EXPECT_TRUE(pair.a.transport().reach(pair.b.transport().contact()).ok());
    pair.a.transport().abilities().devices->detach(nullptr);
    EXPECT_TRUE(pair.a.transport().abilities().regions->withdraw({}));
    EXPECT_EQ(open_descriptors(), descriptors);
  }
  EXPECT_EQ(FakeFabric::opens(), 0u);
}

TEST_F(RdmaOpen, ContactIsTheSameBeforeAndAfterOpening) {
  FakePair pair;
  const std::vector<std::byte> before = pair.b.transport().contact();
  ASSERT_TRUE(pair.connect());
  EXPECT_EQ(pair.b.transport().contact(), before);
}

TEST_F(RdmaOpen, ConnectionOpensTheDeviceOnEachSide) {
  FakePair pair;
  pair.a.connect(1, pair.b.transport().contact());
  EXPECT_EQ(FakeFabric::open_devices().size(), 1u) << "only one side knows of it";
  ASSERT_TRUE(pair.connect());
  EXPECT_EQ(FakeFabric::open_devices().size(), 2u);
  EXPECT_TRUE(is_right(pair));
  ASSERT_TRUE(pair.connect());
  EXPECT_EQ(FakeFabric::opens(), 2u) << "once for all connections";
}

TEST_F(RdmaOpen, PublishedMemoryOpensTheDeviceAndIsAccessible) {
  FakePair pair;
  std::vector<std::byte> memory(5000, std::byte{3});
  RegionPublisher& regions = *pair.b.transport().abilities().regions;
  const auto key = regions.publish({memory.data(), memory.size(), true, true});
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(FakeFabric::open_devices().size(), 1u);
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> copy(memory.size());
  const iovec piece{copy.data(), copy.size()};
  Bulk bulk{.local = {{&piece, 1}, 0, copy.size()}, .key = key.value()};
  ASSERT_EQ(pair.to_b().get(bulk), Code::kOk);
  ASSERT_TRUE(pair.run([&] { return !pair.to_b().completions.empty(); }));
  EXPECT_EQ(copy, memory);
  EXPECT_TRUE(regions.withdraw(key.value()));
}

TEST_F(RdmaOpen, MessageOnALateOpenedDeviceWakesASleeper) {
  FakePair pair;
  ASSERT_TRUE(pair.b.sleep(kMillisecond)) << "nothing is open";
  ASSERT_TRUE(pair.connect());
  step(pair);
  std::atomic<bool> sent{false};
  std::thread sender([&] {
    pause();
    sent = true;
    EXPECT_EQ(pair.to_b().send(numbered(9), {}), Code::kOk);
  });
  const uint64_t begin = now_ns();
  EXPECT_TRUE(pair.b.sleep(20 * kSecond));
  EXPECT_TRUE(sent);
  EXPECT_LT(now_ns() - begin, 10 * kSecond);
  sender.join();
  EXPECT_TRUE(pair.run([&] { return pair.to_a().messages.size() == 1; }));
}

TEST_F(RdmaOpen, AttemptReportsWhyTheDeviceCannotBeOpened) {
  FakePair pair;
  FakeFabric::fail_opens(0, EMFILE, 1);
  ASSERT_TRUE(fails_to_connect(pair));
  EXPECT_THAT(why(pair), HasSubstr("nic0: cannot be opened: Too many open files"));
  ASSERT_TRUE(fails_to_connect(pair)) << "the device is left alone for a moment";
  EXPECT_EQ(FakeFabric::opens(), 0u);
  pause();
  ASSERT_TRUE(pair.connect()) << "it has recovered";
  EXPECT_TRUE(is_right(pair));
}

TEST_F(RdmaOpen, AcceptorReportsWhyTheDeviceCannotBeOpened) {
  FakePair pair;
  std::vector<std::byte> memory(10);
  RegionPublisher& regions = *pair.a.transport().abilities().regions;
  ASSERT_TRUE(regions.publish({memory.data(), memory.size(), true, true}).ok());
  FakeFabric::fail_opens(0, EIO, 1);
  ASSERT_TRUE(fails_to_connect(pair));
  EXPECT_THAT(why(pair), HasSubstr("nic0: cannot be opened: Input/output error"));
  pause();
  ASSERT_TRUE(pair.connect());
  EXPECT_TRUE(is_right(pair));
}

TEST_F(RdmaOpen, FailedOpenLeavesNothingOpen) {
  // Lets each part fail in turn.
  static rdma::Verbs verbs;
  const auto fail_each = [](const auto& spoil, const char* part) {
    verbs = FakeFabric::verbs();
    spoil();
    FakePair pair("", nullptr, &verbs);
    const size_t descriptors = open_descriptors();
    EXPECT_TRUE(fails_to_connect(pair)) << part;
    step(pair);
    EXPECT_EQ(FakeFabric::open_objects(), 0u) << part;
    EXPECT_EQ(open_descriptors(), descriptors) << part;
    std::vector<std::byte> memory(10);
    EXPECT_FALSE(pair.a.transport()
                     .abilities()
                     .regions->publish({memory.data(), memory.size(), true, true})
                     .ok());
    verbs = FakeFabric::verbs();
    pause();
    EXPECT_TRUE(pair.connect()) << part;
    EXPECT_TRUE(is_right(pair)) << part;
  };
  fail_each([] { verbs.alloc_pd = [](ibv_context*) { return refused<ibv_pd>(ENOMEM); }; },
            "protection domain");
  fail_each(
      [] {
        verbs.create_comp_channel = [](ibv_context*) { return refused<ibv_comp_channel>(EMFILE); };
      },
      "channel");
  fail_each(
      [] {
        verbs.create_cq = [](ibv_context*, int, void*, ibv_comp_channel*, int) {
          return refused<ibv_cq>(ENOMEM);
        };
      },
      "completion queue");
  fail_each(
      [] {
        verbs.create_srq = [](ibv_pd*, ibv_srq_init_attr*) { return refused<ibv_srq>(ENOMEM); };
      },
      "receive queue");
  fail_each(
      [] {
        verbs.create_comp_channel = [](ibv_context* context) {
          ibv_comp_channel* const channel = FakeFabric::verbs().create_comp_channel(context);
          const UniqueFd file(memfd_create("no events", MFD_CLOEXEC));
          EXPECT_EQ(dup2(file.get(), channel->fd), channel->fd);  // epoll refuses files
          return channel;
        };
      },
      "place in the poller");
}

TEST_F(RdmaOpen, PortThatWentDownIsNotOpened) {
  FakePair pair;
  FakeFabric::set_state(0, 0, IBV_PORT_DOWN);
  ASSERT_TRUE(fails_to_connect(pair));
  EXPECT_THAT(why(pair), HasSubstr("nic0:1: port is down"));
  EXPECT_EQ(FakeFabric::open_objects(), 0u);
}

TEST_F(RdmaOpen, ChangedAddressIsNoticedWhenTheDeviceOpens) {
  FakePair pair;
  FakeFabric::set_gid(0, 0, 0, ipv4_gid(9));
  ASSERT_TRUE(fails_to_connect(pair)) << "the contact of the peer is out of date";
  EXPECT_THAT(why(pair), HasSubstr("192.0.2.1"));
}

}  // namespace
}  // namespace hetcomm::test
