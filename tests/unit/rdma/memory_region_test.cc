// The memory region cache, over a fake device and the real kernel's memory events:
//   - the same range is registered once; another range or access right is registered separately;
//   - after free, munmap, mremap, mapping over it, madvise or a shrinking heap, by any caller and
//     thread, the old memory region is no longer used once the call has returned, and even earlier
//     once another thread has mapped the same addresses;
//   - a region in use when its memory is unmapped stays until it is released, and is then removed
//     too;
//   - after fork() the parent's memory regions are still correct, and the child's memory is its
//     own; the child has no monitor descriptor, whenever it is forked, and touches none of the
//     monitor's threads;
//   - if parts of a large range are used in turn, the whole range is registered if it can be kept,
//     else only the part;
//   - with an option, regions whose keys a peer may have are never kept, and each user has its own
//     region;
//   - bytes and number of idle regions are limited, and reaching a kernel limit empties the cache;
//   - several caches may keep the same memory, and each is notified when it is unmapped;
//   - once a cache has ended nothing waits for it any longer, in particular not free() and
//     munmap(), even if a living forked child has inherited all descriptors;
//   - without events nothing is kept.
// The kernel may not allow events on some machines. Tests that need events are then skipped with a
// reason.
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include "src/system/log.h"
#include "tests/support/fake_verbs.h"
#include "transports/rdma/memory_region_cache.h"

namespace hetcomm::test {
namespace {

using rdma::MemoryRegion;
using rdma::MemoryRegionCache;

constexpr int kRights = IBV_ACCESS_LOCAL_WRITE;
constexpr size_t kSize = 1u << 20;

std::byte* map(size_t size, void* where = nullptr) {
  void* memory = mmap(where, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | (where == nullptr ? 0 : MAP_FIXED), -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

class RdmaRegistration : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeFabric::reset();
    log_.set_level(LogLevel::kError);
    make(uint64_t{64} << 20);
  }
  void TearDown() override {
    cache_.reset();
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }
  void make(uint64_t limit, bool strict = false) {
    cache_.reset();
    cache_ = std::make_unique<MemoryRegionCache>(FakeFabric::verbs(), &pd_, limit, strict, log_);
  }
  // Registers and releases. The returned key tells whether it is the same region as before.
  uint32_t use(const void* address, size_t length = kSize, int rights = kRights) {
    auto made = cache_->acquire(address, length, rights);
    if (!made.ok()) return 0;
    const uint32_t key = made.value()->lkey();
    cache_->release(made.value());
    return key;
  }

  Log log_;
  ibv_pd pd_{};
  std::unique_ptr<MemoryRegionCache> cache_;
};

#define NEEDS_EVENTS() \
  if (!cache_->watching()) GTEST_SKIP() << "no memory events here: userfaultfd is not allowed"

TEST_F(RdmaRegistration, NoRegistrationIsKeptWithoutACache) {
  make(0);
  std::vector<std::byte> memory(kSize);
  const uint32_t first = use(memory.data());
  EXPECT_NE(use(memory.data()), first);
  EXPECT_EQ(FakeFabric::registrations(), 0u);
}

TEST_F(RdmaRegistration, EachRangeAndRightIsRegisteredOnce) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  const uint32_t first = use(memory);
  EXPECT_EQ(use(memory), first);
  EXPECT_NE(use(memory, kSize - 1), first);
  EXPECT_NE(use(memory, kSize, 0), first);
  EXPECT_EQ(use(memory), first);
  EXPECT_EQ(FakeFabric::registrations(), 3u);
  munmap(memory, kSize);
}

TEST_F(RdmaRegistration, RegionIsDroppedWhenItsMemoryIsUnmapped) {
  NEEDS_EVENTS();
  for (int i = 0; i < 200; ++i) {
    std::byte* memory = map(kSize);
    const uint32_t first = use(memory);
    munmap(memory, kSize);
    ASSERT_EQ(map(kSize, memory), memory);
    ASSERT_NE(use(memory), first) << "the same address, other pages, round " << i;
    munmap(memory, kSize);
  }
}

TEST_F(RdmaRegistration, RegionIsDroppedWhenAPartIsUnmapped) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  const uint32_t first = use(memory);
  munmap(memory + kSize / 2, 4096);
  ASSERT_NE(map(4096, memory + kSize / 2), nullptr);
  EXPECT_NE(use(memory), first);
  munmap(memory, kSize);
}

