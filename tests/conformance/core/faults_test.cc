// Core over transports that misbehave in every way that the interface allows: connections that
// break while the peer lives (messages and puts are lost with them), refusals, delays, failed
// connects. Whatever the transports do, every message arrives once, in order, whole.
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "src/net/handshake.h"
#include "tests/conformance/core/fault_cases.h"
#include "tests/support/core_job.h"
#include "tests/support/cut_sockets.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/pattern.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

// A message from one rank to another, known to both.
struct Message {
  uint64_t tag;
  uint64_t size;
  uint64_t seed;
};
std::vector<Message> script(uint64_t seed, int from, int to, int count) {
  Random random(mix(seed) + static_cast<uint64_t>(from * 64 + to));
  std::vector<Message> messages;
  for (int i = 0; i < count; ++i) {
    messages.push_back({random.below(3), any_size(random), random.next()});
  }
  return messages;
}

// Posts all messages, in random order among peers and directions, and waits for them.
void exchange(CoreMember& me, uint64_t seed, int count) {
  struct Pending {
    Operation* operation;
    std::vector<std::byte> bytes;
    const Message* received;  // null for a send
  };
  Random random(mix(seed) + 1000 + static_cast<uint64_t>(me.rank()));
  const auto peers = static_cast<size_t>(me.size());
  std::vector<std::vector<Message>> out(peers);
  std::vector<std::vector<Message>> in(peers);
  std::vector<size_t> sent(peers, 0);
  std::vector<size_t> received(peers, 0);
  for (int peer = 0; peer < me.size(); ++peer) {
    if (peer == me.rank()) continue;
    out[static_cast<size_t>(peer)] = script(seed, me.rank(), peer, count);
    in[static_cast<size_t>(peer)] = script(seed, peer, me.rank(), count);
  }
  std::deque<Pending> pending;
  const auto post = [&](OperationKind kind, size_t peer, const Message& message) {
    std::vector<std::byte> bytes(message.size);
    if (kind == OperationKind::kSend) fill_pattern(bytes, message.seed);
    Operation* operation =
        me.post(kind, static_cast<int>(peer), message.tag, bytes.data(), bytes.size());
    pending.push_back(
        {operation, std::move(bytes), kind == OperationKind::kSend ? nullptr : &message});
  };
  bool more = true;
  while (more) {
    more = false;
    for (size_t peer = 0; peer < peers; ++peer) {
      if (sent[peer] < out[peer].size() && random.chance(0.5)) {
        post(OperationKind::kSend, peer, out[peer][sent[peer]++]);
      }
      if (received[peer] < in[peer].size() && random.chance(0.5)) {
        post(OperationKind::kReceive, peer, in[peer][received[peer]++]);
      }
      more = more || sent[peer] < out[peer].size() || received[peer] < in[peer].size();
    }
  }
  for (const Pending& each : pending) {
    const Status status = me.finish(each.operation);
    ASSERT_TRUE(status.ok()) << "rank " << me.rank() << ": " << status.text();
    if (each.received == nullptr) continue;
    EXPECT_FALSE(find_mismatch(each.bytes, each.received->seed).has_value())
        << "a message of " << each.received->size << " bytes";
  }
}

// Message and credit counters pass 2^32 during the test.
constexpr uint32_t kNearTheEnd = UINT32_MAX - 40;

