// One-sided operations over connections that break, lose operations in flight, refuse and delay:
//
//   * a notification arrives exactly once, and its bytes are right when it arrives;
//   * atomics are applied exactly once;
//   * a get reads the current contents;
//   * all of this also holds while message and credit counters pass 2^32;
//   * it also holds with regions, that is memory accessed without the owner's help, even if data
//     from a broken connection arrives late.
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "tests/support/core_job.h"
#include "tests/support/core_window.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/pattern.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

struct AccessCase {
  std::string name;
  bool shm = false;
  FaultPlan plan;
  std::string settings = {};
};
void PrintTo(const AccessCase& test_case, std::ostream* out) { *out << test_case.name; }

std::vector<AccessCase> access_cases() {
  FaultPlan all;
  all.fail_rail = 0.01;
  all.lose_reported_put = true;
  all.refuse = 0.1;
  all.max_delay = 5;
  FaultPlan tiny = all;
  tiny.max_payload_bytes = 2048;
  tiny.eager_limit_bytes = 1000;
  FaultPlan regions = all;
  regions.regions = true;
  FaultPlan two = all;
  two.instances = 2;
  FaultPlan two_regions = regions;
  two_regions.instances = 3;
  FaultPlan late = two_regions;
  late.late_writes = true;
  late.fail_direct = 0.02;
  FaultPlan updates_lost = regions;
  updates_lost.fail_empty = 0.04;
  FaultPlan gentle;
  gentle.regions = true;
  gentle.max_delay = 3;
  return {
      {"tcp", false, all},
      {"tcp_tiny", false, tiny},
      {"tcp_thread", false, all, "PROGRESS=thread;"},
      {"tcp_little_credit", false, all, "CREDIT_BYTES=8K;"},
      {"tcp_regions", false, regions},
      {"tcp_regions_thread", false, regions, "PROGRESS=thread;"},
      {"tcp_regions_updates_lost", false, updates_lost},
      {"tcp_two_rails", false, two, "COOL_DOWN=5ms;"},
      {"tcp_two_rails_thread", false, two, "COOL_DOWN=5ms;PROGRESS=thread;"},
      {"tcp_three_rails_regions", false, two_regions, "COOL_DOWN=5ms;"},
      {"tcp_three_rails_late_writes", false, late, "COOL_DOWN=5ms;"},
      {"shm", true, all},
      {"shm_read", true, all, "SHM_BULK=read;"},
      {"shm_regions", true, regions},
      {"shm_regions_gentle", true, gentle},
  };
}

Factories faulty(std::unique_ptr<TransportFactory> inner, const FaultPlan& plan) {
  Factories result;
  result.push_back(std::make_unique<FaultyFactory>(std::move(inner), plan));
  return result;
}

class AccessFaults : public ::testing::TestWithParam<AccessCase> {};

// Message and credit counters pass 2^32 while connections break.
constexpr uint32_t kNearTheEnd = UINT32_MAX - 300;
constexpr uint64_t kSlots = 32;
constexpr uint64_t kSlot = 100'000;
constexpr uint64_t kCounters = 64;  // size of the area before the slots
constexpr uint64_t kWindow = kCounters + kSlots * kSlot;

struct Put {
  uint64_t length;
  uint64_t seed;
};
Put put_of(uint64_t seed, int from, uint64_t index) {
  Random random(mix(seed * 1'000'003 + index) + static_cast<uint64_t>(from));
  const uint64_t length = random.chance(0.7) ? random.below(600) : random.below(kSlot);
  return {length, random.next()};
}