TEST_F(RdmaRegistration, RegionIsDroppedWhenMappedOver) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  const uint32_t first = use(memory);
  ASSERT_EQ(map(kSize, memory), memory);
  EXPECT_NE(use(memory), first);
  munmap(memory, kSize);
}

TEST_F(RdmaRegistration, RegionIsDroppedWhenItsMemoryMoves) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  std::byte* other = map(2 * kSize);
  const uint32_t first = use(memory);
  void* moved = mremap(memory, kSize, kSize, MREMAP_MAYMOVE | MREMAP_FIXED, other);
  ASSERT_EQ(moved, other);
  ASSERT_EQ(map(kSize, memory), memory);
  EXPECT_NE(use(memory), first);
  munmap(memory, kSize);
  munmap(other, 2 * kSize);
}

TEST_F(RdmaRegistration, RegionIsDroppedWhenPagesAreDiscarded) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  const uint32_t first = use(memory);
  ASSERT_EQ(madvise(memory, kSize, MADV_DONTNEED), 0);
  EXPECT_NE(use(memory), first);
  munmap(memory, kSize);
}

TEST_F(RdmaRegistration, RegionIsDroppedWhenMemoryIsReallocated) {
  NEEDS_EVENTS();
  constexpr size_t kLarge = 4u << 20;
  mallopt(M_MMAP_THRESHOLD, 1 << 20);  // allocated by mmap, and returned to the kernel immediately
  for (int i = 0; i < 50; ++i) {
    void* memory = std::malloc(kLarge);
    const uint32_t first = use(memory, kLarge);
    std::free(memory);
    void* again = std::malloc(kLarge);
    const uint32_t second = use(again, kLarge);
    ASSERT_NE(second, first) << "round " << i;
    void* grown = std::realloc(again, 2 * kLarge);
    ASSERT_NE(use(grown, kLarge), second) << "round " << i;
    std::free(grown);
  }
}

TEST_F(RdmaRegistration, RegionIsDroppedWhenTheHeapShrinks) {
  NEEDS_EVENTS();
  constexpr size_t kLarge = 8u << 20;
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // allocated on the heap
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  int shrunk = 0;
  for (int i = 0; i < 20; ++i) {
    void* memory = std::malloc(kLarge);
    const uint32_t first = use(memory, kLarge);
    std::free(memory);
    const void* before = sbrk(0);
    malloc_trim(0);
    const bool gone = std::less<const void*>()(sbrk(0), before);
    memory = std::malloc(kLarge);
    if (gone) {
      ++shrunk;
      ASSERT_NE(use(memory, kLarge), first);
    }
    std::free(memory);
  }
  if (shrunk == 0) GTEST_SKIP() << "the heap of this allocator does not shrink";
}

TEST_F(RdmaRegistration, RegionIsDroppedWhenAnotherThreadUnmaps) {
  NEEDS_EVENTS();
  for (int i = 0; i < 100; ++i) {
    std::byte* memory = map(kSize);
    const uint32_t first = use(memory);
    std::thread other([&] {
      munmap(memory, kSize);
      (void)map(kSize, memory);
    });
    other.join();
    ASSERT_NE(use(memory), first);
    munmap(memory, kSize);
  }
}