TEST_P(CoreFaults, EveryMessageArrivesIntactOnceAndInOrder) {
  std::atomic<uint64_t> broken{0};
  // A quick run uses the seed for three ranks, and under a sanitizer the seed for two.
  const bool long_run = std::getenv("HETCOMM_TEST_LONG") != nullptr;
#if defined(HETCOMM_ASAN) || defined(HETCOMM_TSAN)
  constexpr uint64_t kQuickSeed = 1;
#else
  constexpr uint64_t kQuickSeed = 2;
#endif
  const uint64_t first = long_run ? 1 : kQuickSeed;
  const uint64_t last = long_run ? 20 : kQuickSeed;
  // This checks that faults occur at all. A single run may by chance have few failures.
  const bool breaks = GetParam().plan.fail_rail > 0;
  const auto suffices = [&] { return !breaks || broken.load() > 4; };
  for (uint64_t seed = first; seed <= last || (seed <= last + 8 && !suffices()); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int size = seed % 2 == 0 ? 3 : 2;
    run_core_job(
        size, "TIMEOUT=30s;LOG=error;" + GetParam().settings,
        [&](int rank) { return factories(seed * 100 + static_cast<uint64_t>(rank)); },
        [&](CoreMember& me) {
          exchange(me, seed, 60);
          for (int peer = 0; peer < me.size(); ++peer) {
            hetcomm_counters_t counters[4];
            const size_t count = me.communicator().counters(peer, 4, counters);
            for (size_t i = 0; i < count; ++i) broken += counters[i].failures;
          }
        },
        {}, {}, kNearTheEnd);
    if (HasFailure()) return;
  }
  if (breaks) {
    EXPECT_GT(broken.load(), 4u);
  }
}

// Sends a message from rank 0 to rank 1, and checks its bytes.
void pass_message(CoreMember& me, std::vector<std::byte>& bytes, uint64_t round) {
  if (me.rank() == 0) fill_pattern(bytes, round);
  const Status status =
      me.finish(me.post(me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive,
                        1 - me.rank(), 1, bytes.data(), bytes.size()));
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_FALSE(find_mismatch(bytes, round).has_value());
}

// Several connections share one message.
TEST(CoreRails, SeveralRailsShareOneMessage) {
  FaultPlan plan;
  plan.instances = 3;
  plan.fail_rail = 1e-12;  // not lossless, like rails that may fail
  run_core_job(
      2, "TIMEOUT=30s;LOG=error;",
      [&](int) {
        Factories result;
        result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
        return result;
      },
      [&](CoreMember& me) {
        std::vector<std::byte> bytes(48 << 20);
        for (uint64_t round = 0; round < 20; ++round) {
          ASSERT_NO_FATAL_FAILURE(pass_message(me, bytes, round));
        }
        if (me.rank() == 1) return;
        hetcomm_counters_t counters[4];
        ASSERT_EQ(me.communicator().counters(1, 4, counters), 3u);
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_GT(counters[i].bulk_bytes, uint64_t{48} << 20) << counters[i].transport;
        }
      });
}

// Credit that is returned by an empty message lost with its connection is returned again. Otherwise
// the sender, which waits for it, would never receive it.
TEST(CoreRails, CreditLostWithAConnectionIsReturnedAgain) {
  FaultPlan plan;
  plan.fail_empty = 0.08;  // with a much higher rate, replacement connections break as well
  plan.max_rail_failures = 20;
  std::atomic<uint64_t> broken{0};
  run_core_job(
      2, "TIMEOUT=10s;LOG=error;CREDIT_BYTES=8K;",
      [&](int rank) {
        Factories result;
        FaultPlan own = plan;
        own.seed = static_cast<uint64_t>(rank) + 1;
        result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), own));
        return result;
      },
      [&](CoreMember& me) {
        std::vector<std::byte> bytes(1500);
        for (uint64_t round = 0; round < 200; ++round) {
          ASSERT_NO_FATAL_FAILURE(pass_message(me, bytes, round)) << "message " << round;
        }
        hetcomm_counters_t counters{};
        me.communicator().counters(1 - me.rank(), 1, &counters);
        broken += counters.failures;
      });
  EXPECT_GT(broken.load(), 4u);
}

// A host with many NICs has this many rails.
// The first instance comes first among equal candidates.
TEST(CoreRails, HangingConnectDoesNotBlockTheNextCandidate) {
  FaultPlan plan;
  plan.instances = 3;
  plan.hanging_instance = 0;
  run_core_job(
      2, "TIMEOUT=10s;LOG=error;",
      [&](int) {
        Factories result;
        result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
        return result;
      },
      [&](CoreMember& me) {
        std::vector<std::byte> bytes(4 << 20);
        for (uint64_t round = 0; round < 3; ++round) {
          ASSERT_NO_FATAL_FAILURE(pass_message(me, bytes, round));
        }
        if (me.rank() == 1) return;
        hetcomm_counters_t counters[4];
        const size_t count = me.communicator().counters(1, 4, counters);
        for (size_t i = 0; i < count; ++i) {
          EXPECT_TRUE(std::string_view(counters[i].transport) != "tcp" ||
                      counters[i].connected == 0);
        }
      });
}

