// Streams on simulated devices: copies take at least the time that the options specify. Streams
// share a direction's bandwidth and overlap otherwise. Waiting costs no processor time. Events
// outlive their streams. No copy is lost when a stream or the device is destroyed.
//
// Lower time limits always hold. Upper limits are what an idle machine reaches; a loaded machine
// gets several attempts.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "src/system/clock.h"
#include "tests/unit/device/fixture.h"

namespace hetcomm {
namespace {

constexpr double kLow = 0.98;
#if defined(HETCOMM_TSAN) || defined(HETCOMM_ASAN)
constexpr double kHigh = 10;  // the copies themselves are slow
#else
constexpr double kHigh = 1.05;
#endif
constexpr uint64_t kPatienceNs = 10'000'000'000;

uint64_t process_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

size_t threads() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

// Runs |work| repeatedly until it takes about |expected_ns|. It must never take clearly less.
void expect_time(uint64_t expected_ns, const std::function<void()>& work) {
  const auto expected = static_cast<double>(expected_ns);
  const uint64_t deadline = now_ns() + kPatienceNs;
  double best = 1e30;
  while (best > expected * kHigh && now_ns() < deadline) {
    const uint64_t start = now_ns();
    work();
    const auto took = static_cast<double>(now_ns() - start);
    ASSERT_GE(took, expected * kLow);
    best = std::min(best, took);
  }
  EXPECT_LE(best, expected * kHigh);
}

class Copies {
 public:
  Copies(const char* options, size_t size)
      : device_("sim-address", options), host_(size), memory_(device_.allocate(size)) {
    // Touches the memory once, so that no measurement includes page faults.
    void* const stream = device_.stream();
    write(stream, size);
    device_.destroy_stream(stream);
  }

  TestDevice& device() { return device_; }
  void write(void* stream, size_t size) {
    ASSERT_EQ(device_.write(stream, memory_, 0, host_.data(), size), HETCOMM_OK);
  }
  void read(void* stream, size_t size) {
    ASSERT_EQ(device_.read(stream, host_.data(), memory_, 0, size), HETCOMM_OK);
  }

 private:
  TestDevice device_;
  std::vector<std::byte> host_;
  void* memory_;
};

TEST(TimedSimStream, CopyTimeRespectsTheBandwidth) {
  const struct {
    const char* options;
    double bytes_per_s;
    size_t size;
    int count;
  } cases[] = {
      {"bandwidth=256M", 256.0 * (1 << 20), 64 << 10, 40},
      {"bandwidth=1G", 1024.0 * (1 << 20), 64 << 10, 100},
      {"bandwidth=1G", 1024.0 * (1 << 20), 10 << 20, 1},
      {"bandwidth=512M", 512.0 * (1 << 20), 3 << 20, 2},
  };
  for (const auto& tested : cases) {
    SCOPED_TRACE(tested.options);
    Copies copies(tested.options, tested.size);
    void* const stream = copies.device().stream();
    const double seconds = static_cast<double>(tested.size) * tested.count / tested.bytes_per_s;
    for (const bool to_device : {true, false}) {
      expect_time(static_cast<uint64_t>(seconds * 1e9), [&] {
        for (int i = 0; i < tested.count; ++i) {
          to_device ? copies.write(stream, tested.size) : copies.read(stream, tested.size);
        }
        copies.device().finish(stream);
      });
    }
  }
}

TEST(TimedSimStream, LatencyAppliesToEveryCopy) {
  Copies copies("latency=500us", 16);
  void* const stream = copies.device().stream();
  expect_time(20 * 500'000, [&] {
    for (int i = 0; i < 20; ++i) copies.write(stream, 16);
    copies.device().finish(stream);
  });
}

TEST(TimedSimStream, CopiesInBothDirectionsOverlap) {
  Copies copies("bandwidth=512M", 8 << 20);
  void* const up = copies.device().stream();
  void* const down = copies.device().stream();
  std::vector<std::byte> apart(8 << 20);
  void* const memory = copies.device().allocate(apart.size());
  ASSERT_EQ(copies.device().write(up, memory, 0, apart.data(), apart.size()), HETCOMM_OK);
  copies.device().finish(up);
  expect_time(8'000'000'000 / 512, [&] {
    copies.write(up, 8 << 20);
    ASSERT_EQ(copies.device().read(down, apart.data(), memory, 0, apart.size()), HETCOMM_OK);
    copies.device().finish(up);
    copies.device().finish(down);
  });
}

