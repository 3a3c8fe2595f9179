// The engine, with operations and driven objects defined in this file:
//  * the baton: one thread holds it at a time, and its data needs no other lock;
//  * submission: every queued operation is started once, with the baton held, in its thread's
//    order, at the latest when the baton is released;
//  * waiting ends when the operation completes, whichever thread completes it, or at the deadline;
//    another operation does not end it;
//  * when the waiter that watches the descriptors leaves, another waiter replaces it;
//  * timers: those of driven objects and of the sweep end a sleep in time, even if moved earlier
//    while a thread sleeps;
//  * a doorbell, or a descriptor in the poller, makes a sleeping thread make progress;
//  * wake-ups that were arranged for a sleep are cancelled before another thread begins work;
//  * in thread mode everything progresses while no thread of the caller waits;
//  * ends() and arrivals() change with every end and arrival.
#include "src/core/progress/engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "src/core/progress/communicator_base.h"

namespace hetcomm {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kLong = 30'000 * kMs;  // only a failing test waits this long

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

class FakeCore final : public OperationEntry, public Sweeper, public EngineDriven {
 public:
  void start(Operation& operation) override {
    ++inside_;
    EXPECT_EQ(inside_.load(), 1) << "two threads in core";
    EXPECT_FALSE(armed) << "begun while wake-ups are arranged";
    started.push_back(&operation);
    --inside_;
  }
  uint64_t sweep(uint64_t now_ns) override {
    ++sweeps;
    return sweep_every_ns == 0 ? kForever : now_ns + sweep_every_ns;
  }
  int progress() override {
    ++inside_;
    EXPECT_EQ(inside_.load(), 1) << "two threads in core";
    ++passes;
    const int moved = on_progress ? on_progress() : 0;
    --inside_;
    return moved;
  }
  void tick(uint64_t now_ns) override {
    if (now_ns < timer_ns) return;
    timer_ns = kForever;
    ticked_ns = now_ns;
    if (on_timer) on_timer();
  }
  void out_of_memory() override {}
  uint64_t next_timer_ns() const override { return timer_ns; }
  bool prepare_sleep(Sleep /*sleep*/) override {
    armed = true;
    ++sleeps;
    return true;
  }
  bool may_sleep_on() const override { return sleeps_on; }
  void finish_sleep() override { armed = false; }

  // The baton guards the following members:
  std::vector<Operation*> started;
  std::function<int()> on_progress;
  std::function<void()> on_timer;
  uint64_t timer_ns = kForever;
  uint64_t ticked_ns = 0;
  uint64_t sweep_every_ns = 0;  // 0: no further sweep is needed
  bool armed = false;
  bool sleeps_on = true;
  std::atomic<uint64_t> passes{0};
  std::atomic<uint64_t> sweeps{0};
  std::atomic<uint64_t> sleeps{0};

