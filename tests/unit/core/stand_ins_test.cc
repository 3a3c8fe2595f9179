// Host memory that substitutes for device memory:
//
//   * it is pinned once, and reused for operations of about the same size
//   * no more memory is kept than the limit allows
//   * while a user's stream is held back nothing is pinned or unpinned: pageable memory is used
//     instead, and freed as soon as possible
//   * a vendor that cannot pin causes no failure; kept memory is freed first
#include "src/core/device/stand_ins.h"

#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "devices/registry.h"

namespace hetcomm {
namespace {

constexpr uint64_t kKi = 1024;
constexpr uint64_t kMi = 1024 * kKi;
constexpr uint64_t kMaxKept = 4 * kMi;

// Currently pinned addresses, and the number of pins so far.
std::set<void*> pinned;
int pins = 0;
int attempts = 0;
bool pinning_fails = false;
size_t most_pins = SIZE_MAX;

Device make_device() {
  static DeviceTable table;
  const Device device = create_sim_device("sim-address", "memory=16M").value();
  table = *device.table;
  table.allocate_host = nullptr;
  table.free_host = nullptr;
  table.pin_host = [](void*, void* host, uint64_t) {
    ++attempts;
    if (pinning_fails || pinned.size() == most_pins) {
      return hetcomm_status_t{HETCOMM_OUT_OF_RESOURCES};
    }
    EXPECT_TRUE(pinned.insert(host).second);
    ++pins;
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.unpin_host = [](void*, void* host) { EXPECT_EQ(pinned.erase(host), 1u); };
  return {&table, device.instance};
}

class StandInsTest : public testing::Test {
 protected:
  void SetUp() override {
    pinned.clear();
    pins = attempts = 0;
    pinning_fails = false;
    most_pins = SIZE_MAX;
    ASSERT_TRUE(devices_.add(create_host_device().value()).ok());
    ASSERT_TRUE(devices_.add(make_device()).ok());
  }

  // Writes to every page, so that missing memory shows.
  StandIns::Memory take(uint64_t size) {
    StandIns::Memory memory = stand_ins_.take(size, kKind);
    EXPECT_TRUE(static_cast<bool>(memory));
    for (uint64_t at = 0; at < size; at += 4 * kKi) memory.get()[at] = std::byte{1};
    memory.get()[size - 1] = std::byte{1};
    return memory;
  }
  bool is_pinned(const StandIns::Memory& memory) { return pinned.count(memory.get()) == 1; }

  static constexpr StandIns::BlockKind kKind{
      .node = kAnyNumaNode, .allocator = nullptr, .pins = true};
  DeviceSet devices_;
  StandIns stand_ins_{devices_, kMaxKept};
};

TEST_F(StandInsTest, PinnedMemoryIsReusedForSimilarSizes) {
  std::byte* const first = take(kMi).get();
  for (const uint64_t size : {kMi, kMi - 1, kMi - 60 * kKi, 600 * kKi}) {
    StandIns::Memory memory = take(size);
    EXPECT_EQ(memory.get(), first) << size;
    EXPECT_TRUE(is_pinned(memory));
  }
  EXPECT_EQ(pins, 1);
  // Requests sizes too short, much too long, and twice at once:
  take(2 * kMi);
  take(100 * kKi);
  EXPECT_EQ(pins, 3);
  StandIns::Memory one = take(kMi);
  StandIns::Memory other = take(kMi);
  EXPECT_NE(one.get(), other.get());
  EXPECT_EQ(pins, 3);  // the longer memory is reused
  StandIns::Memory third = take(kMi);
  EXPECT_EQ(pins, 4);
}

TEST_F(StandInsTest, MemoryOfAnotherKindIsNotReused) {
  std::byte* const first = take(kMi).get();
  StandIns::Memory plain = stand_ins_.take(kMi, {});
  EXPECT_NE(plain.get(), first);
  EXPECT_FALSE(is_pinned(plain));
}

TEST_F(StandInsTest, KeptMemoryIsLimitedExceptForTwoLargeBlocks) {
  {
    std::vector<StandIns::Memory> many;
    for (int i = 0; i < 10; ++i) many.push_back(take(kMi));
    EXPECT_EQ(pinned.size(), 10u);
  }
  EXPECT_EQ(pinned.size(), kMaxKept / kMi);
  // Two memories larger than the limit are kept.
  std::set<std::byte*> large;
  for (int round = 0; round < 3; ++round) {
    StandIns::Memory one = take(3 * kMaxKept);
    StandIns::Memory other = take(3 * kMaxKept);
    large.insert({one.get(), other.get()});
  }
  EXPECT_EQ(large.size(), 2u);
  EXPECT_EQ(pinned.size(), 2u);
}

TEST_F(StandInsTest, NothingIsPinnedWhileAStreamIsHeldBack) {
  std::vector<StandIns::Memory> many;
  for (int i = 0; i < 9; ++i) many.push_back(take(kMi));
  const int before = pins;
  const size_t there = pinned.size();
  devices_.calls().add_hold();
  std::byte* second = nullptr;
  {
    StandIns::Memory pageable = take(2 * kMi);
    EXPECT_FALSE(is_pinned(pageable));
    second = pageable.get();
  }
  EXPECT_EQ(take(2 * kMi).get(), second);
  many.clear();
  EXPECT_EQ(pins, before);
  EXPECT_EQ(pinned.size(), there);
  devices_.calls().drop_hold();
  // Memory may be pinned again, and the excess is freed.
  EXPECT_TRUE(is_pinned(take(2 * kMi)));
  EXPECT_LE(pinned.size(), kMaxKept / kMi + 1);
}

TEST_F(StandInsTest, PageableMemoryIsUsedIfPinningFails) {
  pinning_fails = true;
  std::byte* const first = take(kMi).get();
  EXPECT_EQ(attempts, 1);
  EXPECT_EQ(take(kMi).get(), first);
  EXPECT_EQ(attempts, 1);
  EXPECT_EQ(pins, 0);
}

TEST_F(StandInsTest, KeptMemoryIsFreedIfPinningFails) {
  most_pins = 2;
  take(kMi);
  take(3 * kMi);
  EXPECT_EQ(pinned.size(), 2u);
  StandIns::Memory other = take(100 * kKi);
  EXPECT_TRUE(is_pinned(other));
  EXPECT_EQ(pinned.size(), 1u);
}

TEST_F(StandInsTest, ImpossibleSizeIsRefused) {
  EXPECT_FALSE(static_cast<bool>(stand_ins_.take(UINT64_MAX, kKind)));
  take(kMi);
}

}  // namespace
}  // namespace hetcomm