TEST(TimedSimStream, LatenciesOfTwoStreamsOverlap) {
  Copies copies("latency=2ms", 16);
  void* const one = copies.device().stream();
  void* const two = copies.device().stream();
  expect_time(5 * 2'000'000, [&] {
    for (int i = 0; i < 5; ++i) copies.read(one, 16);
    for (int i = 0; i < 5; ++i) copies.write(two, 0);  // nothing moves, so nothing races
    copies.device().finish(one);
    copies.device().finish(two);
  });
}

// Each direction has one bandwidth, and a large copy leaves a share of it to a small one.
TEST(TimedSimStream, StreamsShareTheBandwidthOfADirection) {
  constexpr size_t kLarge = 16 << 20;
  constexpr size_t kSmall = 1 << 20;
  Copies copies("bandwidth=512M", kLarge);
  std::vector<std::byte> apart(kSmall);
  void* const memory = copies.device().allocate(kSmall);
  void* const one = copies.device().stream();
  void* const two = copies.device().stream();
  const uint64_t deadline = now_ns() + kPatienceNs;
  double small_share = 1;
  while (small_share > 0.4 && now_ns() < deadline) {
    const uint64_t start = now_ns();
    copies.write(one, kLarge);
    ASSERT_EQ(copies.device().write(two, memory, 0, apart.data(), kSmall), HETCOMM_OK);
    copies.device().finish(two);
    const auto small = static_cast<double>(now_ns() - start);
    copies.device().finish(one);
    const auto whole = static_cast<double>(now_ns() - start);
    ASSERT_GE(whole, 17e9 / 512 * kLow);
    small_share = std::min(small_share, small / whole);
  }
  EXPECT_LE(small_share, 0.4);  // would be 1 if it came after the large copy
}

TEST(TimedSimStream, WaitingCostsLittleProcessorTime) {
  Copies copies("bandwidth=64M:latency=50ms", 1 << 20);
  void* const stream = copies.device().stream();
  const uint64_t deadline = now_ns() + kPatienceNs;
  double best = 1;
  while (best > 0.2 && now_ns() < deadline) {
    const uint64_t start = now_ns();
    const uint64_t cpu_start = process_cpu_ns();
    copies.write(stream, 1 << 20);
    copies.device().finish(stream);
    best = std::min(best, static_cast<double>(process_cpu_ns() - cpu_start) /
                              static_cast<double>(now_ns() - start));
  }
  EXPECT_LE(best, 0.2);
}

TEST(TimedSimStream, IdleStreamsUseLittleProcessorTime) {
  TestDevice device("sim-handle");
  std::vector<void*> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(device.stream());
  const uint64_t cpu_start = process_cpu_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LT(process_cpu_ns() - cpu_start, 50'000'000u);
}

TEST(SimStream, EventIsPendingUntilItsCopiesAreDone) {
  Copies copies("latency=300ms", 16);
  void* const stream = copies.device().stream();
  void* const before = copies.device().record(stream);
  EXPECT_EQ(copies.device().query(before), HETCOMM_OK);
  copies.write(stream, 16);
  void* const first = copies.device().record(stream);
  copies.write(stream, 16);
  void* const second = copies.device().record(stream);
  EXPECT_EQ(copies.device().query(second), HETCOMM_PENDING);
  const DeviceTable& table = copies.device().table();
  EXPECT_EQ(table.event_wait(copies.device().instance(), first), HETCOMM_OK);
  EXPECT_EQ(copies.device().query(first), HETCOMM_OK);
  EXPECT_EQ(table.event_wait(copies.device().instance(), second), HETCOMM_OK);
  for (void* const event : {before, first, second}) {
    table.event_release(copies.device().instance(), event);
    table.event_release(copies.device().instance(), event);  // once too often
  }
  EXPECT_EQ(copies.device().query(first), HETCOMM_STALE_HANDLE);
}

TEST(SimStream, EventOutlivesItsStream) {
  Copies copies("latency=5ms", 16);
  void* const stream = copies.device().stream();
  copies.write(stream, 16);
  void* const event = copies.device().record(stream);
  copies.device().destroy_stream(stream);
  EXPECT_EQ(copies.device().query(event), HETCOMM_OK);
  EXPECT_EQ(copies.device().table().event_wait(copies.device().instance(), event), HETCOMM_OK);
  copies.device().table().event_release(copies.device().instance(), event);
}

TEST(SimStream, DestroyingAStreamWaitsForItsCopies) {
  TestDevice device("sim-handle", "latency=20ms");
  void* const stream = device.stream();
  void* const memory = device.allocate(1000);
  const std::vector<std::byte> sent = random_bytes(1000, 4);
  std::vector<std::byte> received(1000);
  const uint64_t start = now_ns();
  ASSERT_EQ(device.write(stream, memory, 0, sent.data(), 1000), HETCOMM_OK);
  ASSERT_EQ(device.read(stream, received.data(), memory, 0, 1000), HETCOMM_OK);
  device.destroy_stream(stream);
  EXPECT_GE(now_ns() - start, 35'000'000u);
  EXPECT_EQ(received, sent);
}

