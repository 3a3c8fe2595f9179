// No side sleeps while work is pending: with both sides sleeping whenever they are idle, every
// message and every byte arrives without waiting for a time limit, with membarrier and with fences.
// A lost wake-up shows as a sleep that lasted to its limit.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>

#include "src/system/membarrier.h"
#include "tests/support/transport_pair.h"
#include "tests/unit/shm/raw_peer.h"
#include "transports/shm/exposure.h"
#include "transports/shm/ring.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kLimit = 3 * kSecond;

// One end of a connection's memory, with a ring and a bell in each direction.
class End {
 public:
  End(const shm::ConnectionMemory& memory, int side, int socket, bool fence)
      : mine_(memory.side(side)),
        producer_(mine_, memory.side(1 - side), memory.ring(side), 64 << 10),
        consumer_(memory.side(1 - side), mine_, memory.ring(1 - side), 64 << 10),
        bell_(memory.side(1 - side), socket, fence),
        socket_(socket),
        fence_(fence) {}

  void send() {
    while (!producer_.has_slot())
      sleep_unless([&] { return producer_.has_slot(); }, shm::kWakeOnRoom);
    producer_.publish(producer_.slot(), shm::SlotKind::kInline, 0);
    bell_.ring_if_asleep(shm::kWakeOnSlot);
  }
  void receive() {
    while (!consumer_.ready()) sleep_unless([&] { return consumer_.ready(); }, shm::kWakeOnSlot);
    consumer_.pop();
    if (consumer_.should_publish()) {
      consumer_.publish();
      bell_.ring_if_asleep(shm::kWakeOnRoom);
    }
  }
  int sleeps() const { return sleeps_; }
  int late() const { return late_; }

 private:
  template <typename Ready>
  void sleep_unless(Ready&& ready, uint32_t reason) {
    mine_.asleep.store(reason, std::memory_order_relaxed);
    if (fence_) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } else {
      ASSERT_TRUE(global_membarrier());
    }
    if (!ready()) {
      ++sleeps_;
      pollfd watched{socket_, POLLIN, 0};
      if (poll(&watched, 1, 3000) == 0) ++late_;
    }
    mine_.asleep.store(0, std::memory_order_relaxed);
    shm::Parcel ring{};
    (void)!recv(socket_, &ring, sizeof(ring), MSG_DONTWAIT);
  }

  shm::Side& mine_;
  shm::Producer producer_;
  shm::Consumer consumer_;
  shm::Bell bell_;
  int socket_;
  bool fence_;
  int sleeps_ = 0;
  int late_ = 0;
};

class ShmBell : public ::testing::TestWithParam<bool> {};

TEST_P(ShmBell, EveryRingWakesASleeper) {
  const bool fence = GetParam();
  if (!register_global_membarrier() && !fence) GTEST_SKIP() << "no membarrier";
  auto memory = shm::ConnectionMemory::create({64 << 10, 16 << 10}).value();
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
  const UniqueFd near_socket(sockets[0]);
  const UniqueFd far_socket(sockets[1]);
  End near(memory, 0, near_socket.get(), fence);
  End far(memory, 1, far_socket.get(), fence);
  constexpr int kMessages = 100'000;
  std::thread thread([&] {
    Random random(2);
    for (int i = 0; i < kMessages; ++i) {
      far.receive();
      for (uint64_t pause = random.below(60); pause > 0; --pause) cpu_relax();
      // With enough cores no side would sleep.
      if (i % 400 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
      far.send();
    }
  });
  // Bursts of 1 to 60: both "the peer has sent" and "the peer has made room" are waited for.
  Random random(1);
  int sent = 0;
  int received = 0;
  while (received < kMessages) {
    for (uint64_t burst = random.between(1, 60); burst > 0 && sent < kMessages; --burst, ++sent) {
      near.send();
    }
    for (uint64_t pause = random.below(200); pause > 0; --pause) cpu_relax();
    for (; received < sent; ++received) near.receive();
  }
  thread.join();
  EXPECT_EQ(near.late() + far.late(), 0);
  EXPECT_GT(near.sleeps() + far.sleeps(), 100);
}

INSTANTIATE_TEST_SUITE_P(By, ShmBell, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "fence" : "membarrier"; });

// Sleeps whenever a step did nothing. Returns true if a sleep lasted to the limit.
template <typename Done>
bool sleep_until(Node& node, Done&& done) {
  while (!done()) {
    if (node.step() > 0) continue;
    const uint64_t start = now_ns();
    if (node.sleep(kLimit) && now_ns() - start >= kLimit) return true;
  }
  return false;
}

class ShmSleep : public ::testing::TestWithParam<Mode> {};