 private:
  std::atomic<int> inside_{0};
};

// A communicator of one rank whose operations FakeCore starts.
class FakeCommunicator final : public CommunicatorBase {
 public:
  explicit FakeCommunicator(FakeCore& core) : CommunicatorBase(core, {0}, 1) { set_entry(core); }
  void end(Operation& /*operation*/, Code /*code*/, std::string_view /*why*/) override {}
  std::string awaited_text(const Operation& /*operation*/) override { return {}; }
};

class EngineTest : public ::testing::TestWithParam<bool> {
 protected:
  EngineTest() { EXPECT_TRUE(engine_.start({.thread = GetParam(), .spin_ns = 50'000}).ok()); }
  ~EngineTest() override {
    engine_.stop();
    const Engine::Baton baton(engine_);
    engine_.passes().remove(&core_);
  }
  void SetUp() override {
    const Engine::Baton baton(engine_);
    engine_.passes().add(&core_);
    ASSERT_TRUE(engine_.start_background().ok());
  }
  bool threaded() const { return GetParam(); }

  Operation* pending() {
    const Engine::Baton baton(engine_);
    Operation* operation = engine_.pool().allocate();
    operation->communicator = &communicator_;
    operation->set_state(OperationState::kPending);
    engine_.operation_started();
    return operation;
  }
  Operation* allocate(Engine& engine) {
    const Engine::Baton baton(engine);
    Operation* operation = engine.pool().allocate();
    operation->communicator = &communicator_;
    operation->set_state(OperationState::kPending);
    return operation;
  }
  // Submits |operation| as a data-path call does.
  void submit(Operation* operation) {
    if (engine_.try_lock()) {
      const Engine::Held held(engine_);
      engine_.begin_work();
      engine_.drain_queued();
      engine_.operation_started();
      core_.start(*operation);
    } else {
      engine_.baton_lock().submit(*operation);
    }
  }
  void complete(Operation* operation) {
    const Engine::Baton baton(engine_);
    engine_.operation_completed(operation);
  }
  static bool is_complete(const Operation* operation) {
    return operation->state() == OperationState::kComplete;
  }
  bool wait(Operation* operation, uint64_t timeout_ns = kLong) {
    return engine_.wait(now_ns() + timeout_ns, [&] { return is_complete(operation); });
  }
  // Waits until the number of sleeps exceeds |before|.
  void await_sleep(uint64_t before) {
    const uint64_t deadline = now_ns() + kLong;
    while (core_.sleeps.load() <= before && now_ns() < deadline) std::this_thread::yield();
    EXPECT_GT(core_.sleeps.load(), before);
  }

  // Clears |on_progress|. Call it before variables that |on_progress| refers to are destroyed,
  // because the background thread keeps running.
  void forget_progress() {
    const Engine::Baton baton(engine_);
    core_.on_progress = nullptr;
  }

  FakeCore core_;
  FakeCommunicator communicator_{core_};
  Engine engine_{core_};
};

TEST_P(EngineTest, OneThreadHoldsTheBatonAtATime) {
  uint64_t count = 0;  // guarded only by the baton
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 3000; ++k) {
        if (k % 3 == 0) {
          if (engine_.try_lock()) {
            ++count;
            engine_.unlock();
            continue;
          }
        }
        const Engine::Baton baton(engine_);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Engine::Baton baton(engine_);
  EXPECT_EQ(count, 12'000U);
}

TEST_P(EngineTest, QueuedOperationsStartOnceInOrder) {
  constexpr size_t kThreads = 3;
  constexpr size_t kEach = 2000;
  std::vector<std::vector<Operation*>> own(kThreads);
  for (std::vector<Operation*>& each : own) {
    for (size_t k = 0; k < kEach; ++k) each.push_back(allocate(engine_));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (size_t k = 0; k < kEach; ++k) {
        own[i][k]->tag = i << 32 | k;
        k % 4 == 0 ? submit(own[i][k]) : engine_.baton_lock().submit(*own[i][k]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine_.poke();
  const Engine::Baton baton(engine_);
  ASSERT_EQ(core_.started.size(), kThreads * kEach);
  std::vector<uint64_t> next(kThreads);
  for (const Operation* operation : core_.started) {
    ASSERT_EQ(operation->tag & UINT32_MAX, next[operation->tag >> 32]++);
  }
}

TEST_P(EngineTest, OperationsQueuedWhileTheBatonIsHeldStartOnRelease) {
  Operation* const operation = allocate(engine_);
  Operation* const after = allocate(engine_);
  {
    const Engine::Baton baton(engine_);
    std::thread([&] {
      engine_.baton_lock().submit(*operation);
      engine_.baton_lock().submit(*after);
    }).join();
    EXPECT_TRUE(core_.started.empty());
  }
  const Engine::Baton baton(engine_);
  EXPECT_EQ(core_.started, (std::vector<Operation*>{operation, after}));
}

TEST_P(EngineTest, WaitEndsOnlyWhenItsOwnOperationCompletes) {
  Operation* const mine = pending();
  Operation* const other = pending();
  EXPECT_FALSE(wait(mine, 2 * kMs));
  std::thread completer([&] {
    sleep_ms(20);
    complete(other);
    sleep_ms(20);
    complete(mine);
  });
  EXPECT_TRUE(wait(mine));
  EXPECT_TRUE(is_complete(mine));
  completer.join();
  EXPECT_TRUE(wait(other, 0)) << "done before the deadline is looked at";
}

TEST_P(EngineTest, WaitEndsAtItsDeadline) {
  Operation* const never = pending();
  for (const bool asleep : {false, true}) {
    const uint64_t from = now_ns();
    const auto done = [&] { return is_complete(never); };
    const uint64_t deadline = from + 20 * kMs;
    EXPECT_FALSE(asleep ? engine_.wait_asleep(deadline, done) : engine_.wait(deadline, done));
    const uint64_t took = now_ns() - from;
    EXPECT_GE(took, 20 * kMs);
    EXPECT_LT(took, kLong / 2);
  }
  complete(never);
}

// Only one waiter can watch the descriptors. The others must not be stranded when it leaves.
TEST_P(EngineTest, EveryWaiterWakesForItsOwnOperation) {
  constexpr size_t kWaiters = 6;
  for (int round = 0; round < 5; ++round) {
    std::vector<Operation*> operations;
    for (size_t i = 0; i < kWaiters; ++i) operations.push_back(pending());
    std::atomic<size_t> ended{0};
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kWaiters; ++i) {
      threads.emplace_back([&, i] {
        EXPECT_TRUE(wait(operations[i]));
        ++ended;
      });
    }
    sleep_ms(5);
    // Only progress completes the remaining operations, so some thread has to make it.
    for (size_t i = 0; i < kWaiters / 2; ++i) {
      complete(operations[i]);
      const uint64_t deadline = now_ns() + kLong;
      while (ended.load() <= i && now_ns() < deadline) std::this_thread::yield();
      ASSERT_EQ(ended.load(), i + 1);
    }
    {
      const Engine::Baton baton(engine_);
      core_.timer_ns = now_ns() + 10 * kMs;
      core_.on_timer = [&] {
        for (size_t i = kWaiters / 2; i < kWaiters; ++i) {
          engine_.operation_completed(operations[i]);
        }
      };
      engine_.timer_changed(core_.timer_ns);
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ended.load(), kWaiters);
  }
}

TEST_P(EngineTest, TimerEndsASleep) {
  Operation* const mine = pending();
  uint64_t due = 0;
  {
    const Engine::Baton baton(engine_);
    due = now_ns() + 30 * kMs;
    core_.timer_ns = due;
    core_.on_timer = [&] { engine_.operation_completed(mine); };
    engine_.timer_changed(due);
  }
  EXPECT_TRUE(engine_.wait_asleep(now_ns() + kLong, [&] { return is_complete(mine); }));
  EXPECT_GE(core_.ticked_ns, due);
  EXPECT_LT(now_ns(), due + kLong / 2);
}

TEST_P(EngineTest, TimerMovedEarlierEndsALongerSleep) {
  Operation* const mine = pending();
  {
    const Engine::Baton baton(engine_);
    core_.on_timer = [&] { engine_.operation_completed(mine); };
  }
  const uint64_t sleeps = core_.sleeps.load();
  std::thread waiter([&] {
    EXPECT_TRUE(engine_.wait_asleep(now_ns() + kLong, [&] { return is_complete(mine); }));
  });
  if (!threaded()) await_sleep(sleeps);
  sleep_ms(5);
  {
    // This avoids Baton, which always wakes the sleeper.
    engine_.lock();
    const Engine::Held held(engine_);
    core_.timer_ns = now_ns() + 10 * kMs;
    engine_.timer_changed(core_.timer_ns);
  }
  const uint64_t from = now_ns();
  waiter.join();
  EXPECT_LT(now_ns() - from, kLong / 2);
}

TEST_P(EngineTest, SweepRunsWhenItIsDue) {
  Operation* const never = pending();
  uint64_t before = 0;
  {
    const Engine::Baton baton(engine_);
    before = core_.sweeps.load();
    engine_.timer_changed(now_ns() + 10 * kMs);
  }
  EXPECT_FALSE(engine_.wait_asleep(now_ns() + 60 * kMs, [&] { return is_complete(never); }));
  EXPECT_GT(core_.sweeps.load(), before);
  // The core has reported that it needs no further sweep.
  const uint64_t after = core_.sweeps.load();
  EXPECT_FALSE(engine_.wait_asleep(now_ns() + 30 * kMs, [&] { return is_complete(never); }));
  EXPECT_EQ(core_.sweeps.load(), after);
  {
    const Engine::Baton baton(engine_);
    core_.sweep_every_ns = 5 * kMs;
    engine_.sweep_soon();
  }
  // Now the core reports when it wants its next sweep.
  EXPECT_TRUE(
      engine_.wait_asleep(now_ns() + kLong, [&] { return core_.sweeps.load() >= after + 3; }));
  complete(never);
}

TEST_P(EngineTest, DoorbellWakesASleeperToMakeProgress) {
  Operation* const mine = pending();
  std::atomic<bool> there{false};
  {
    const Engine::Baton baton(engine_);
    core_.on_progress = [&] {
      if (!there.exchange(false)) return 0;
      engine_.operation_completed(mine);
      return 1;
    };
  }
  const uint64_t sleeps = core_.sleeps.load();
  std::thread waiter([&] {
    EXPECT_TRUE(engine_.wait_asleep(now_ns() + kLong, [&] { return is_complete(mine); }));
  });
  if (!threaded()) await_sleep(sleeps);
  sleep_ms(10);
  there = true;
  const uint64_t one = 1;
  ASSERT_EQ(::write(engine_.doorbell(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  const uint64_t from = now_ns();
  waiter.join();
  EXPECT_LT(now_ns() - from, kLong / 2);
  forget_progress();
}

class Arrival final : public Watcher {
 public:
  explicit Arrival(std::function<void()> then) : then_(std::move(then)) {}
  void on_events(uint32_t /*events*/) override { then_(); }

 private:
  std::function<void()> then_;
};

TEST_P(EngineTest, ReadableDescriptorEndsASleep) {
  Operation* const mine = pending();
  const UniqueFd fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  Arrival arrival([&] {
    uint64_t count = 0;
    if (::read(fd.get(), &count, sizeof(count)) > 0) engine_.operation_completed(mine);
  });
  {
    const Engine::Baton baton(engine_);
    ASSERT_TRUE(engine_.poller().add(fd.get(), EPOLLIN, arrival).ok());
  }
  std::thread writer([&] {
    sleep_ms(30);
    const uint64_t one = 1;
    ASSERT_EQ(::write(fd.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  });
  EXPECT_TRUE(engine_.wait_asleep(now_ns() + kLong, [&] { return is_complete(mine); }));
  writer.join();
  const Engine::Baton baton(engine_);
  engine_.poller().remove(fd.get(), arrival);
}

// FakeCore::start() checks that the wake-ups were cancelled. An operation whose work no descriptor
// announces ends the sleep, so that some thread polls for it.
TEST_P(EngineTest, OperationStartedDuringASleepIsPolled) {
  Operation* const mine = pending();
  Operation* const begun = allocate(engine_);
  {
    const Engine::Baton baton(engine_);
    core_.on_progress = [&] {
      if (core_.started.empty() || is_complete(mine)) return 0;
      engine_.operation_completed(mine);
      return 1;
    };
  }
  const uint64_t sleeps = core_.sleeps.load();
  std::thread waiter([&] {
    EXPECT_TRUE(engine_.wait_asleep(now_ns() + kLong, [&] { return is_complete(mine); }));
  });
  if (!threaded()) await_sleep(sleeps);
  sleep_ms(5);
  {
    // These calls start the operation without begin_work().
    engine_.lock();
    const Engine::Held held(engine_);
    core_.sleeps_on = false;
    engine_.operation_started();
    core_.armed = false;  // start()'s check does not apply here
    core_.start(*begun);
    engine_.operation_was_started();
  }
  const uint64_t from = now_ns();
  waiter.join();
  EXPECT_LT(now_ns() - from, kLong / 2);
  forget_progress();
}

TEST_P(EngineTest, CompletionsAndArrivalsAreCounted) {
  const uint64_t ends = engine_.ends();
  const uint64_t arrivals = engine_.arrivals();
  Operation* const mine = pending();
  EXPECT_EQ(engine_.ends(), ends);
  complete(mine);
  EXPECT_EQ(engine_.ends(), ends + 1);
  const Engine::Baton baton(engine_);
  engine_.request_released();
  EXPECT_EQ(engine_.ends(), ends + 2);
  EXPECT_EQ(engine_.arrivals(), arrivals);
  engine_.note_arrival();
  EXPECT_EQ(engine_.arrivals(), arrivals + 1);
}

TEST_P(EngineTest, BackgroundThreadMakesProgressWithoutWaiters) {
  if (!threaded()) GTEST_SKIP() << "there is no background thread in caller mode";
  Operation* const mine = pending();
  Operation* const queued = allocate(engine_);
  {
    const Engine::Baton baton(engine_);
    core_.timer_ns = now_ns() + 5 * kMs;
    core_.on_timer = [&] { engine_.operation_completed(mine); };
    engine_.timer_changed(core_.timer_ns);
  }
  engine_.baton_lock().submit(*queued);
  const uint64_t deadline = now_ns() + kLong;
  while (!is_complete(mine) && now_ns() < deadline) sleep_ms(1);
  EXPECT_TRUE(is_complete(mine));
  const Engine::Baton baton(engine_);
  EXPECT_EQ(core_.started, std::vector<Operation*>{queued});
}

TEST_P(EngineTest, CallerModeMakesNoProgressWithoutCalls) {
  if (threaded()) GTEST_SKIP() << "the background thread drives";
  const uint64_t passes = core_.passes.load();
  sleep_ms(20);
  EXPECT_EQ(core_.passes.load(), passes);
  engine_.poke();
  EXPECT_EQ(core_.passes.load(), passes + 1);
}

INSTANTIATE_TEST_SUITE_P(In, EngineTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "thread" : "caller"; });

}  // namespace
}  // namespace hetcomm
