// The loops of one-sided operations, run by two threads that copy within one address space. Every
// test ends, counts its operations, and finds no wrong byte. If a byte or an addition is lost,
// --check reports it.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "bench/loops/run.h"

namespace bench {
namespace {

class Backend;

// State that the two threads share.
struct Between {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<double> words[2];  // words sent to each rank
  int notifications[2] = {0, 0};
  Backend* backends[2] = {nullptr, nullptr};
  bool loses = false;
};

class Backend : public HostBuffers {
 public:
  static constexpr bool kOneSided = true;
  static constexpr bool kNotifies = true;

  Backend(Between& between, int rank) : between_(between), rank_(rank) {}

  int rank() const { return rank_; }
  int ranks() const { return 2; }
  std::string path() const { return "memory/direct"; }

  void expose(uint64_t bytes, int slots, Exposed exposed) {
    memory_.resize(SlotMemory::size(bytes, slots));
    previous_.resize(static_cast<size_t>(slots));
    HostBuffers::prepare(bytes, slots, exposed, memory_.data());
    between_.backends[rank_] = this;
    send_word(1 - rank_, 0);
    receive_word(1 - rank_);
  }
  void put(int slot) { start_put(slot); }
  void start_put(int slot) { copy(peer().receive_slot(slot), send_slot(slot)); }
  void start_get(int slot) { copy(receive_slot(slot), peer().send_slot(slot)); }
  void start_add(int slot) {
    auto* word = reinterpret_cast<uint64_t*>(peer().receive_slot(slot));
    const uint64_t addend = between_.loses && ++adds_ % 5 == 0 ? 0 : 1;
    previous_[static_cast<size_t>(slot)] = __atomic_fetch_add(word, addend, __ATOMIC_ACQ_REL);
  }
  uint64_t previous(int slot) const { return previous_[static_cast<size_t>(slot)]; }
  void start_notified_put(int slot) {
    start_put(slot);
    change([&] { ++between_.notifications[1 - rank_]; });
  }
  void take_notification() {
    wait_for([&] { return between_.notifications[rank_] > 0; },
             [&] { --between_.notifications[rank_]; });
  }
  void reap() {}
  void finish() {}
  void progress() { std::this_thread::yield(); }

  void send_word(int to, double value) {
    change([&] { between_.words[to].push_back(value); });
  }
  double receive_word(int /*from*/) {
    double value = 0;
    wait_for([&] { return !between_.words[rank_].empty(); },
             [&] {
               value = between_.words[rank_].front();
               between_.words[rank_].pop_front();
             });
    return value;
  }

  // Other tests cover messages.
  void prepare(uint64_t, int) {}
  void send(int, int) {}
  void receive(int, int) {}
  void start_send(int, int) {}
  void start_receive(int, int) {}
  void wait_all() {}

 private:
  Backend& peer() const { return *between_.backends[1 - rank_]; }

  // The last byte is copied last, because a target may be watching it.
  void copy(uint8_t* to, const uint8_t* from) const {
    for (uint64_t i = 0; i < bytes(); ++i) {
      if (between_.loses && i == 2) continue;
      __atomic_store_n(to + i, from[i], __ATOMIC_RELEASE);
    }
  }
  template <class Change>
  void change(Change what) {
    const std::lock_guard lock(between_.mutex);
    what();
    between_.changed.notify_all();
  }
  template <class Condition, class Change>
  void wait_for(Condition condition, Change what) {
    std::unique_lock lock(between_.mutex);
    between_.changed.wait(lock, condition);
    what();
  }

  Between& between_;
  int rank_;
  std::vector<uint8_t> memory_;
  std::vector<uint64_t> previous_;
  uint64_t adds_ = 0;
};

std::vector<Measurement> measure(const std::string& test, bool loses) {
  Workload workload;
  workload.test = test;
  workload.iterations = 8;
  workload.check = true;
  workload.points = {{test.compare(0, 10, "fetch_add_") == 0 ? 8U : 100U, 4}, {8, 2}};
  Between between;
  between.loses = loses;
  std::vector<Measurement> measurements;
  const auto run = [&](int rank) {
    Backend backend(between, rank);
    run_workload(backend, workload,
                 [&](const Measurement& measured) { measurements.push_back(measured); });
    // The other rank may still read this rank's memory.
    backend.send_word(1 - rank, 0);
    backend.receive_word(1 - rank);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return measurements;
}

class OneSidedLoop : public ::testing::TestWithParam<const char*> {};

TEST_P(OneSidedLoop, CountsOperationsAndFindsNoWrongBytes) {
  const std::vector<Measurement> measurements = measure(GetParam(), false);
  ASSERT_EQ(measurements.size(), 2U);
  for (const Measurement& measured : measurements) {
    EXPECT_EQ(measured.wrong, 0);
    EXPECT_EQ(measured.iterations, 8);
    EXPECT_EQ(measured.point.window == 1, is_latency(GetParam()));
    EXPECT_GT(measured.total_us, 0);
    EXPECT_LE(measured.min_us, measured.max_us);
    EXPECT_EQ(measured.path, "memory/direct");
  }
}

TEST_P(OneSidedLoop, ReportsLostBytesAndAdditions) {
  const std::vector<Measurement> measurements = measure(GetParam(), true);
  ASSERT_EQ(measurements.size(), 2U);
  EXPECT_GT(measurements[0].wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(All, OneSidedLoop,
                         ::testing::Values("put_latency", "put_bandwidth", "put_notify_latency",
                                           "put_notify_bandwidth", "get_latency", "get_bandwidth",
                                           "fetch_add_latency", "fetch_add_rate"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace bench