TEST(CoreRails, MessagesUseAllTwentyRails) {
  FaultPlan plan;
  plan.instances = 20;
  run_core_job(
      2, "TIMEOUT=30s;LOG=error;RAILS=20;",
      [&](int) {
        Factories result;
        result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
        return result;
      },
      [&](CoreMember& me) {
        std::vector<std::byte> bytes(8 << 20);
        for (uint64_t round = 0; round < 10; ++round) {
          ASSERT_NO_FATAL_FAILURE(pass_message(me, bytes, round));
        }
        if (me.rank() == 1) return;
        std::vector<hetcomm_counters_t> counters(21);
        ASSERT_EQ(me.communicator().counters(1, counters.size(), counters.data()), 20u);
        const auto used = std::count_if(counters.begin(), counters.begin() + 20,
                                        [](const auto& each) { return each.bulk_bytes > 0; });
        EXPECT_EQ(used, 20);
      });
}

// The receiver grants part of a message to a connection that the sender does not know yet: the news
// of it is late, and the grant arrived over another connection.
TEST(CoreRails, MessageArrivesIfItsGrantPrecedesTheConnection) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    run_core_job(
        2, "TIMEOUT=10s;LOG=error;",
        [&](int rank) {
          FaultPlan plan;
          plan.instances = 2;
          plan.first_delayed = 1;
          plan.fail_rail = 1e-12;  // not lossless, like rails that may fail
          plan.max_delay = rank == 1 ? 5000 : 0;
          plan.seed = seed;
          Factories result;
          result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
          return result;
        },
        [&](CoreMember& me) {
          std::vector<std::byte> bytes(16 << 20);
          for (uint64_t round = 0; round < 8; ++round) {
            if (me.rank() == 1) fill_pattern(bytes, round);
            const Status status =
                me.finish(me.post(me.rank() == 1 ? OperationKind::kSend : OperationKind::kReceive,
                                  1 - me.rank(), 1, bytes.data(), bytes.size()));
            ASSERT_TRUE(status.ok()) << status.text();
            EXPECT_FALSE(find_mismatch(bytes, round).has_value());
          }
        });
  }
}

