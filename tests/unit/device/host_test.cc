// The host device: memory is aligned and the CPU's own. Copies are complete on return, and events
// are complete from the start. Memory files keep their size, and use at most a quarter of the
// descriptors.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/device/fixture.h"

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

int shared_file_of(TestDevice& host, void* memory) {
  int file = -1;
  uint64_t offset = 1;
  const hetcomm_status_t status = host.table().shared_file(host.instance(), memory, &file, &offset);
  EXPECT_TRUE(status == HETCOMM_OK || status == HETCOMM_NOT_FOUND);
  EXPECT_EQ(offset, status == HETCOMM_OK ? 0u : 1u);
  return file;
}

// Another process may map the file, and must never find fewer bytes than announced.
TEST(HostDevice, MemoryFileKeepsItsSize) {
  TestDevice host("host");
  void* const memory = host.allocate(5000);
  const int file = shared_file_of(host, memory);
  ASSERT_GE(file, 0);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(fcntl(file, F_GET_SEALS) & kSeals, kSeals);
  EXPECT_NE(ftruncate(file, 100), 0);
  EXPECT_EQ(lseek(file, 0, SEEK_END), 8192);
  host.free(memory);
  EXPECT_EQ(fcntl(file, F_GETFD), -1) << "it is closed with the memory";
}

// The remaining descriptors are for connections, and further memory comes from the heap.
TEST(HostDevice, FilesUseAtMostAQuarterOfTheDescriptors) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 128;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  TestDevice host("host");
  std::vector<void*> memories;
  int files = 0;
  for (int i = 0; i < 100; ++i) {
    memories.push_back(host.allocate(100));
    files += shared_file_of(host, memories.back()) >= 0 ? 1 : 0;
  }
  EXPECT_EQ(files, 32);
  // Large allocations do not share pages, just as with a file.
  for (const uint64_t size : {uint64_t{1}, uint64_t{1000}, uint64_t{1} << 20, uint64_t{3} << 20}) {
    std::array<void*, 3> more{};
    for (void*& memory : more) {
      memory = host.allocate(size);
      EXPECT_EQ(shared_file_of(host, memory), -1);
      EXPECT_EQ(number(memory) % (size >= (1u << 20) ? 4096 : 64), 0u) << size;
      std::memset(memory, 1, size);
    }
    for (void* const memory : more) host.free(memory);
  }
  // After a free, new memory may be a file again.
  host.free(memories[0]);
  memories[0] = host.allocate(100);
  EXPECT_GE(shared_file_of(host, memories[0]), 0);
  for (void* const memory : memories) host.free(memory);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Exceeding the file-size limit would end the process by a signal.
TEST(HostDevice, AllocationOverTheFileSizeLimitReturnsAnError) {
  TestDevice host("host");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 1u << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  void* memory = nullptr;
  const hetcomm_status_t status = host.table().allocate(host.instance(), 2u << 20, &memory);
  std::array<char, 300> text{};
  host.table().error_text(host.instance(), text.data(), text.size());
  // No memory has this size, and the earlier reason is not that of this failure.
  std::array<char, 300> other{};
  EXPECT_EQ(host.table().allocate(host.instance(), (uint64_t{1} << 47) + 1, &memory),
            HETCOMM_OUT_OF_MEMORY);
  host.table().error_text(host.instance(), other.data(), other.size());
  EXPECT_STREQ(other.data(), "");
  void* const smaller = host.allocate(1u << 20);
  EXPECT_GE(shared_file_of(host, smaller), 0);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status, HETCOMM_OUT_OF_RESOURCES);
  EXPECT_NE(std::strstr(text.data(), "ulimit -f"), nullptr) << text.data();
  host.free(smaller);
}

TEST(HostDevice, MemoryIsAccessibleToTheCpu) {
  TestDevice host("host");
  EXPECT_TRUE(host.table().host_accessible);
  auto* const memory = static_cast<char*>(host.allocate(8));
  void* const stream = host.stream();
  ASSERT_EQ(host.write(stream, memory, 2, "abc", 3), HETCOMM_OK);
  EXPECT_EQ(std::memcmp(memory + 2, "abc", 3), 0);  // no event is needed
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

TEST(HostDevice, UnsupportedEntriesAreNull) {
  TestDevice host("host");
  EXPECT_EQ(host.table().find, nullptr);
  EXPECT_EQ(host.table().pin_host, nullptr);
}

}  // namespace
}  // namespace hetcomm
