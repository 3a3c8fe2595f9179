// A network that carries only short packets: connections open, and break as soon as a long packet
// is sent.
//   * short messages arrive; long ones end with UNREACHABLE on both ranks and the reason of the
//     connection, eagerly or by rendezvous, whichever rank sends, and over every path
//   * an occasional message that gets through, or another path that carries it, keeps the pair
#include <atomic>
#include <barrier>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/core_job.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/pattern.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kCarried = 1000;
constexpr uint64_t kEagerBytes = 3000;
constexpr uint64_t kLongBytes = 1'000'000;

FaultPlan short_only() {
  FaultPlan plan;
  plan.carried_bytes = kCarried;
  return plan;
}

template <typename Body>
void run(const FaultPlan& plan, Body&& body) {
  run_core_job(
      2, "TIMEOUT=30s;LOG=error;COOL_DOWN=10ms;",
      [&](int) {
        Factories result;
        result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
        return result;
      },
      body);
}

// The ranks end with a lost pair, so they meet outside of the job.
template <typename Body>
void run_to_the_loss(const FaultPlan& plan, Body&& body) {
  hetcomm_test::LocalStore store;
  std::barrier both(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Factories factories;
        factories.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
        CoreMember member(store, rank, 2, "TIMEOUT=30s;LOG=error;COOL_DOWN=10ms;",
                          std::move(factories));
        body(member);
        both.arrive_and_wait();
      } catch (const std::exception& exception) {
        ADD_FAILURE() << "rank " << rank << ": " << exception.what();
        both.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Sends |bytes| from |sender| to the other rank. Returns the status on this rank.
Status pass(CoreMember& me, int sender, std::vector<std::byte>& bytes, uint64_t seed) {
  const bool sends = me.rank() == sender;
  if (sends) fill_pattern(bytes, seed);
  const Status status = me.finish(me.post(sends ? OperationKind::kSend : OperationKind::kReceive,
                                          1 - me.rank(), 1, bytes.data(), bytes.size()));
  if (status.ok()) {
    EXPECT_FALSE(find_mismatch(bytes, seed).has_value());
  }
  return status;
}

class BlackHoles : public ::testing::TestWithParam<uint64_t> {};

TEST_P(BlackHoles, LostLongMessageIsUnreachableOnBothRanks) {
  for (const size_t paths : {size_t{1}, size_t{2}}) {
    for (const int sender : {0, 1}) {
      FaultPlan plan = short_only();
      plan.instances = paths;
      run_to_the_loss(plan, [&](CoreMember& me) {
        std::vector<std::byte> few(kCarried);
        // The last message shows that the earlier ones have arrived.
        for (uint64_t i = 0; i < 11; ++i) {
          const Status status = pass(me, i < 10 ? sender : 1 - sender, few, i);
          ASSERT_TRUE(status.ok()) << status.text();
        }
        std::vector<std::byte> many(GetParam());
        Status status = pass(me, sender, many, 1);
        // A short message counts as sent once it has left.
        std::byte never{};
        if (status.ok() && me.rank() == sender) {
          status = me.finish(me.post(OperationKind::kReceive, 1 - sender, 2, &never, 1));
        }
        EXPECT_EQ(status.code(), Code::kUnreachable) << status.text();
        const std::string text(status.text());
        EXPECT_THAT(text, HasSubstr("faulty: the path is gone"));
        EXPECT_THAT(text, HasSubstr("rank " + std::to_string(1 - me.rank())));
        EXPECT_THAT(text, HasSubstr("MTU"));
      });
    }
  }
}

TEST_P(BlackHoles, PairSurvivesIfSomeLongMessagesArrive) {
  FaultPlan plan = short_only();
  plan.carried_after = 2;
  std::atomic<uint64_t> broken{0};
  run(plan, [&](CoreMember& me) {
    std::vector<std::byte> many(GetParam());
    for (uint64_t i = 0; i < 6; ++i) {
      const Status status = pass(me, static_cast<int>(i % 2), many, i);
      ASSERT_TRUE(status.ok()) << status.text();
    }
    hetcomm_counters_t counters{};
    me.communicator().counters(1 - me.rank(), 1, &counters);
    broken += counters.failures;
  });
  EXPECT_GE(broken.load(), 6U);
}

TEST_P(BlackHoles, PairSurvivesIfAnotherPathCarriesData) {
  FaultPlan plan = short_only();
  plan.instances = 2;
  plan.carrying_instance = 1;
  run(plan, [&](CoreMember& me) {
    std::vector<std::byte> many(GetParam());
    for (uint64_t i = 0; i < 20; ++i) {
      const Status status = pass(me, static_cast<int>(i % 2), many, i);
      ASSERT_TRUE(status.ok()) << status.text();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Over, BlackHoles, ::testing::Values(kEagerBytes, kLongBytes),
                         [](const auto& value) {
                           return value.param == kEagerBytes ? "Eager" : "Rendezvous";
                         });

}  // namespace
}  // namespace hetcomm::test