// Each mapping has its own number. A memory region is stale if it was made for a mapping with
// another number.
TEST_F(RdmaRegistration, RegionOfAnEarlierMappingIsNotUsed) {
  NEEDS_EVENTS();
  constexpr size_t kLarge = 256u << 10;
  // Far below the addresses where the kernel looks for room, so no other memory lands in the hole.
  auto* const place = reinterpret_cast<std::byte*>(uint64_t{0x300000000000});
  ASSERT_EQ(map(kLarge, place), place);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    // Its calls return only after the event was read; the test is about the time before that.
    while (!stop) munmap(place, kLarge);
  });
  uint64_t number = 0;
  std::unordered_map<uint32_t, uint64_t> made_for;
  uint64_t stale = 0;
  uint64_t rounds = 0;
  uint64_t hits = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&](int seconds) {
    return std::chrono::steady_clock::now() - start > std::chrono::seconds(seconds);
  };
  // It runs longer under load, so that enough rounds are made.
  while (!passed(1) || ((number <= 100 || hits <= 100) && !passed(30))) {
    // It finds the hole as malloc() would, and fails if the last round's mapping still exists.
    void* mapped = mmap(place, kLarge, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped == place) ++number;
    if (number == 0) continue;
    const uint64_t before = number;
    auto made = cache_->acquire(place, kLarge, kRights);
    ASSERT_TRUE(made.ok());
    const uint32_t key = made.value()->lkey();
    const auto [known, fresh] = made_for.emplace(key, before);
    // A registration of an earlier mapping pins pages that are no longer visible.
    if (known->second != before) ++stale;
    if (!fresh) ++hits;
    cache_->release(made.value());
    ++rounds;
  }
  stop = true;
  other.join();
  EXPECT_EQ(stale, 0u) << "of " << rounds << " uses, " << hits << " of them of kept ones, for "
                       << number << " mappings";
  EXPECT_GT(number, 100u);
  EXPECT_GT(hits, 100u);
  munmap(place, kLarge);
}

TEST_F(RdmaRegistration, StaleRegionInUseIsRemovedOnceReleased) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  auto held = cache_->acquire(memory, kSize, kRights);
  ASSERT_TRUE(held.ok());
  munmap(memory, kSize);
  ASSERT_EQ(map(kSize, memory), memory);
  EXPECT_NE(use(memory), held.value()->lkey());
  EXPECT_EQ(FakeFabric::registrations(), 2u);
  cache_->release(held.value());
  EXPECT_EQ(FakeFabric::registrations(), 1u);
  munmap(memory, kSize);
}

TEST_F(RdmaRegistration, ParentRegionsRemainValidAfterFork) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  memory[0] = std::byte{1};
  const uint32_t first = use(memory);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(10);
    // No thread reads events here; nothing may wait for that.
    const bool same = memory[0] == std::byte{1};
    memory[0] = std::byte{2};
    munmap(memory, kSize);
    std::free(std::malloc(8u << 20));
    _exit(same ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(memory[0], std::byte{1});
  EXPECT_EQ(use(memory), first) << "the parent's pages are the same";
  munmap(memory, kSize);
}

// Runs |what| in a thread. Returns false if it has not returned within some seconds.
template <typename What>
bool returns(What what) {
  auto done = std::make_shared<std::promise<void>>();
  const std::future<void> waiting = done->get_future();
  std::thread thread([done, what = std::move(what)] {
    what();
    done->set_value();
  });
  const bool in_time = waiting.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  if (in_time) {
    thread.join();
  } else {
    thread.detach();
  }
  return in_time;
}

TEST_F(RdmaRegistration, RunningChildDoesNotBlockUnmapping) {
  NEEDS_EVENTS();
  // Forks once with the C library, which can close the child's copies of descriptors, and once
  // without.
  for (const bool raw : {false, true}) {
    std::byte* memory = map(kSize);
    (void)use(memory);
    const pid_t child = raw ? static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) : fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      while (true) pause();
    }
    cache_.reset();
    const bool returned = returns([memory] { munmap(memory, kSize); });
    make(uint64_t{64} << 20);
    memory = map(kSize);
    const uint32_t first = use(memory);
    EXPECT_EQ(use(memory), first) << "it can be watched";
    munmap(memory, kSize);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_TRUE(returned) << "raw: " << raw;
  }
}

size_t count_userfaultfds() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    std::array<char, 64> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target.data(), target.size() - 1) < 0) continue;
    if (std::string_view(target.data()) == "anon_inode:[userfaultfd]") ++count;
  }
  return count;
}

TEST_F(RdmaRegistration, ForkedChildHasNoMonitorDescriptor) {
  NEEDS_EVENTS();
  ASSERT_EQ(count_userfaultfds(), 1u);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(static_cast<int>(count_userfaultfds()));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The descriptor is repeatedly opened, tested and closed while children are created.
TEST_F(RdmaRegistration, ChildForkedDuringSetupHasNoMonitorDescriptor) {
  NEEDS_EVENTS();
#if defined(HETCOMM_ASAN) || defined(HETCOMM_TSAN)
  GTEST_SKIP() << "a sanitizer's heap may be locked in a child of several threads";
#endif
  cache_.reset();
  std::atomic<bool> enough{false};
  std::thread busy([&] {
    while (!enough) {
      make(uint64_t{64} << 20);
      cache_.reset();
    }
  });
  int with_events = 0;
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(static_cast<int>(count_userfaultfds()));
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) ++with_events;
  }
  enough = true;
  busy.join();
  EXPECT_EQ(with_events, 0);
}

