// Device calls that may wait for users' streams:
//
//   * they are made immediately while nothing is held back
//   * during a hold they are deferred, and made in order once it has ended
//   * no hold begins during such a call
//   * if more events wait than allowed, a separate thread releases the oldest
//   * deferred calls for a stream are made before the stream is destroyed; all are made at the end
//   * pinned memory stays pinned until the last device has released it
#include "src/core/device/waiting_calls.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "devices/registry.h"
#include "src/core/device/memory.h"
#include "src/core/device/pinned_memory.h"

namespace hetcomm {
namespace {

std::mutex mutex;
std::vector<std::string> made;  // guarded by |mutex|
std::atomic<bool> releases_wait{false};
void* pinned = nullptr;

void note(const std::string& what) {
  const std::lock_guard lock(mutex);
  made.push_back(what);
}
std::vector<std::string> take_made() {
  const std::lock_guard lock(mutex);
  return std::exchange(made, {});
}

Device make_device(const char* name) {
  static DeviceTable tables[2];
  const Device device = create_sim_device("sim-handle", "memory=16M").value();
  const bool first = std::string(name) == "one";
  DeviceTable& table = tables[first ? 0 : 1];
  table = *device.table;
  table.event_release = [](void*, void* event) {
    while (releases_wait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    note("event " + std::to_string(reinterpret_cast<uintptr_t>(event)));
  };
  table.pin_host = [](void*, void* host, uint64_t) {
    pinned = host;
    return hetcomm_status_t{HETCOMM_OK};
  };
  if (first) {
    table.unpin_host = [](void*, void* host) {
      static_cast<std::byte*>(host)[0] = std::byte{1};  // the memory is valid
      note("unpin one");
    };
  } else {
    table.unpin_host = [](void*, void* host) {
      static_cast<std::byte*>(host)[0] = std::byte{1};
      note("unpin two");
    };
  }
  return {&table, device.instance};
}

class WaitingCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    releases_wait = false;
    static_cast<void>(take_made());
    ASSERT_TRUE(devices_.add(create_host_device().value()).ok());
    ASSERT_TRUE(devices_.add(make_device("one")).ok());
    ASSERT_TRUE(devices_.add(make_device("two")).ok());
  }
  void release(uintptr_t event, const void* owner = nullptr) {
    devices_.calls().release_event(devices_.device(1), reinterpret_cast<void*>(event), owner);
  }
  void begin_hold() {
    const std::lock_guard lock(devices_.calls().holding());
    devices_.calls().add_hold();
  }
  DeviceSet devices_;
};

TEST_F(WaitingCallsTest, CallsAreDeferredDuringAHold) {
  WaitingCalls& calls = devices_.calls();
  calls.expect_holds();
  release(1);
  EXPECT_EQ(take_made(), std::vector<std::string>{"event 1"});
  begin_hold();
  release(2);
  release(3);
  EXPECT_FALSE(calls.may_make());
  EXPECT_EQ(calls.make_put_off(), 0);
  EXPECT_TRUE(take_made().empty());
  begin_hold();
  calls.drop_hold();
  EXPECT_FALSE(calls.may_make());
  calls.drop_hold();
  EXPECT_TRUE(calls.may_make());
  EXPECT_EQ(calls.make_put_off(), 2);
  EXPECT_EQ(take_made(), (std::vector<std::string>{"event 2", "event 3"}));
  EXPECT_FALSE(calls.may_make());
}

// Another thread is about to begin a hold.
TEST_F(WaitingCallsTest, CallsAreDeferredWhileAHoldBegins) {
  WaitingCalls& calls = devices_.calls();
  calls.expect_holds();
  {
    const std::lock_guard lock(calls.holding());
    std::thread([&] { release(1); }).join();
    EXPECT_TRUE(take_made().empty());
  }
  EXPECT_EQ(calls.make_put_off(), 1);
}

TEST_F(WaitingCallsTest, NoHoldBeginsDuringACall) {
  const NoHolds none(devices_.calls());
  ASSERT_TRUE(static_cast<bool>(none));
  bool begins = true;
  std::thread([&] { begins = devices_.calls().holding().try_lock(); }).join();
  EXPECT_FALSE(begins);
}

TEST_F(WaitingCallsTest, ThreadReleasesTheOldestEventsBeyondTheLimit) {
  WaitingCalls& calls = devices_.calls();
  calls.expect_holds();
  begin_hold();
  releases_wait = true;
  for (uintptr_t i = 0; i < WaitingCalls::kMaxEvents + 100; ++i) release(i + 1);
  EXPECT_TRUE(take_made().empty());
  releases_wait = false;
  std::vector<std::string> released;
  for (int i = 0; i < 2000 && released.size() < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (std::string& each : take_made()) released.push_back(std::move(each));
  }
  ASSERT_EQ(released.size(), 100u);
  EXPECT_EQ(released.front(), "event 1");
  EXPECT_EQ(released.back(), "event 100");
  calls.drop_hold();
  int left = 0;
  while (calls.may_make()) left += calls.make_put_off();
  EXPECT_EQ(left, static_cast<int>(WaitingCalls::kMaxEvents));
}

TEST_F(WaitingCallsTest, DeferredCallsOfOneStreamCanBeMadeDuringAHold) {
  WaitingCalls& calls = devices_.calls();
  calls.expect_holds();
  begin_hold();
  const int stream = 0;
  release(1, &stream);
  release(2);
  release(3, &stream);
  calls.make_all_of(&stream);
  EXPECT_EQ(take_made(), (std::vector<std::string>{"event 1", "event 3"}));
  calls.make_all();
  EXPECT_EQ(take_made(), std::vector<std::string>{"event 2"});
  calls.drop_hold();
}

TEST_F(WaitingCallsTest, PinnedMemoryStaysUntilDeferredUnpinsAreMade) {
  WaitingCalls& calls = devices_.calls();
  calls.expect_holds();
  PinnedMemory memory;
  bool pins = true;
  ASSERT_TRUE(memory.allocate_unless_held(devices_, nullptr, 1 << 20, kAnyNumaNode, &pins));
  ASSERT_TRUE(pins && memory.is_pinned());
  begin_hold();
  PinnedMemory other;
  ASSERT_TRUE(other.allocate_unless_held(devices_, nullptr, 1 << 20, kAnyNumaNode, &pins));
  EXPECT_FALSE(pins);
  memory = PinnedMemory();
  EXPECT_TRUE(take_made().empty());
  static_cast<std::byte*>(pinned)[4096] = std::byte{1};
  calls.drop_hold();
  EXPECT_EQ(calls.make_put_off(), 2);
  EXPECT_EQ(take_made(), (std::vector<std::string>{"unpin one", "unpin two"}));
}

}  // namespace
}  // namespace hetcomm