// Both ranks put at once. A slot is reused only after its notification was answered with an atomic
// on the putter's word. The notification of put i has number i, exactly once.
void exchange(CoreMember& me, uint64_t seed, uint64_t count) {
  Window window(me, kWindow);
  Random random(mix(seed) + static_cast<uint64_t>(me.rank()));
  struct Pending {
    Operation* operation;
    std::vector<std::byte> bytes;
  };
  std::deque<Pending> puts;
  std::deque<Pending> others;
  std::vector<uint64_t> results(count + 1);
  uint64_t begun = 0;
  uint64_t taken = 0;
  std::vector<bool> seen(count);
  const uint64_t deadline = now_ns() + 60'000'000'000;
  while (taken < count || begun < count) {
    ASSERT_LT(now_ns(), deadline) << "rank " << me.rank() << ": " << begun << " begun, " << taken
                                  << " taken, " << window.word(0) << " answered";
    // The other rank counts in this rank's word the puts that it has received. It receives them in
    // any order, but only those that have started.
    if (begun < count && begun < window.word(0) + kSlots &&
        (begun < kSlots || window.word(0) > begun - kSlots)) {
      const Put put = put_of(seed, me.rank(), begun);
      std::vector<std::byte> bytes(put.length);
      fill_pattern(bytes, put.seed);
      const AccessArguments to{.remote = &window.remote(),
                               .offset = kCounters + begun % kSlots * kSlot,
                               .operand = begun};
      // A slot is reused only when the previous put to it has been received.
      const bool free = begun < kSlots || window.word(0) >= begun;
      if (free) {
        Operation* operation = me.access(OperationKind::kPut, to, bytes.data(), bytes.size(), true);
        puts.push_back({operation, std::move(bytes)});
        ++begun;
      }
    }
    hetcomm_notification_t notification{};
    const Status status = RegisteredMemories::wait_notification(
        window.memory(), me.context().engine(), HETCOMM_TIMEOUT_POLL, &notification);
    if (!status.ok()) {
      ASSERT_EQ(status.code(), Code::kTimedOut) << status.text();
      continue;
    }
    const uint64_t index = notification.value;
    ASSERT_LT(index, count);
    EXPECT_FALSE(seen[index]) << "notification " << index << " came twice";
    seen[index] = true;
    const Put put = put_of(seed, 1 - me.rank(), index);
    EXPECT_EQ(notification.length, put.length);
    EXPECT_EQ(notification.offset, kCounters + index % kSlots * kSlot);
    EXPECT_FALSE(find_mismatch(window.at(notification.offset, put.length), put.seed).has_value())
        << "put " << index << " of " << put.length << " bytes";
    ++taken;
    const AccessArguments answer{
        .remote = &window.remote(), .operand = 1, .result = &results[taken]};
    others.push_back({me.access(OperationKind::kFetchAdd, answer, nullptr, 0), {}});
    if (random.chance(0.2)) {
      // Reads back the head of a slot that is not being written: one of this rank's slots whose put
      // is complete.
      std::vector<std::byte> bytes(8);
      const AccessArguments from{.remote = &window.remote(), .offset = 8};
      Operation* operation = me.access(OperationKind::kGet, from, bytes.data(), bytes.size());
      others.push_back({operation, std::move(bytes)});
    }
  }
  for (const Pending& each : puts) expect_ok(me.finish(each.operation));
  for (const Pending& each : others) expect_ok(me.finish(each.operation));
  for (uint64_t i = 1; i <= count; ++i) EXPECT_LT(results[i], count);
  std::sort(results.begin() + 1, results.end());
  for (uint64_t i = 1; i <= count; ++i) EXPECT_EQ(results[i], i - 1) << "an atomic happened twice";
  expect_ok(barrier(me.communicator(), 20'000'000'000));
  EXPECT_EQ(window.word(0), count);
  expect_ok(barrier(me.communicator(), 20'000'000'000));
}

TEST_P(AccessFaults, NotificationsAndAtomicsTakeEffectOnce) {
  const bool long_run = std::getenv("HETCOMM_TEST_LONG") != nullptr;
  std::atomic<uint64_t> broken{0};
  std::atomic<uint64_t> direct{0};
  const uint64_t seeds = long_run ? 10 : 1;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_core_job(
        2, "TIMEOUT=30s;LOG=error;" + GetParam().settings,
        [&](int rank) {
          FaultPlan plan = GetParam().plan;
          plan.seed = seed * 100 + static_cast<uint64_t>(rank);
          plan.max_rail_failures = 40;
          return faulty(GetParam().shm ? make_shm_factory() : make_tcp_factory(), plan);
        },
        [&](CoreMember& me) {
          exchange(me, seed, 400);
          hetcomm_counters_t counters[4];
          const size_t count = me.communicator().counters(1 - me.rank(), 4, counters);
          for (size_t i = 0; i < count; ++i) {
            broken += counters[i].failures;
            direct += counters[i].direct;
          }
        },
        {}, {}, kNearTheEnd);
    if (HasFailure()) return;
  }
  // This checks that faults occur at all.
  if (GetParam().plan.fail_rail > 0) {
    EXPECT_GT(broken.load(), 4u);
  }
  if (GetParam().plan.regions) {
    EXPECT_GT(direct.load(), 250u);
  }
}

// Runs one operation at a time, so that nothing else shows its outcome. Large operations use all
// connections.
TEST_P(AccessFaults, LoneOperationEndsDespiteFaults) {
  std::atomic<bool> done{false};
  std::atomic<uint64_t> broken{0};
  run_core_job(
      2, "TIMEOUT=10s;LOG=error;" + GetParam().settings,
      [&](int rank) {
        FaultPlan plan = GetParam().plan;
        plan.seed = 7 + static_cast<uint64_t>(rank);
        if (plan.fail_rail > 0) plan.fail_rail = 0.05;
        plan.max_rail_failures = 40;
        return faulty(GetParam().shm ? make_shm_factory() : make_tcp_factory(), plan);
      },
      [&](CoreMember& me) {
        Window window(me, kWindow);
        expect_ok(barrier(me.communicator(), 20'000'000'000));
        if (me.rank() == 1) {
          while (!done.load()) {
            hetcomm_notification_t notification{};
            (void)RegisteredMemories::wait_notification(window.memory(), me.context().engine(),
                                                        HETCOMM_TIMEOUT_POLL, &notification);
          }
        } else {
          constexpr uint64_t kLargest = kSlots * kSlot;
          std::vector<std::byte> out(kLargest);
          std::vector<std::byte> in(kLargest);
          Random random(3);
          uint64_t sum = 0;
          for (uint64_t round = 0; round < 40 && !::testing::Test::HasFailure(); ++round) {
            const uint64_t length =
                random.chance(0.6) ? random.below(600) : random.between(1, kLargest);
            fill_pattern(ByteSpan(out).first(length), round);
            const AccessArguments to{.remote = &window.remote(), .offset = kCounters};
            const bool notify = random.chance(0.3);
            const Status put =
                me.finish(me.access(OperationKind::kPut, to, out.data(), length, notify));
            EXPECT_TRUE(put.ok()) << "put of " << length << ": " << put.text();
            const AccessArguments from{.remote = &window.remote(), .offset = kCounters};
            const Status got = me.finish(me.access(OperationKind::kGet, from, in.data(), length));
            EXPECT_TRUE(got.ok()) << "get of " << length << ": " << got.text();
            EXPECT_FALSE(find_mismatch(ConstByteSpan(in).first(length), round).has_value())
                << "round " << round << ", " << length << " bytes";
            uint64_t before = 0;
            const AccessArguments word{
                .remote = &window.remote(), .operand = round, .result = &before};
            const Status added = me.finish(me.access(OperationKind::kFetchAdd, word, nullptr, 0));
            EXPECT_TRUE(added.ok()) << added.text();
            EXPECT_EQ(before, sum);
            sum += round;
          }
          done.store(true);
        }
        expect_ok(barrier(me.communicator(), 20'000'000'000));
        hetcomm_counters_t counters[4];
        const size_t count = me.communicator().counters(1 - me.rank(), 4, counters);
        for (size_t i = 0; i < count; ++i) broken += counters[i].failures;
      });
  if (GetParam().plan.fail_rail > 0) {
    EXPECT_GT(broken.load(), 4u);
  }
}

// Large puts use three connections at once, which break during the puts. Data that the network has
// not placed is sent by message. The notification names the whole put, arrives once, and after its
// bytes.
TEST(AccessRegions, NotificationNamesTheWholePutAfterBrokenConnections) {
  constexpr uint64_t kRounds = 12;
  constexpr uint64_t kEach = 800'000;
  constexpr uint64_t kAtOnce = 3;
  FaultPlan plan;
  plan.regions = true;
  plan.instances = 3;
  plan.max_delay = 5;
  plan.fail_direct = 0.15;
  plan.max_rail_failures = 100;
  std::atomic<uint64_t> broken{0};
  std::atomic<uint64_t> taken{0};
  run_core_job(
      2, "TIMEOUT=30s;LOG=error;COOL_DOWN=1ms;",
      [&](int rank) {
        FaultPlan own = plan;
        own.seed = 70 + static_cast<uint64_t>(rank);
        return faulty(make_tcp_factory(), own);
      },
      [&](CoreMember& me) {
        Window window(me, kCounters + kAtOnce * kEach);
        expect_ok(barrier(me.communicator(), 20'000'000'000));
        const auto length_of = [&](uint64_t put) { return kEach - put * 1000; };
        if (me.rank() == 1) {
          std::vector<bool> seen(kRounds * kAtOnce);
          while (taken.load() < seen.size()) {
            hetcomm_notification_t notification{};
            const Status status = RegisteredMemories::wait_notification(
                window.memory(), me.context().engine(), 20'000'000'000, &notification);
            ASSERT_TRUE(status.ok()) << status.text();
            const uint64_t put = notification.value;
            ASSERT_LT(put, seen.size());
            EXPECT_FALSE(seen[put]) << "notification " << put << " came twice";
            seen[put] = true;
            EXPECT_EQ(notification.source, 0);
            EXPECT_EQ(notification.offset, kCounters + put % kAtOnce * kEach);
            EXPECT_EQ(notification.length, length_of(put));
            const ConstByteSpan bytes =
                window.at(kCounters + put % kAtOnce * kEach, length_of(put));
            EXPECT_FALSE(find_mismatch(bytes, put).has_value()) << "bytes of put " << put;
            ++taken;
          }
        } else {
          for (uint64_t round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
            std::vector<std::vector<std::byte>> bytes;
            std::vector<Operation*> puts;
            for (uint64_t i = 0; i < kAtOnce; ++i) {
              const uint64_t put = round * kAtOnce + i;
              bytes.emplace_back(length_of(put));
              fill_pattern(bytes.back(), put);
              const AccessArguments to{
                  .remote = &window.remote(), .offset = kCounters + i * kEach, .operand = put};
              puts.push_back(
                  me.access(OperationKind::kPut, to, bytes[i].data(), bytes[i].size(), true));
            }
            for (Operation* put : puts) expect_ok(me.finish(put));
            me.context().engine().wait(now_ns() + 20'000'000'000, [&] {
              return taken.load() >= (round + 1) * kAtOnce || ::testing::Test::HasFailure();
            });
          }
        }
        expect_ok(barrier(me.communicator(), 20'000'000'000));
        hetcomm_counters_t counters[4];
        const size_t count = me.communicator().counters(1 - me.rank(), 4, counters);
        for (size_t i = 0; i < count; ++i) broken += counters[i].failures;
      });
  EXPECT_GT(broken.load(), 10U);
}

// A put whose connection broke ends when the owner has learned of that. This holds even if the
// message with the news had to wait, and other messages, which need no acknowledgement, left
// directly after it.
TEST(AccessRegions, MessagesAfterABreakReportDoNotDelayAPut) {
  FaultPlan plan;
  plan.regions = true;
  plan.refuse = 0.7;
  plan.max_delay = 3;
  plan.fail_direct = 0.1;
  plan.max_rail_failures = 60;
  std::array<std::atomic<int>, 2> finished{};
  std::atomic<bool> failed{false};
  run_core_job(
      2, "TIMEOUT=10s;LOG=error;",
      [&](int rank) {
        FaultPlan own = plan;
        own.seed = 5 + static_cast<uint64_t>(rank);
        return faulty(make_tcp_factory(), own);
      },
      [&](CoreMember& me) {
        Window window(me, kWindow);
        expect_ok(barrier(me.communicator(), 20'000'000'000));
        std::vector<std::byte> bytes(4096);
        for (int round = 0; round < 400 && !failed.load(); ++round) {
          std::array<uint64_t, 3> before{};
          std::vector<Operation*> operations;
          if (me.rank() == 0) {
            const AccessArguments to{.remote = &window.remote(), .offset = kCounters};
            operations.push_back(me.access(OperationKind::kPut, to, bytes.data(), bytes.size()));
          } else {
            for (uint64_t& each : before) {
              const AccessArguments add{.remote = &window.remote(), .operand = 1, .result = &each};
              operations.push_back(me.access(OperationKind::kFetchAdd, add, nullptr, 0));
            }
          }
          for (Operation* operation : operations) {
            const Status status = me.finish(operation);
            EXPECT_TRUE(status.ok()) << "round " << round << ": " << status.text();
            if (!status.ok()) failed.store(true);
          }
          // Both ranks continue until the other rank is done as well.
          finished[static_cast<size_t>(me.rank())].fetch_add(1);
          while (finished[static_cast<size_t>(1 - me.rank())].load() <= round)
            me.context().engine().poke();
        }
      });
}

// The owner withdraws memory that the connection itself is writing.
TEST(AccessRegions, WithdrawnRegionIsNotWritten) {
  FaultPlan plan;
  plan.regions = true;
  plan.max_delay = 40;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    run_core_job(
        2, "TIMEOUT=30s;LOG=error;",
        [&](int rank) {
          FaultPlan own = plan;
          own.seed = seed * 100 + static_cast<uint64_t>(rank);
          own.fail_rail = 1e-9;  // breaks only if a region was withdrawn
          return faulty(make_tcp_factory(), own);
        },
        [&](CoreMember& me) {
          std::vector<std::byte> out(kSlot, std::byte{0xee});
          std::vector<Operation*> operations;
          {
            std::unique_ptr<Window> window = std::make_unique<Window>(me, kWindow);
            expect_ok(barrier(me.communicator(), 20'000'000'000));
            if (me.rank() == 0) {
              for (uint64_t i = 0; i < kSlots; ++i) {
                const AccessArguments to{.remote = &window->remote(),
                                         .offset = kCounters + i * kSlot};
                operations.push_back(
                    me.access(OperationKind::kPut, to, out.data(), out.size(), i % 2 == 0));
              }
              for (Operation* operation : operations) {
                const Code code = me.finish(operation).code();
                EXPECT_TRUE(code == Code::kOk || code == Code::kStaleHandle) << code_name(code);
              }
            } else {
              for (uint64_t i = 0; i < seed * 10; ++i) me.context().engine().poke();
              expect_ok(RegisteredMemories::unregister_memory(window->memory(), 20'000'000'000));
              const std::vector<std::byte> before(window->at(0, kSlots * kSlot).begin(),
                                                  window->at(0, kSlots * kSlot).end());
              expect_ok(barrier(me.communicator(), 20'000'000'000));
              EXPECT_TRUE(
                  std::equal(before.begin(), before.end(), window->at(0, kSlots * kSlot).begin()));
              expect_ok(me.communicator().memories().register_memory(window->memory(),
                                                                     HETCOMM_ACCESS_GET, true));
              return;
            }
            expect_ok(barrier(me.communicator(), 20'000'000'000));
          }
        });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Over, AccessFaults, ::testing::ValuesIn(access_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace hetcomm::test