// The network drops a pair's idle connection without notice. The next message arrives within the
// detection time, and no rank is declared dead.
TEST(CoreRails, CutConnectionIsReplaced) {
  for (const int sender : {0, 1}) {
    SCOPED_TRACE("rank " + std::to_string(sender) + " sends");
    std::barrier both(2);
    run_core_job(
        2,
        "TRANSPORTS=tcp;INTERFACE=lo;FAMILY=ipv4;TIMEOUT=30s;LOG=error;PROGRESS=thread;"
        "DETECTION_TIME=2s;",
        [](int) {
          Factories result;
          result.push_back(make_tcp_factory());
          return result;
        },
        [&](CoreMember& me) {
          uint64_t value = 1;
          const auto exchange = [&](int from) {
            const Status status = me.finish(
                me.post(me.rank() == from ? OperationKind::kSend : OperationKind::kReceive,
                        1 - me.rank(), 1, &value, sizeof(value)));
            EXPECT_TRUE(status.ok()) << status.text();
          };
          exchange(0);
          exchange(1);
          both.arrive_and_wait();
          if (me.rank() == 0) {
            const uint16_t port = port_in(me.communicator().explain(1));
            ASSERT_NE(port, 0);
            EXPECT_EQ(cut_sockets([&](const SocketEnds& ends) {
                        return ends.local == port || ends.peer == port;
                      }),
                      2);
          }
          both.arrive_and_wait();
          const uint64_t start = now_ns();
          if (me.rank() == sender) value = 7;
          exchange(sender);
          EXPECT_EQ(value, 7u);
          EXPECT_LT(now_ns() - start, 10'000'000'000u);
          exchange(1 - sender);
          hetcomm_counters_t counters{};
          ASSERT_EQ(me.communicator().counters(1 - me.rank(), 1, &counters), 1u);
          EXPECT_EQ(counters.failures, 1u);
          EXPECT_EQ(counters.connected, 1);
        });
  }
}

// A rank does not read for so long that the sender's kernel probes only rarely. Then it reads, and
// the news of that is lost with the connection. Its control thread tells the sender.
TEST(CoreRails, ConnectionCutWhileThePeerDoesNotReadIsReplaced) {
  std::barrier both(2);
  run_core_job(
      2,
      "TRANSPORTS=tcp;INTERFACE=lo;FAMILY=ipv4;TIMEOUT=60s;LOG=error;PROGRESS=caller;"
      "DETECTION_TIME=2s;",
      [](int) {
        Factories result;
        result.push_back(make_tcp_factory());
        return result;
      },
      [&](CoreMember& me) {
        Engine& engine = me.context().engine();
        const auto failures = [&] {
          hetcomm_counters_t counters{};
          EXPECT_EQ(me.communicator().counters(1 - me.rank(), 1, &counters), 1u);
          return counters.failures;
        };
        const auto spend = [&](uint64_t ns) {
          (void)engine.wait(now_ns() + ns, [] { return false; });
        };
        std::vector<std::byte> bytes(64u << 20);
        if (me.rank() == 0) fill_pattern(bytes, 5);
        Operation* const operation =
            me.post(me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive, 1 - me.rank(),
                    1, bytes.data(), bytes.size());
        if (me.rank() == 1) {
          while (bytes.front() == std::byte{}) spend(1'000'000);
          both.arrive_and_wait();
        } else {
          spend(1'000'000'000);
          const std::string described = me.communicator().explain(1);
          spend(3'000'000'000);
          EXPECT_EQ(failures(), 0u);
          const uint16_t port = port_in(described);
          EXPECT_GT(cut_sockets([&](const SocketEnds& ends) { return ends.peer == port; }), 0);
          both.arrive_and_wait();
        }
        const uint64_t start = now_ns();
        const Status status = me.finish(operation);
        EXPECT_TRUE(status.ok()) << status.text();
        EXPECT_LT(now_ns() - start, 20'000'000'000u);
        EXPECT_EQ(failures(), 1u);
        EXPECT_FALSE(find_mismatch(bytes, 5).has_value());
      });
}

// Exchanges messages of all sizes in both directions at once. A rank's n-th message has seed n.
void exchange_some(CoreMember& me, uint64_t round) {
  constexpr std::array<uint64_t, 5> kSizes{8, 3000, 50'000, 200'000, 3'000'000};
  struct Transfer {
    Operation* operation;
    std::vector<std::byte> bytes;
    uint64_t expected;  // 0: a send
  };
  std::deque<Transfer> transfers;
  const auto post = [&](OperationKind kind, uint64_t size, uint64_t seed) {
    std::vector<std::byte> bytes(size);
    if (kind == OperationKind::kSend) fill_pattern(bytes, seed);
    Operation* operation = me.post(kind, 1 - me.rank(), 1, bytes.data(), bytes.size());
    transfers.push_back({operation, std::move(bytes), kind == OperationKind::kSend ? 0 : seed});
  };
  for (uint64_t i = 0; i < 10; ++i) {
    const uint64_t size = kSizes[i % kSizes.size()];
    post(OperationKind::kSend, size, 1 + round * 10 + i);
    post(OperationKind::kReceive, size, 1 + round * 10 + i);
  }
  for (Transfer& each : transfers) {
    const Status status = me.finish(each.operation);
    ASSERT_TRUE(status.ok()) << status.text();
    if (each.expected != 0) {
      EXPECT_FALSE(find_mismatch(each.bytes, each.expected).has_value())
          << "message " << each.expected << " of " << each.bytes.size() << " bytes";
    }
  }
}

hetcomm_counters_t counters_over(CoreMember& me, std::string_view transport) {
  hetcomm_counters_t all[4];
  const size_t count = me.communicator().counters(1 - me.rank(), 4, all);
  for (size_t i = 0; i < count; ++i) {
    if (transport == all[i].transport) return all[i];
  }
  return {};
}

struct TakeOverCase {
  const char* progress;
  uint32_t failures;         // failures of shm before a connection is established
  const char* higher_chunk;  // the largest message of shm in the higher rank's own settings
};

// The first connection is over tcp, because shm has failed. shm is retried, and takes over the
// messages while they flow both ways. Then tcp is unused and is closed, which is not a failure.
TEST(CoreRails, BetterTransportTakesOverOnceItWorks) {
  const TakeOverCase cases[] = {{"caller", 3, ""},
                                {"thread", 3, ""},
                                {"thread", 4, ""},
                                {"caller", 3, "SHM_CHUNK=128K;SHM_RING_BYTES=1M;"}};
  for (const TakeOverCase& test : cases) {
    SCOPED_TRACE(std::string(test.progress) + " " + test.higher_chunk);
    std::barrier both(2);
    std::atomic<int> upgraded{0};
    run_core_job(
        2, std::string("TIMEOUT=30s;LOG=error;COOL_DOWN=20ms;PROGRESS=") + test.progress + ";",
        [&](int) {
          FaultPlan late;
          late.connect_failures = test.failures;
          Factories result;
          result.push_back(make_tcp_factory());
          result.push_back(std::make_unique<FaultyFactory>(make_shm_factory(), late));
          return result;
        },
        [&](CoreMember& me) {
          bool seen = false;
          uint64_t round = 0;
          for (; upgraded < 2 && round < 1000; ++round) {
            both.arrive_and_wait();  // both have read the condition
            exchange_some(me, round);
            const bool now =
                counters_over(me, "shm").connected == 1 && counters_over(me, "tcp").connected == 0;
            if (now && !seen) ++upgraded;
            seen = seen || now;
            both.arrive_and_wait();
          }
          EXPECT_TRUE(seen);
          EXPECT_GT(counters_over(me, "tcp").messages_sent, 0u);
          EXPECT_EQ(counters_over(me, "tcp").failures, 0u);
          EXPECT_EQ(counters_over(me, "shm").failures, 0u);
          const uint64_t before = counters_over(me, "shm").messages_sent;
          exchange_some(me, round);
          EXPECT_EQ(counters_over(me, "shm").messages_sent, before + 10);
          EXPECT_EQ(counters_over(me, "tcp").connected, 0);
        },
        {}, [&](int rank) { return std::string(rank == 1 ? test.higher_chunk : ""); });
  }
}

// The lower rank of a pair, which connects, posts its first message and computes for longer than
// the higher rank waits for its proof. No rank is lost, and the pair ends up on shared memory, with
// or without another transport as a fallback.
TEST(CoreFirstContact, FirstContactSucceedsWhileTheConnectingRankComputes) {
  constexpr auto kComputes = std::chrono::nanoseconds(kHandshakeTimeoutNs + 500'000'000);
  const auto job = [&](bool with_tcp) {
    run_core_job(
        2, "TIMEOUT=30s;LOG=error;COOL_DOWN=20ms;",
        [&](int) {
          Factories result;
          if (with_tcp) result.push_back(make_tcp_factory());
          result.push_back(make_shm_factory());
          return result;
        },
        [&](CoreMember& me) {
          uint64_t value = 7;
          const OperationKind kind =
              me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive;
          Operation* first = me.post(kind, 1 - me.rank(), 1, &value, sizeof(value));
          if (me.rank() == 0) std::this_thread::sleep_for(kComputes);
          const Status status = me.finish(first);
          EXPECT_TRUE(status.ok()) << status.text();
          for (uint64_t round = 0; round < 20; ++round) exchange_some(me, round);
          EXPECT_EQ(counters_over(me, "shm").connected, 1);
          EXPECT_GT(counters_over(me, "shm").messages_sent, 0u);
        });
  };
  std::thread alone([&] { job(false); });
  job(true);
  alone.join();
}

INSTANTIATE_TEST_SUITE_P(Over, CoreFaults, ::testing::ValuesIn(fault_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace hetcomm::test