// Threads in a child get the stacks, and thus the names, of the parent's threads.
TEST_F(RdmaRegistration, ChildThatDropsTheCacheTouchesNoMonitorThread) {
  NEEDS_EVENTS();
#if defined(HETCOMM_TSAN)
  GTEST_SKIP() << "the thread sanitizer allows no threads in a child of several threads";
#else
  (void)use(map(kSize));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(10);
    std::atomic<bool> enough{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        while (!enough) std::this_thread::yield();
      });
    }
    cache_.reset();
    enough = true;
    // If a thread was detached, this throws and ends the child.
    for (std::thread& thread : threads) thread.join();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
#endif
}

TEST_F(RdmaRegistration, DestroyingTheCacheDoesNotHangOnUnmappedThreadStacks) {
  NEEDS_EVENTS();
  // The C library caches 40 MiB of them, and unmaps the oldest when the monitor's thread has ended.
  pthread_attr_t attributes;
  size_t stack = 0;
  ASSERT_EQ(pthread_getattr_default_np(&attributes), 0);
  ASSERT_EQ(pthread_attr_getstacksize(&attributes, &stack), 0);
  pthread_attr_destroy(&attributes);
  const size_t count = (size_t{40} << 20) / stack;
  EXPECT_TRUE(returns([this, count] {
    std::vector<std::thread> threads;
    std::atomic<size_t> used{0};
    std::mutex mutex;
    for (size_t i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        std::array<std::byte, 65536> buffer{};
        {
          const std::lock_guard lock(mutex);
          (void)use(buffer.data(), buffer.size());
        }
        ++used;
        while (used < count) std::this_thread::yield();
      });
    }
    for (std::thread& thread : threads) thread.join();
    cache_.reset();
  }));
}

TEST_F(RdmaRegistration, TwoCachesMayRegisterTheSameMemory) {
  NEEDS_EVENTS();
  std::byte* memory = map(2 * kSize);
  auto other = std::make_unique<MemoryRegionCache>(FakeFabric::verbs(), &pd_, kSize, false, log_);
  const auto use_other = [&] {
    auto made = other->acquire(memory, kSize, kRights);
    const uint32_t key = made.value()->lkey();
    other->release(made.value());
    return key;
  };
  const uint32_t first = use_other();
  EXPECT_EQ(use_other(), first);
  uint32_t mine = use(memory + kSize / 2);
  EXPECT_EQ(use(memory + kSize / 2), mine);
  munmap(memory, 2 * kSize);
  ASSERT_EQ(map(2 * kSize, memory), memory);
  EXPECT_NE(use(memory + kSize / 2), mine);
  const uint32_t second = use_other();
  EXPECT_NE(second, first) << "each is told";
  mine = use(memory + kSize / 2);
  other.reset();
  EXPECT_EQ(use(memory + kSize / 2), mine);
  munmap(memory, 2 * kSize);
  ASSERT_EQ(map(2 * kSize, memory), memory);
  EXPECT_NE(use(memory + kSize / 2), mine) << "watched for the one that is left";
  munmap(memory, 2 * kSize);
}

TEST_F(RdmaRegistration, MemoryIsStillRegisteredIfTheMonitorThreadCannotStart) {
  NEEDS_EVENTS();
  cache_.reset();
  pthread_attr_t before;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  pthread_attr_t huge = before;
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  make(uint64_t{64} << 20);
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  pthread_attr_destroy(&before);
  EXPECT_FALSE(cache_->watching());
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0) << "signals are as they were";
  std::vector<std::byte> memory(kSize);
  EXPECT_NE(use(memory.data()), 0u);
  make(uint64_t{64} << 20);
  EXPECT_TRUE(cache_->watching());
}

