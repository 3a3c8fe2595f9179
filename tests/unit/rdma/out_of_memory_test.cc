// Lack of memory in the rdma transport, over a fake: not run on hardware. For each failing
// allocation,
//   - exposed, published or registered memory is recorded, and can be removed again; each record
//     has its memory;
//   - a put or get that fails to begin leaves nothing behind, and the connection continues;
//   - an attempt ends with a reason, whether or not it is the first one, which opens the device;
//   - a connection ends, with or without a handler, while every allocation fails;
//   - one cache drops nothing that another one watches.
// The fake's own allocations do not fail, since a device has none of these.
#include <sys/mman.h>

#include <array>
#include <memory>
#include <new>

#include "tests/support/counting_allocator.h"
#include "tests/unit/rdma/fixture.h"
#include "transports/rdma/memory_region_cache.h"

namespace hetcomm::test {
namespace {

constexpr size_t kSize = 100'000;

template <auto kMember, typename Function>
struct Calm;
template <auto kMember, typename Result, typename... Arguments>
struct Calm<kMember, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    const AllocationsSucceed succeed;
    return (FakeFabric::verbs().*kMember)(arguments...);
  }
};
template <auto kMember, typename Function>
void calm(rdma::Verbs& table, Function rdma::Verbs::* /*type*/) {
  table.*kMember = Calm<kMember, Function>::call;
}
template <auto... kMembers>
rdma::Verbs calmed() {
  rdma::Verbs table = FakeFabric::verbs();
  (calm<kMembers>(table, kMembers), ...);
  return table;
}
const rdma::Verbs& verbs() {
  using V = rdma::Verbs;
  static const rdma::Verbs table =
      calmed<&V::get_device_list, &V::free_device_list, &V::files_of, &V::open_device,
             &V::close_device, &V::query_device, &V::alloc_pd, &V::dealloc_pd,
             &V::create_comp_channel, &V::destroy_comp_channel, &V::create_cq, &V::destroy_cq,
             &V::create_srq, &V::destroy_srq, &V::reg_mr, &V::dereg_mr, &V::poll_cq,
             &V::req_notify_cq, &V::post_srq_recv, &V::create_qp, &V::modify_qp, &V::query_qp,
             &V::destroy_qp, &V::post_send, &V::query_gid, &V::query_port>();
  return table;
}

// Calls |body| while allocation number |count| fails. Returns whether there were that many.
template <typename Body>
bool with_failing(int64_t count, Body&& body) {
  fail_allocation_after(count);
  try {
    body();
  } catch (const std::bad_alloc&) {
  }
  const bool failed = allocation_has_failed();
  fail_allocation_after(-1);
  return failed;
}
// Runs |body| once for each allocation, which then fails.
template <typename Body>
void each_failing(Body&& body) {
  int64_t count = 0;
  while (count < 500 && body(count) && !::testing::Test::HasFailure()) ++count;
  EXPECT_GT(count, 0) << "the test tests something";
  EXPECT_LT(count, 500);
}

class RdmaOutOfMemory : public ::testing::Test {
 protected:
  void SetUp() override { FakeFabric::reset(); }
  void TearDown() override {
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }
};

bool send_and_see(FakePair& pair, Rail& from, Rail& to) {
  const size_t before = to.messages.size();
  if (from.send(numbered(7), {}) != Code::kOk) return false;
  return pair.run([&] { return to.messages.size() == before + 1; });
}

TEST_F(RdmaOutOfMemory, ExposeNeverLeaksARegistration) {
  std::vector<std::byte> memory(kSize);
  const iovec piece{memory.data(), memory.size()};
  for (const Access access : {Access::kPutTarget, Access::kGetSource}) {
    each_failing([&](int64_t count) {
      FakePair pair("RDMA_CACHE_BYTES=0", nullptr, &verbs());
      if (!pair.connect()) return false;
      const size_t before = FakeFabric::registrations();
      RemoteKey key{};
      const bool failed = with_failing(count, [&] {
        Result<RemoteKey> made = pair.to_a().expose({&piece, 1}, access, 3);
        if (made.ok()) key = made.value();
      });
      EXPECT_EQ(FakeFabric::registrations() > before, key != RemoteKey{}) << count;
      // Revoking and releasing everything frees space for other memory, even while all allocations
      // fail.
      std::vector<RemoteKey> keys;
      for (int i = 0; i < 200; ++i) {
        const auto made = pair.to_a().expose({&piece, 1}, access, 3);
        if (made.ok()) keys.push_back(made.value());
      }
      EXPECT_EQ(keys.size(), 200u);
      fail_all_allocations(true);
      if (key != RemoteKey{}) pair.to_a().release(key);
      for (const RemoteKey& each : keys) pair.to_a().release(each);
      fail_all_allocations(false);
      EXPECT_EQ(FakeFabric::registrations(), before) << count;
      return failed;
    });
  }
}

