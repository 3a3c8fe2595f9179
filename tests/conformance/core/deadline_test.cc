// Deadlines, checked by core's own view of an operation, so that inspecting the operation does not
// drive the engine:
//
//   * if a thread makes progress, a deadline ends an operation without any call;
//   * if the caller makes progress, the operation ends in the caller's next call.
#include <unistd.h>

#include <array>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/core_job.h"
#include "transports/self/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

Factories self_and_tcp() {
  Factories factories;
  factories.push_back(make_self_factory());
  factories.push_back(make_tcp_factory());
  return factories;
}

// Polls |operation| without a call. Returns the nanoseconds until it had ended; |limit_ns|: it has
// not ended.
uint64_t watch(const Operation& operation, uint64_t limit_ns) {
  const uint32_t generation = operation.generation();
  const uint64_t begin = now_ns();
  while (now_ns() < begin + limit_ns) {
    if (operation.is(generation, OperationState::kComplete)) return now_ns() - begin;
    usleep(1000);
  }
  return limit_ns;
}

// Once all threads sleep, posts a receive that nothing matches. |timeout_ns| 0: the default.
void expect_timed_out_in_silence(CoreMember& me, int from, uint64_t timeout_ns) {
  std::array<std::byte, 8> memory{};
  usleep(100'000);  // the background thread has gone to sleep
  Operation* operation =
      me.post(OperationKind::kReceive, from, 1, memory.data(), memory.size(), timeout_ns);
  const uint64_t taken = watch(*operation, 10 * kSecond);
  EXPECT_GE(taken, 190'000'000u);
  EXPECT_LT(taken, 10 * kSecond);
  const Status status = me.finish(operation);
  EXPECT_EQ(status.code(), Code::kTimedOut) << status.text();
}

TEST(CoreDeadline, DeadlineEndsAnOperationWithoutACallInThreadMode) {
  run_core_job(
      2, "PROGRESS=thread;TIMEOUT=200ms;LOG=error", [](int) { return self_and_tcp(); },
      [](CoreMember& me) {
        expect_timed_out_in_silence(me, me.rank(), 0);
        if (testing::Test::HasFailure()) return;
        expect_timed_out_in_silence(me, 1 - me.rank(), 0);
        if (testing::Test::HasFailure()) return;
        expect_timed_out_in_silence(me, HETCOMM_ANY_SOURCE, 200'000'000);
      });
}

// This also shows that inspecting the operation drives nothing.
TEST(CoreDeadline, DeadlineEndsAnOperationAtTheNextCallInCallerMode) {
  run_core_job(
      1, "PROGRESS=caller;TIMEOUT=100ms;LOG=error", [](int) { return self_and_tcp(); },
      [](CoreMember& me) {
        std::array<std::byte, 8> memory{};
        Operation* operation = me.post(OperationKind::kReceive, 0, 1, memory.data(), memory.size());
        EXPECT_EQ(watch(*operation, kSecond / 2), kSecond / 2);
        const uint64_t begin = now_ns();
        EXPECT_EQ(me.finish(operation).code(), Code::kTimedOut);
        EXPECT_LT(now_ns() - begin, 10 * kSecond);
      });
}

}  // namespace
}  // namespace hetcomm::test