// Some vendors copy such memory through a staging buffer.
TEST(SimStream, UnpinnedHostMemoryIsReadDuringTheCall) {
  for (const bool pinned : {false, true}) {
    TestDevice device("sim-handle", "latency=20ms");
    const DeviceTable& table = device.table();
    void* const stream = device.stream();
    void* const memory = device.allocate(1000);
    std::vector<std::byte> host(1000, std::byte{1});
    if (pinned) {
      ASSERT_EQ(table.pin_host(device.instance(), host.data(), 1000), HETCOMM_OK);
    }
    ASSERT_EQ(device.write(stream, memory, 0, host.data(), 1000), HETCOMM_OK);
    device.finish(stream);
    host.assign(1000, std::byte{2});
    // The stream is busy until both copies below have been submitted.
    const std::byte other{3};
    ASSERT_EQ(device.write(stream, device.allocate(1), 0, &other, 1), HETCOMM_OK);
    ASSERT_EQ(device.read(stream, host.data(), memory, 0, 1000), HETCOMM_OK);
    ASSERT_EQ(device.write(stream, memory, 0, host.data(), 1000), HETCOMM_OK);
    device.finish(stream);
    ASSERT_EQ(device.read(stream, host.data(), memory, 0, 1000), HETCOMM_OK);
    device.finish(stream);
    EXPECT_EQ(host, std::vector<std::byte>(1000, pinned ? std::byte{1} : std::byte{2}));
    if (pinned) table.unpin_host(device.instance(), host.data());
  }
}

TEST(SimStream, DestroyingTheDeviceEndsItsThreads) {
  const size_t before = threads();
  for (int round = 0; round < 20; ++round) {
    TestDevice device("sim-address", "latency=1ms");
    void* const memory = device.allocate(64);
    std::vector<std::byte> host(64);
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_EQ(device.write(device.stream(), memory, i * 16, host.data(), 16), HETCOMM_OK);
    }
    EXPECT_EQ(threads(), before + 4);
    device.destroy();
    // A joined thread may remain listed for a moment.
    for (int i = 0; i < 1000 && threads() != before; ++i) std::this_thread::yield();
  }
  EXPECT_EQ(threads(), before);
}

TEST(SimStream, DestroyingAForeignStreamDoesNothing) {
  TestDevice device("sim-handle");
  TestDevice other("sim-handle");
  void* const stream = other.stream();
  device.destroy_stream(stream);
  other.finish(stream);
}

// Submits more copies than the queue's initial size while the worker is held up.
TEST(SimStream, LongQueueKeepsItsOrder) {
  TestDevice device("sim-address", "latency=1us");
  void* const stream = device.stream();
  void* const memory = device.allocate(sizeof(uint32_t));
  constexpr uint32_t kCount = 1000;
  std::vector<uint32_t> values(kCount);
  std::vector<uint32_t> seen(kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    values[i] = i;
    ASSERT_EQ(device.write(stream, memory, 0, &values[i], sizeof(uint32_t)), HETCOMM_OK);
    ASSERT_EQ(device.read(stream, &seen[i], memory, 0, sizeof(uint32_t)), HETCOMM_OK);
  }
  device.finish(stream);
  EXPECT_EQ(seen, values);
}

TEST(SimStream, SeveralThreadsMayShareAStream) {
  TestDevice device("sim-handle");
  void* const stream = device.stream();
  std::atomic<int> wrong{0};
  std::vector<std::thread> workers;
  for (unsigned id = 0; id < 4; ++id) {
    workers.emplace_back([&, id] {
      void* const memory = device.allocate(256);
      for (unsigned round = 0; round < 100; ++round) {
        const std::vector<std::byte> sent = random_bytes(256, id * 1000 + round);
        std::vector<std::byte> received(256);
        EXPECT_EQ(device.write(stream, memory, 0, sent.data(), 256), HETCOMM_OK);
        EXPECT_EQ(device.read(stream, received.data(), memory, 0, 256), HETCOMM_OK);
        void* const event = device.record(stream);
        if (round % 2 == 0) {
          while (device.query(event) == HETCOMM_PENDING) std::this_thread::yield();
        } else {
          EXPECT_EQ(device.table().event_wait(device.instance(), event), HETCOMM_OK);
        }
        device.table().event_release(device.instance(), event);
        wrong += received != sent;
      }
      device.free(memory);
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace hetcomm