TEST_F(RdmaOutOfMemory, PublishNeverLeaksARegistration) {
  std::vector<std::byte> memory(kSize);
  each_failing([&](int64_t count) {
    FakePair pair("", nullptr, &verbs());
    const size_t before = FakeFabric::registrations();
    RemoteKey key{};
    const bool failed = with_failing(count, [&] {
      Result<RemoteKey> made = pair.a.transport().abilities().regions->publish(
          {memory.data(), memory.size(), true, true});
      if (made.ok()) key = made.value();
    });
    EXPECT_EQ(FakeFabric::registrations() > before, key != RemoteKey{}) << count;
    if (key != RemoteKey{}) pair.a.transport().abilities().regions->withdraw(key);
    EXPECT_EQ(FakeFabric::registrations(), before) << count;
    return failed;
  });
}

// Records ended operations without allocating.
class Ends final : public EndpointHandler {
 public:
  void on_message(const MessageHeader& /*header*/, ConstByteSpan /*payload*/) override {}
  void on_put(uint64_t /*cookie*/, uint64_t /*length*/) override {}
  void on_bulk_complete(Bulk& /*bulk*/, Code /*code*/) override { ++bulks; }
  void on_mapped(const RemoteKey&, const Result<MappedRegion>&) override {}
  void on_unmap(const RemoteKey&) override {}
  void on_writable() override {}
  void on_doubt(const StreamId& /*stream*/) override {}
  void on_failed(const Status& /*why*/) override { ++failures; }
  int bulks = 0;
  int failures = 0;
};

TEST_F(RdmaOutOfMemory, FailedPutOrGetLeavesNothingBehind) {
  std::vector<std::byte> far(kSize, std::byte{1});
  std::vector<std::byte> near(kSize, std::byte{2});
  std::vector<iovec> pieces;
  for (size_t i = 0; i < 20; ++i) pieces.push_back({near.data() + i * 5000, 5000});
  for (const bool get : {false, true}) {
    each_failing([&](int64_t count) {
      FakePair pair("RDMA_CACHE_BYTES=0", nullptr, &verbs());
      if (!pair.connect()) return false;
      const auto key =
          pair.b.transport().abilities().regions->publish({far.data(), far.size(), true, true});
      const size_t before = FakeFabric::registrations();
      Bulk bulk{.local = {pieces, 0, kSize}, .key = key.value()};
      Code code = Code::kOutOfMemory;
      Endpoint& endpoint = pair.to_b().endpoint();
      const EndpointAbilities can = endpoint.abilities();
      Ends ends;
      endpoint.set_handler(&ends);
      const bool failed =
          with_failing(count, [&] { code = get ? can.gets->get(bulk) : can.puts->put(bulk); });
      if (code == Code::kOk) {
        EXPECT_TRUE(pair.run([&] { return ends.bulks == 1; }));
      }
      EXPECT_TRUE(pair.run([&] { return endpoint.flushed(); }));
      EXPECT_EQ(ends.bulks, code == Code::kOk ? 1 : 0);
      EXPECT_EQ(ends.failures, 0);
      endpoint.set_handler(&pair.to_b());
      EXPECT_EQ(FakeFabric::registrations(), before) << count;
      EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
      pair.b.transport().abilities().regions->withdraw(key.value());
      return failed;
    });
  }
}

TEST_F(RdmaOutOfMemory, AttemptThatRunsOutOfMemoryEndsOnceAndTheNextSucceeds) {
  std::vector<std::byte> memory(kSize);
  for (const bool is_open : {true, false}) {
    each_failing([&](int64_t count) {
      // Without memory events no other thread allocates concurrently.
      FakePair pair(is_open ? "RDMA_CACHE_BYTES=0" : "", nullptr, &verbs());
      RegionPublisher& regions = *pair.a.transport().abilities().regions;
      const Region region{memory.data(), memory.size(), true, true};
      if (is_open && !regions.publish(region).ok()) return false;
      const auto contact = pair.b.transport().contact();
      bool begun = false;
      const bool failed = with_failing(count, [&] {
        pair.a.connect(1, contact);
        begun = true;
      });
      if (begun) {
        EXPECT_TRUE(pair.run([&] { return pair.a.connect_outcomes == 1; })) << count;
      }
      if (failed) {
        // A device opens without memory events as well.
        if (is_open) {
          EXPECT_FALSE(pair.a.connected.contains(1));
        }
        for (int i = 0; i < 100; ++i) {
          pair.a.step();
          pair.b.step();
        }
        EXPECT_LE(pair.a.connect_outcomes, 1);
        pair.a.connect_outcomes = 0;
        EXPECT_TRUE(pair.connect()) << "the next one is not disturbed";
      }
      return failed;
    });
  }
}