TEST_F(RdmaRegistration, StrictKeysExpireAfterUse) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  for (const bool strict : {false, true}) {
    make(uint64_t{64} << 20, strict);
    for (const int rights :
         {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, int{IBV_ACCESS_REMOTE_READ}}) {
      const size_t before = FakeFabric::registrations();
      auto first = cache_->acquire(memory, kSize, rights);
      auto second = cache_->acquire(memory, kSize, rights);
      ASSERT_TRUE(first.ok() && second.ok());
      EXPECT_EQ(first.value() != second.value(), strict);
      EXPECT_EQ(cache_->revoke(first.value()), strict) << "alone";
      if (!strict) cache_->release(first.value());
      cache_->release(second.value());
      EXPECT_EQ(FakeFabric::registrations(), before + (strict ? 0 : 1)) << rights;
    }
    const uint32_t own = use(memory);
    EXPECT_EQ(use(memory), own) << "this side's own use is no matter of peers";
  }
  munmap(memory, kSize);
}

TEST_F(RdmaRegistration, OnlyAPartIsRegisteredIfTheWholeDoesNotFit) {
  NEEDS_EVENTS();
  std::byte* memory = map(4 * kSize);
  const iovec whole{memory, 4 * kSize};
  const auto bytes_for = [&](size_t part) {
    const uint64_t before = FakeFabric::registered_bytes();
    auto made = cache_->acquire_part(whole, {memory + part * kSize, kSize}, kRights);
    EXPECT_TRUE(made.ok());
    const uint64_t bytes = FakeFabric::registered_bytes() - before;
    cache_->release(made.value());
    return bytes;
  };
  EXPECT_EQ(bytes_for(1), 4 * kSize) << "can be kept";
  EXPECT_EQ(bytes_for(2), 0u) << "is";
  make(0);
  EXPECT_EQ(bytes_for(1), kSize) << "nothing is kept";
  EXPECT_EQ(FakeFabric::registrations(), 0u);
  make(2 * kSize);
  EXPECT_EQ(bytes_for(2), kSize) << "more than may be kept";
  make(8 * kSize);
  FakeFabric::fail_registrations(ENOMEM, 0, 1);
  EXPECT_EQ(bytes_for(0), kSize) << "more than the kernel locks";
  EXPECT_EQ(bytes_for(1), kSize) << "and that is remembered";
  EXPECT_EQ(use(memory + 3 * kSize), use(memory + 3 * kSize)) << "smaller ones are kept";
  munmap(memory, 4 * kSize);
}

TEST_F(RdmaRegistration, NumberOfIdleRegionsIsBounded) {
  NEEDS_EVENTS();
  make(10 * kSize);
  std::byte* memory = map(40 * kSize);
  for (size_t i = 0; i < 40; ++i) (void)use(memory + i * kSize);
  EXPECT_LE(FakeFabric::registrations(), 10u);
  const uint32_t last = use(memory + 39 * kSize);
  EXPECT_EQ(use(memory + 39 * kSize), last);
  // At the kernel's limit, unused cached regions are evicted first.
  FakeFabric::fail_registrations(ENOMEM, 0);
  EXPECT_EQ(use(memory, 2 * kSize), 0u);
  EXPECT_EQ(FakeFabric::registrations(), 0u);
  FakeFabric::fail_registrations(0);
  munmap(memory, 40 * kSize);
}

// The cache makes room by dropping ranges that overlap the new one, or adjoin it.
TEST_F(RdmaRegistration, CachedRegionStaysWatchedWhenNeighboursAreDropped) {
  NEEDS_EVENTS();
  std::byte* memory = map(kSize);
  (void)use(memory + kSize / 4, kSize / 4, 0);
  (void)use(memory, kSize, 0);
  FakeFabric::fail_registrations(ENOMEM, 0, 1);
  const uint32_t kept = use(memory);
  ASSERT_NE(kept, 0u) << "registered once there was room";
  EXPECT_EQ(FakeFabric::registrations(), 1u);
  EXPECT_EQ(use(memory), kept);
  munmap(memory, kSize);
  ASSERT_EQ(map(kSize, memory), memory);
  EXPECT_NE(use(memory), kept) << "the same address, other pages";
  munmap(memory, kSize);
}

}  // namespace
}  // namespace hetcomm::test