TEST_P(ShmSleep, MessagesAndPutsWakeASleeper) {
  const auto factory = make_shm_factory();
  const auto both = [&](Side& side) {
    Rail& rail = side.connect();
    Node& node = side.node();
    uint64_t received = 0;
    rail.listen([&](const MessageHeader&, ConstByteSpan) { ++received; });
    std::vector<std::byte> memory(200'000);
    const iovec piece{memory.data(), memory.size()};
    side.post(rail.expose(Extents(&piece, 1), Access::kPutTarget, 1).value());
    const auto key = side.take<RemoteKey>();
    Random random(static_cast<uint64_t>(side.rank()));
    constexpr uint64_t kRounds = 20'000;
    bool late = false;
    uint64_t puts = 0;
    Bulk bulk;
    for (uint64_t round = 0; round < kRounds && !late; ++round) {
      // Ping-pong of bursts, sometimes with a put that does not fit the ring.
      if (side.rank() == 0 || round > 0) {
        late |=
            sleep_until(node, [&] { return received >= 4 * (round + (side.rank() == 1 ? 1 : 0)); });
      }
      for (int i = 0; i < 4 && !late; ++i) {
        const ExtentView payload{Extents(&piece, 1), 0, random.below(4) == 0 ? 4000u : 8u};
        while (!late && rail.send({}, payload) == Code::kWouldBlock) {
          const int writable = rail.writable;
          late |= sleep_until(node, [&] { return rail.writable > writable; });
        }
      }
      if (round % 64 != 0) continue;
      bulk.local = {Extents(&piece, 1), 0, piece.iov_len};
      bulk.key = key;
      rail.completions.clear();
      ASSERT_EQ(rail.put(bulk), Code::kOk);
      ++puts;
      late |= sleep_until(node, [&] { return !rail.completions.empty(); });
    }
    late |= sleep_until(node, [&] { return received >= 4 * kRounds; });
    late |= sleep_until(node, [&] { return rail.put_bytes[1] >= puts * piece.iov_len; });
    EXPECT_FALSE(late) << "a wake-up was lost";
    side.meet();
  };
  run_pair({.factory = *factory, .settings = "SHM_RING_BYTES=64K", .mode = GetParam()}, both, both);
}

INSTANTIATE_TEST_SUITE_P(As, ShmSleep, ::testing::Values(Mode::kThreads, Mode::kProcesses),
                         [](const auto& test) {
                           return test.param == Mode::kThreads ? "threads" : "processes";
                         });

TEST(ShmSleepAlone, ConnectionToAPeerWithoutMembarrierWakesByFence) {
  ShmNode node;
  RawPeer::Options options;
  options.membarrier = false;
  RawPeer peer(node.node, node.credentials, options);
  EXPECT_TRUE(peer.connection.fence);
  EXPECT_NE(peer.rail().endpoint().describe().find("wake by fence"), std::string::npos);
  EXPECT_TRUE(node.node.sleep(kMillisecond));
  EXPECT_EQ(peer.theirs().asleep.load(), 0u);
}

// A side that was refused, or has a put to continue, asks to be notified of room; other sides do
// not.
TEST(ShmSleepAlone, SpaceNotificationIsRequestedOnlyWhileWaitingForSpace) {
  std::vector<std::byte> memory(1 << 20);
  const iovec piece{memory.data(), memory.size()};
  for (const bool put : {false, true}) {
    ShmNode node;
    RawPeer peer(node.node, node.credentials);
    Rail& rail = peer.rail();
    Transport& transport = node.node.transport();
    ASSERT_TRUE(transport.prepare_sleep(Sleep::kLong));
    EXPECT_EQ(peer.theirs().asleep.load(), shm::kWakeOnSlot);
    transport.finish_sleep();
    Bulk bulk{.local = {Extents(&piece, 1), 0, memory.size()},
              .key = {{uint64_t{1} << 32, memory.size(), shm::kPutKey}}};
    if (put) {
      ASSERT_EQ(rail.put(bulk), Code::kOk);
    } else {
      while (rail.send({}, {}) == Code::kOk) {
      }
    }
    while (node.node.step() > 0) {
    }
    ASSERT_TRUE(transport.prepare_sleep(Sleep::kLong));
    EXPECT_EQ(peer.theirs().asleep.load(), shm::kWakeOnSlot | shm::kWakeOnRoom) << put;
    transport.finish_sleep();
    EXPECT_EQ(peer.theirs().asleep.load(), 0u);
    // Room that becomes available while the side goes to sleep keeps it awake.
    peer.mine().consumed_bytes = put ? 128 << 10 : 0;
    peer.mine().consumed_slots = put ? 1 : 64;
    EXPECT_FALSE(transport.prepare_sleep(Sleep::kLong)) << put;
    transport.finish_sleep();
    if (put) rail.cancel(bulk);
  }
}

TEST(ShmSleepAlone, PendingWorkPreventsSleep) {
  ShmPair pair;
  EXPECT_TRUE(pair.far_node().sleep(kMillisecond));
  ASSERT_EQ(pair.near().send({}, {}), Code::kOk);
  EXPECT_FALSE(pair.far_node().sleep(kLimit));
  pair.far_node().step();
  EXPECT_EQ(pair.far().messages.size(), 1u);
}

}  // namespace
}  // namespace hetcomm::test
