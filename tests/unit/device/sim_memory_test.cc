// Memory on simulated devices: the CPU cannot access it through its handle or address. Ranges are
// checked, stale and foreign names are refused, capacity is limited, freed space is reused, and
// pins are counted. Network interfaces receive the location of the bytes.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "devices/sim/device.h"
#include "tests/unit/device/fixture.h"

namespace hetcomm {
namespace {

uint64_t number(const void* name) { return reinterpret_cast<uintptr_t>(name); }
void* plus(void* name, uint64_t offset) { return reinterpret_cast<void*>(number(name) + offset); }

class EverySim : public testing::TestWithParam<std::string> {};

TEST_P(EverySim, CpuAccessToDeviceMemoryCrashes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TestDevice device(GetParam());
  void* const memory = device.allocate(4096);
  // The pointer is volatile, so that the compiler cannot reason about its target.
  EXPECT_DEATH({ *static_cast<volatile char*>(memory) = 1; }, "");
  device.free(memory);
}

TEST_P(EverySim, RangeBeyondAnAllocationIsRefused) {
  TestDevice device(GetParam());
  void* const stream = device.stream();
  void* const memory = device.allocate(100);
  static_cast<void>(device.allocate(100));  // a neighbour that an overrun would hit
  std::vector<std::byte> host(256);
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const struct {
    uint64_t offset;
    uint64_t size;
    hetcomm_status_t status;
  } cases[] = {
      {0, 100, HETCOMM_OK},
      {100, 0, HETCOMM_OK},
      {99, 1, HETCOMM_OK},
      {0, 101, HETCOMM_OUT_OF_RANGE},
      {100, 1, HETCOMM_OUT_OF_RANGE},
      {101, 0, HETCOMM_OUT_OF_RANGE},
      {50, 51, HETCOMM_OUT_OF_RANGE},
      {kMax, 1, HETCOMM_OUT_OF_RANGE},
      {1, kMax, HETCOMM_OUT_OF_RANGE},
      {kMax, kMax, HETCOMM_OUT_OF_RANGE},
  };
  for (const auto& [offset, size, status] : cases) {
    EXPECT_EQ(device.write(stream, memory, offset, host.data(), size), status) << offset;
    EXPECT_EQ(device.read(stream, host.data(), memory, offset, size), status) << offset;
  }
  device.destroy_stream(stream);
}

TEST_P(EverySim, MemoryOfAnotherDeviceIsRefused) {
  TestDevice device(GetParam());
  TestDevice other(GetParam());
  void* const stream = device.stream();
  void* const memory = device.allocate(64);
  void* const others = other.allocate(64);
  char host[64] = {};
  std::mt19937_64 random(5);
  std::vector<void*> names = {nullptr, host, others, reinterpret_cast<void*>(uint64_t{1}),
                              reinterpret_cast<void*>(~uint64_t{0})};
  for (int i = 0; i < 1000; ++i) names.push_back(reinterpret_cast<void*>(random()));
  for (void* const name : names) {
    void* base = nullptr;
    uint64_t size = 0;
    EXPECT_EQ(device.table().find(device.instance(), name, &base, &size), HETCOMM_NOT_FOUND);
    EXPECT_EQ(base, nullptr);
    EXPECT_EQ(device.read(stream, host, name, 0, 1), HETCOMM_INVALID_ARGUMENT) << name;
    device.free(name);  // has no effect
  }
  EXPECT_EQ(device.read(stream, host, memory, 0, 64), HETCOMM_OK);
  device.destroy_stream(stream);
}

TEST_P(EverySim, AllocationBeyondCapacityFails) {
  TestDevice device(GetParam(), "memory=1M");
  EXPECT_EQ(device.try_allocate((1u << 20) + 1), HETCOMM_OUT_OF_MEMORY);
  void* const half = device.allocate(512 << 10);
  EXPECT_EQ(device.try_allocate((512 << 10) + 1), HETCOMM_OUT_OF_MEMORY);
  void* const rest = device.allocate(512 << 10);
  EXPECT_EQ(device.try_allocate(1), HETCOMM_OUT_OF_MEMORY);
  device.free(half);
  device.free(rest);
  EXPECT_EQ(device.try_allocate(1u << 20), HETCOMM_OK);
}

// For any order of frees, the space becomes one contiguous piece again.
TEST_P(EverySim, RandomAllocationsKeepContentsAndReturnSpace) {
  TestDevice device(GetParam(), "memory=4M");
  void* const stream = device.stream();
  std::mt19937 random(17);
  struct Item {
    void* memory;
    std::vector<std::byte> contents;
  };
  std::deque<Item> items;
  const auto drop = [&](size_t index) {
    const Item& item = items[index];
    std::vector<std::byte> back(item.contents.size());
    ASSERT_EQ(device.read(stream, back.data(), item.memory, 0, back.size()), HETCOMM_OK);
    device.finish(stream);
    ASSERT_EQ(back, item.contents);
    device.free(item.memory);
    items.erase(items.begin() + static_cast<ptrdiff_t>(index));
  };
  for (unsigned round = 0; round < 400; ++round) {
    if (!items.empty() && random() % 2 == 0) {
      drop(random() % items.size());
      continue;
    }
    const size_t size = random() % 100'000;
    void* memory = nullptr;
    if (device.table().allocate(device.instance(), size, &memory) != HETCOMM_OK) {
      if (!items.empty()) drop(random() % items.size());
      continue;
    }
    items.push_back({memory, random_bytes(size, round)});
    ASSERT_EQ(device.write(stream, memory, 0, items.back().contents.data(), size), HETCOMM_OK);
    device.finish(stream);
  }
  while (!items.empty()) drop(random() % items.size());
  EXPECT_EQ(device.try_allocate(4u << 20), HETCOMM_OK);
  device.destroy_stream(stream);
}

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST_P(EverySim, FreedLargeMemoryReturnsToTheKernel) {
  constexpr uint64_t kSize = 64u << 20;
  TestDevice device(GetParam(), "memory=64M");
  void* const stream = device.stream();
  const std::vector<std::byte> bytes(kSize, std::byte{1});
  void* const memory = device.allocate(kSize);
  ASSERT_EQ(device.write(stream, memory, 0, bytes.data(), kSize), HETCOMM_OK);
  device.finish(stream);
  const uint64_t before = resident_bytes();
  device.free(memory);
  EXPECT_LT(resident_bytes() + kSize / 2, before);
  device.destroy_stream(stream);
}

TEST(SimHandle, RegionPinnedTwiceStaysPinnedUntilUnpinnedTwice) {
  TestDevice device("sim-handle");
  auto* const sim = static_cast<SimDevice*>(device.instance());
  char first[32];
  char second[32];
  const auto pin = [&](void* host, uint64_t size) {
    return device.table().pin_host(device.instance(), host, size);
  };
  const auto unpin = [&](void* host) { device.table().unpin_host(device.instance(), host); };
  EXPECT_EQ(pin(first, sizeof(first)), HETCOMM_OK);
  EXPECT_EQ(pin(second, sizeof(second)), HETCOMM_OK);
  EXPECT_EQ(pin(first, sizeof(first)), HETCOMM_OK);
  EXPECT_EQ(sim->pinned_regions(), 2u);
  unpin(first);
  EXPECT_EQ(sim->pinned_regions(), 2u);
  unpin(first);
  EXPECT_EQ(sim->pinned_regions(), 1u);
  unpin(first);  // once too often
  unpin(second);
  EXPECT_EQ(sim->pinned_regions(), 0u);
  EXPECT_EQ(pin(nullptr, 1), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(pin(first, 0), HETCOMM_INVALID_ARGUMENT);
}

TEST_P(EverySim, NameStatesTheConfiguredFigures) {
  TestDevice device(GetParam(), "bandwidth=2G:latency=3us:memory=512M");
  EXPECT_EQ(std::string(device.table().name(device.instance())),
            std::string(GetParam()) + ": 2 GiB/s, 3 us, 0.5 GiB");
}

// --- for network interfaces --------------------------------------------------------------------

TEST(SimReach, OnlyAddressKindIsReachableByNetworkInterfaces) {
  const TestDevice by_handle("sim-handle");
  EXPECT_EQ(by_handle.table().export_dmabuf, nullptr);
  EXPECT_EQ(by_handle.table().registrable_address, nullptr);
  const TestDevice by_address("sim-address");
  EXPECT_NE(by_address.table().export_dmabuf, nullptr);
  EXPECT_NE(by_address.table().registrable_address, nullptr);
}

// The device copies the bytes that were written through the address or the file.
TEST(SimReach, ExportedAddressAndFileShareTheBytes) {
  TestDevice device("sim-address", "memory=1M");
  constexpr uint64_t kSize = 10'000;
  static_cast<void>(device.allocate(300));  // makes the next allocation begin inside a page
  void* const memory = device.allocate(kSize);
  void* const stream = device.stream();
  std::vector<std::byte> bytes = random_bytes(kSize, 1);
  ASSERT_EQ(device.write(stream, memory, 0, bytes.data(), kSize), HETCOMM_OK);
  device.finish(stream);
  void* address = nullptr;
  ASSERT_EQ(device.table().registrable_address(device.instance(), memory, 100, 200, &address),
            HETCOMM_OK);
  EXPECT_EQ(std::memcmp(address, bytes.data() + 100, 200), 0);
  std::memset(address, 0x77, 200);
  int file = -1;
  uint64_t offset = 0;
  ASSERT_EQ(
      device.table().export_dmabuf(device.instance(), plus(memory, 1000), 9, 50, &file, &offset),
      HETCOMM_OK);
  std::vector<std::byte> read(50);
  EXPECT_EQ(pread(file, read.data(), read.size(), static_cast<off_t>(offset)), 50);
  EXPECT_TRUE(std::equal(read.begin(), read.end(), bytes.begin() + 1009));
  const std::vector<std::byte> written = random_bytes(50, 2);
  EXPECT_EQ(pwrite(file, written.data(), written.size(), static_cast<off_t>(offset)), 50);
  close(file);
  std::fill_n(bytes.begin() + 100, 200, std::byte{0x77});
  std::copy(written.begin(), written.end(), bytes.begin() + 1009);
  std::vector<std::byte> back(kSize);
  ASSERT_EQ(device.read(stream, back.data(), memory, 0, kSize), HETCOMM_OK);
  device.finish(stream);
  EXPECT_EQ(back, bytes);
  device.destroy_stream(stream);
  device.free(memory);
}

TEST(SimReach, InvalidArgumentsAreRefused) {
  TestDevice device("sim-address", "memory=1M");
  const DeviceTable& table = device.table();
  void* const memory = device.allocate(100);
  void* address = nullptr;
  int file = -1;
  uint64_t offset = 0;
  const auto both = [&](const void* name, uint64_t begin, uint64_t size) {
    const hetcomm_status_t status =
        table.registrable_address(device.instance(), name, begin, size, &address);
    EXPECT_EQ(table.export_dmabuf(device.instance(), name, begin, size, &file, &offset), status);
    EXPECT_EQ(address, nullptr);
    EXPECT_EQ(file, -1);
    return status;
  };
  EXPECT_EQ(both(memory, 0, 101), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(both(memory, 101, 0), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(both(&device, 0, 1), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.registrable_address(device.instance(), memory, 0, 1, nullptr),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.export_dmabuf(device.instance(), memory, 0, 1, nullptr, &offset),
            HETCOMM_INVALID_ARGUMENT);
  device.free(memory);
  EXPECT_EQ(both(memory, 0, 1), HETCOMM_INVALID_ARGUMENT);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EverySim, testing::Values("sim-handle", "sim-address"), kind_name);

TEST(SimHandle, FreedHandlesStayStale) {
  TestDevice device("sim-handle");
  void* const stream = device.stream();
  char host[8] = {};
  std::vector<void*> old;
  for (int i = 0; i < 100; ++i) {
    void* const memory = device.allocate(8);
    for (void* const stale : old) {
      EXPECT_NE(stale, memory);
      EXPECT_EQ(device.read(stream, host, stale, 0, 8), HETCOMM_STALE_HANDLE);
      EXPECT_EQ(device.write(stream, stale, 0, host, 8), HETCOMM_STALE_HANDLE);
      device.free(stale);  // frees no other memory
    }
    EXPECT_EQ(device.read(stream, host, memory, 0, 8), HETCOMM_OK);
    device.free(memory);
    old.push_back(memory);
  }
  device.destroy_stream(stream);
}

TEST(SimHandle, HandleIsNotAnAddress) {
  TestDevice device("sim-handle");
  void* const memory = device.allocate(64);
  EXPECT_EQ(number(memory) >> 56, 0xd5u);
  // A handle with an offset is not a handle to the same allocation.
  void* base = nullptr;
  uint64_t size = 0;
  EXPECT_EQ(device.table().find(device.instance(), plus(memory, 1), &base, &size),
            HETCOMM_NOT_FOUND);
  EXPECT_EQ(device.table().find(device.instance(), memory, &base, &size), HETCOMM_OK);
  EXPECT_EQ(base, memory);
  EXPECT_EQ(size, 64u);
}

TEST(SimAddress, AddressInsideAnAllocationIsAccepted) {
  TestDevice device("sim-address");
  void* const stream = device.stream();
  void* const memory = device.allocate(1000);
  const std::vector<std::byte> contents = random_bytes(1000, 1);
  ASSERT_EQ(device.write(stream, memory, 0, contents.data(), 1000), HETCOMM_OK);
  std::vector<std::byte> back(100);
  ASSERT_EQ(device.read(stream, back.data(), plus(memory, 300), 50, 100), HETCOMM_OK);
  device.finish(stream);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), contents.begin() + 350));
  EXPECT_EQ(device.read(stream, back.data(), plus(memory, 950), 0, 50), HETCOMM_OK);
  EXPECT_EQ(device.read(stream, back.data(), plus(memory, 950), 0, 51), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device.read(stream, back.data(), plus(memory, 1000), 0, 1), HETCOMM_INVALID_ARGUMENT);
  device.destroy_stream(stream);
}

TEST(SimAddress, FindReturnsTheAllocationOfAnAddress) {
  TestDevice device("sim-address");
  std::map<uint64_t, uint64_t> sizes;
  for (const uint64_t size : {1u, 255u, 256u, 257u, 5000u}) {
    sizes[number(device.allocate(size))] = size;
  }
  for (const auto& [start, size] : sizes) {
    for (const uint64_t inside : {uint64_t{0}, size / 2, size - 1}) {
      void* base = nullptr;
      uint64_t found = 0;
      ASSERT_EQ(device.table().find(device.instance(), reinterpret_cast<void*>(start + inside),
                                    &base, &found),
                HETCOMM_OK);
      EXPECT_EQ(number(base), start);
      EXPECT_EQ(found, size);
    }
  }
}

TEST(SimAddress, FreeAcceptsOnlyTheStartOfAnAllocation) {
  TestDevice device("sim-address", "memory=4K");
  void* const memory = device.allocate(4096);
  device.free(plus(memory, 8));
  EXPECT_EQ(device.try_allocate(1), HETCOMM_OUT_OF_MEMORY);
  device.free(memory);
  EXPECT_EQ(device.try_allocate(4096), HETCOMM_OK);
}

TEST(SimDevice, TwoKindsCoexistInOneProcess) {
  TestDevice by_handle("sim-handle");
  TestDevice by_address("sim-address");
  void* const one = by_handle.stream();
  void* const two = by_address.stream();
  void* const handle = by_handle.allocate(1 << 16);
  void* const address = by_address.allocate(1 << 16);
  const std::vector<std::byte> sent = random_bytes(1 << 16, 9);
  std::vector<std::byte> middle(sent.size());
  std::vector<std::byte> received(sent.size());
  ASSERT_EQ(by_handle.write(one, handle, 0, sent.data(), sent.size()), HETCOMM_OK);
  ASSERT_EQ(by_handle.read(one, middle.data(), handle, 0, sent.size()), HETCOMM_OK);
  by_handle.finish(one);
  ASSERT_EQ(by_address.write(two, address, 0, middle.data(), sent.size()), HETCOMM_OK);
  ASSERT_EQ(by_address.read(two, received.data(), address, 0, sent.size()), HETCOMM_OK);
  by_address.finish(two);
  EXPECT_EQ(received, sent);
}

TEST(SimDevice, ErrorNamesAnUnknownKindOrOption) {
  const Result<Device> kind = create_sim_device("sim", "");
  EXPECT_EQ(kind.status().code(), Code::kInvalidArgument);
  EXPECT_NE(kind.status().text().find("'sim'"), std::string_view::npos);
  EXPECT_FALSE(create_sim_device("sim-handle", "unified=2").ok());
  for (const bool unified : {false, true}) {
    const Device device =
        create_sim_device("sim-address", unified ? "unified=1" : "unified=0").value();
    EXPECT_EQ(device.table->host_memory_suffices(device.instance), unified ? 1 : 0);
    device.table->destroy(device.instance);
  }
  const Result<Device> options = create_sim_device("sim-handle", "speed=1G");
  EXPECT_EQ(options.status().code(), Code::kInvalidArgument);
  EXPECT_NE(options.status().text().find("sim-handle: "), std::string_view::npos);
  EXPECT_NE(options.status().text().find("'speed'"), std::string_view::npos);
}

}  // namespace
}  // namespace hetcomm