TEST_F(RdmaOutOfMemory, ConnectionEndsEvenIfEveryAllocationFails) {
  std::vector<std::byte> memory(kSize);
  std::vector<std::byte> near(kSize);
  const iovec piece{memory.data(), memory.size()};
  const iovec near_piece{near.data(), near.size()};
  for (const bool with_handler : {true, false}) {
    for (const bool destroy : {false, true}) {
      FakePair pair("RDMA_SLICE=4K", nullptr, &verbs());
      ASSERT_TRUE(pair.connect());
      const auto key = pair.to_a().expose({&piece, 1}, Access::kPutTarget, 3);
      const auto mine = pair.to_b().expose({&near_piece, 1}, Access::kGetSource, 3);
      ASSERT_TRUE(key.ok() && mine.ok());
      Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
      ASSERT_EQ(pair.to_b().endpoint().abilities().puts->put(bulk), Code::kOk);
      const size_t pairs = FakeFabric::queue_pairs().size();
      if (!with_handler) pair.to_b().endpoint().set_handler(nullptr);
      fail_all_allocations(true);
      pair.to_b().endpoint().abilities().puts->cancel(bulk);
      pair.to_b().endpoint().abilities().exposer->revoke(mine.value());
      pair.to_b().endpoint().close();
      if (destroy) pair.to_b().close();
      fail_all_allocations(false);
      EXPECT_EQ(FakeFabric::queue_pairs().size(), pairs - 1);
      if (destroy) continue;
      for (int i = 0; i < 10; ++i) pair.a.step();
      EXPECT_EQ(pair.to_b().failed, with_handler ? 1 : 0);
      if (!with_handler) pair.to_b().endpoint().set_handler(&pair.to_b());
      EXPECT_TRUE(pair.run([&] { return pair.to_b().failed == 1; }));
      EXPECT_EQ(pair.to_b().failure.code(), Code::kPeerLost);
    }
  }
}

class Caches : public RdmaOutOfMemory {
 protected:
  std::unique_ptr<rdma::MemoryRegionCache> make() {
    return std::make_unique<rdma::MemoryRegionCache>(verbs(), &pd_, uint64_t{64} << 20, false,
                                                     log_);
  }
  static std::byte* map(void* where = nullptr) {
    void* memory = mmap(where, 1 << 20, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | (where == nullptr ? 0 : MAP_FIXED), -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  Log log_;
  ibv_pd pd_{};
};

TEST_F(Caches, CacheKeepsNoRegionThatFailedToRegister) {
  each_failing([&](int64_t count) {
    const std::unique_ptr<rdma::MemoryRegionCache> cache = make();
    std::byte* memory = map();
    rdma::MemoryRegion* made = nullptr;
    const bool failed = with_failing(count, [&] {
      Result<rdma::MemoryRegion*> result = cache->acquire(memory, kSize, IBV_ACCESS_LOCAL_WRITE);
      if (result.ok()) made = result.value();
    });
    EXPECT_EQ(FakeFabric::registrations(), made != nullptr ? 1u : 0u);
    EXPECT_LE(cache->kept(), FakeFabric::registrations()) << count;
    if (made != nullptr) cache->release(made);
    auto again = cache->acquire(memory, kSize, IBV_ACCESS_LOCAL_WRITE);
    EXPECT_TRUE(again.ok());
    if (again.ok()) cache->release(again.value());
    munmap(memory, 1 << 20);
    return failed;
  });
}

// Threads that the cache has started are joined: a remaining thread would end the program.
TEST_F(Caches, CacheStartsWithoutEventsOrNotAtAllIfMemoryRunsOut) {
  if (!make()->watching()) GTEST_SKIP() << "no memory events here: userfaultfd is not allowed";
  bool without = false;
  each_failing([&](int64_t count) {
    return with_failing(count, [&] { without = !make()->watching() || without; });
  });
  EXPECT_TRUE(without) << "the trial of the events has failed once";
}

TEST_F(Caches, CacheDoesNotUnwatchMemoryOfAnotherCache) {
  const std::unique_ptr<rdma::MemoryRegionCache> mine = make();
  if (!mine->watching()) GTEST_SKIP() << "no memory events here: userfaultfd is not allowed";
  std::byte* memory = map();
  const auto use = [&](rdma::MemoryRegionCache& cache) {
    auto made = cache.acquire(memory, kSize, IBV_ACCESS_LOCAL_WRITE);
    if (!made.ok()) return 0u;
    const uint32_t key = made.value()->lkey();
    cache.release(made.value());
    return key;
  };
  each_failing([&](int64_t count) {
    const uint32_t first = use(*mine);
    bool failed = false;
    {
      const std::unique_ptr<rdma::MemoryRegionCache> other = make();
      failed = with_failing(count, [&] { (void)use(*other); });
    }
    EXPECT_EQ(use(*mine), first);
    munmap(memory, 1 << 20);
    EXPECT_EQ(map(memory), memory);
    EXPECT_NE(use(*mine), first) << "allocation " << count;
    return failed;
  });
  munmap(memory, 1 << 20);
}

}  // namespace
}  // namespace hetcomm::test
