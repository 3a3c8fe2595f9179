// The host device: memory is the CPU's own and aligned; copies have happened on return; events are
// complete from the start.
#include <cstring>

#include <gtest/gtest.h>

#include "tests/unit/device_fixture.h"

namespace hetcomm {
namespace {

uint64_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

TEST(HostDevice, MemoryIsAligned) {
  TestDevice host("host");
  for (const uint64_t size : {0u, 1u, 63u, 64u, 65u, 4096u, 100'000u}) {
    void* const memory = host.allocate(size);
    EXPECT_EQ(number(memory) % 64, 0u) << size;
    host.free(memory);
  }
  for (const uint64_t size : {1u << 20, (1u << 20) + 1, 8u << 20}) {
    void* const memory = host.allocate(size);
    EXPECT_EQ(number(memory) % 4096, 0u) << size;
    std::memset(memory, 1, size);
    host.free(memory);
  }
}

TEST(HostDevice, MemoryIsTheCpusOwn) {
  TestDevice host("host");
  EXPECT_TRUE(host.table().host_accessible);
  auto* const memory = static_cast<char*>(host.allocate(8));
  void* const stream = host.stream();
  ASSERT_EQ(host.write(stream, memory, 2, "abc", 3), HETCOMM_OK);
  EXPECT_EQ(std::memcmp(memory + 2, "abc", 3), 0);  // no event needed
  char back[3] = {};
  ASSERT_EQ(host.read(stream, back, memory, 2, 3), HETCOMM_OK);
  EXPECT_EQ(std::memcmp(back, "abc", 3), 0);
  host.destroy_stream(stream);
  host.free(memory);
}

TEST(HostDevice, CopiesMayOverlap) {
  TestDevice host("host");
  char text[] = "0123456789";
  void* const stream = host.stream();
  ASSERT_EQ(host.read(stream, text, text, 2, 8), HETCOMM_OK);
  EXPECT_STREQ(text, "2345678989");
  host.destroy_stream(stream);
}

TEST(HostDevice, EventsAreCompleteFromTheStart) {
  TestDevice host("host");
  void* const stream = host.stream();
  void* const event = host.record(stream);
  EXPECT_EQ(host.query(event), HETCOMM_OK);
  EXPECT_EQ(host.table().event_wait(host.instance(), event), HETCOMM_OK);
  host.table().event_release(host.instance(), event);
  host.destroy_stream(stream);
}

TEST(HostDevice, WhatItDoesNotOffer) {
  TestDevice host("host");
  EXPECT_EQ(host.table().find, nullptr);
  EXPECT_EQ(host.table().pin_host, nullptr);
}

}  // namespace
}  // namespace hetcomm
