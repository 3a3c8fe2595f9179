// Staging through the host, tested without a transfer.
//
//   * chunks grow with the message and with the copy rate, within limits; explicit settings are
//     used unchanged
//   * chunks of one or several transfers never overlap, and are returned
//   * a block that a rank can map is reserved for that rank
//   * a pool is bounded, but a transfer without a chunk gets one even beyond the limit
//   * a copy that may still be running has ended before its failure is reported
//   * copies for callers are as long as drivers allow, and each starts only after the previous one
//     has ended
//   * polling threads yield to processors of this host that copy
//   * a rate covers only time with work in progress, even if each interval was short, and one delay
//     changes the rate little
#include "src/core/memory/staging.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "devices/registry.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

constexpr uint64_t kKi = 1024;
constexpr uint64_t kMi = 1024 * kKi;

TEST(StagingPlanTest, ChunksGrowWithLengthAndRate) {
  for (const double rate : {0.0, 1e6, 250e6, 2e9, 10e9, 100e9}) {
    uint64_t before = 0;
    for (uint64_t length = 1; length <= 4096 * kMi; length *= 2) {
      const StagingShape shape = choose_staging_shape({}, length, {.bytes_per_s = rate});
      EXPECT_GE(shape.chunk_bytes, std::max(before, 32 * kKi)) << length << " at " << rate;
      EXPECT_LE(shape.chunk_bytes, ChunkPools::kLargestChunk) << length << " at " << rate;
      EXPECT_GE(shape.depth, 4U);
      EXPECT_LE(shape.depth, ChunkPools::kMaxDepth);
      before = shape.chunk_bytes;
    }
  }
  // A slow device: if the chunk were a twentieth of the message, the first and last chunks would
  // cost 5 %.
  EXPECT_EQ(choose_staging_shape({}, kMi, {.bytes_per_s = 250e6}).chunk_bytes, 32 * kKi);
  // A fast device: a chunk's fixed cost is about that of 50 KiB.
  EXPECT_GE(choose_staging_shape({}, 64 * kMi, {.bytes_per_s = 10e9}).chunk_bytes, 512 * kKi);
  EXPECT_GT(choose_staging_shape({}, kMi, {.bytes_per_s = 10e9}).chunk_bytes,
            choose_staging_shape({}, kMi, {.bytes_per_s = 250e6}).chunk_bytes);
  // Fewer chunks are used if copies are expensive to start.
  EXPECT_GE(choose_staging_shape({}, 4 * kMi, {.bytes_per_s = 10e9, .start_s = 20e-6}).chunk_bytes,
            2 * choose_staging_shape({}, 4 * kMi, {.bytes_per_s = 10e9}).chunk_bytes);
}

TEST(StagingPlanTest, ExplicitSettingsAreUsedWithinLimits) {
  const StagingShape shape =
      choose_staging_shape({.chunk_bytes = 3 * kMi, .depth = 2}, kMi, {.bytes_per_s = 1e9});
  EXPECT_EQ(shape.chunk_bytes, 3 * kMi);
  EXPECT_EQ(shape.depth, 2U);
  EXPECT_EQ(
      choose_staging_shape({.chunk_bytes = 0, .depth = 1000}, kMi, {.bytes_per_s = 1e9}).depth,
      ChunkPools::kMaxDepth);
}

class StagingShareTest : public ::testing::Test {
 protected:
  std::byte* take(ChunkPools::Share& share, bool has_one = true) {
    bool exhausted = false;
    std::byte* chunk = share.take(has_one, &exhausted);
    EXPECT_FALSE(exhausted);
    if (chunk == nullptr) return nullptr;
    std::memset(chunk, 1, share.shape().chunk_bytes);
    const auto next = taken_.lower_bound(chunk);
    EXPECT_TRUE(next == taken_.end() || chunk + share.shape().chunk_bytes <= next->first);
    EXPECT_TRUE(next == taken_.begin() ||
                std::prev(next)->first + std::prev(next)->second <= chunk);
    taken_[chunk] = share.shape().chunk_bytes;
    return chunk;
  }
  void give(ChunkPools::Share& share, std::byte* chunk) {
    taken_.erase(chunk);
    share.give(chunk);
  }

  DeviceSet devices_;
  ChunkPools pools_{devices_, {}};
  std::map<std::byte*, uint64_t> taken_;
};

TEST_F(StagingShareTest, ChunksOfTwoSizesNeverOverlap) {
  for (int round = 0; round < 3; ++round) {
    ChunkPools::Share small(pools_, ChunkPools::Pool::kSend);
    ChunkPools::Share large(pools_, ChunkPools::Pool::kSend);
    small.choose_shape(kMi, {.bytes_per_s = 1e6});
    large.choose_shape(64 * kMi, {.bytes_per_s = 100e9});
    ASSERT_LT(small.shape().chunk_bytes, large.shape().chunk_bytes);
    std::vector<std::byte*> of_small;
    std::vector<std::byte*> of_large;
    for (int i = 0; i < 10; ++i) {
      of_small.push_back(take(small));
      of_large.push_back(take(large));
      if (i % 3 != 2) continue;
      give(small, of_small.front());
      of_small.erase(of_small.begin());
      give(large, of_large.back());
      of_large.pop_back();
    }
    for (std::byte* chunk : of_small) give(small, chunk);
    for (std::byte* chunk : of_large) give(large, chunk);
  }
}

TEST_F(StagingShareTest, EveryTransferGetsOneChunkFromAnExhaustedPool) {
  ChunkPools::Share greedy(pools_, ChunkPools::Pool::kReceive);
  greedy.choose_shape(64 * kMi, {.bytes_per_s = 100e9});
  std::vector<std::byte*> chunks;
  while (std::byte* chunk = take(greedy)) {
    chunks.push_back(chunk);
    ASSERT_LE(chunks.size(), 1000U);
  }
  EXPECT_EQ(chunks.size() * ChunkPools::kLargestChunk, 64 * kMi);
  ChunkPools::Share poor(pools_, ChunkPools::Pool::kReceive);
  poor.choose_shape(64 * kMi, {.bytes_per_s = 100e9});
  std::byte* first = take(poor, false);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(take(poor), nullptr);
  // The other direction is unaffected.
  ChunkPools::Share other(pools_, ChunkPools::Pool::kSend);
  other.choose_shape(64 * kMi, {.bytes_per_s = 100e9});
  std::byte* elsewhere = take(other);
  ASSERT_NE(elsewhere, nullptr);
  give(other, elsewhere);
  give(greedy, chunks.back());
  chunks.pop_back();
  std::byte* second = take(poor);
  ASSERT_NE(second, nullptr);
  give(poor, first);
  give(poor, second);
  for (std::byte* chunk : chunks) give(greedy, chunk);
}

TEST(LoadTest, RateIgnoresIdleTimeAndOneLateCopy) {
  Throughput load;
  uint64_t now = 0;
  // 1000 bytes in 1 us, then 9 us idle.
  for (int i = 0; i < 10000; ++i, now += 10'000) {
    load.start(1000, now);
    load.finish(1000, now + 1000);
  }
  EXPECT_NEAR(load.rate(), 1e9, 1e6);
  // One copy is late by 2 ms.
  load.start(1000, now);
  load.finish(1000, now + 2'000'000);
  now += 3'000'000;
  for (int i = 0; i < 10000; ++i, now += 10'000) {
    load.start(1000, now);
    load.finish(1000, now + 1000);
  }
  EXPECT_NEAR(load.rate(), 1e9, 0.1e9);
}

TEST(LoadTest, BurstAfterAPauseDoesNotRaiseTheRateMuch) {
  Throughput load;
  uint64_t now = 0;
  const auto pass = [&](uint64_t bytes, uint64_t elapsed_ns) {
    load.start(bytes, now);
    now += elapsed_ns;
    load.finish(bytes, now);
  };
  for (int i = 0; i < 20; ++i) pass(64 << 10, 50'000'000);
  const double rate = load.rate();
  EXPECT_NEAR(rate, (64 << 10) / 0.05, rate / 100);
  now += 1'000'000'000;
  pass(64 << 10, 1'000'000);
  EXPECT_LT(load.rate(), 1.5 * rate);
  for (int i = 0; i < 5; ++i) pass(64 << 10, 50'000'000);
  EXPECT_NEAR(load.rate(), rate, rate / 10);
}

TEST(LoadTest, FinishedTransferWithoutBytesMeasuresNothing) {
  Throughput load;
  load.start(0, 0);
  load.finish(0, 5'000'000);
  EXPECT_EQ(load.rate(), 0);
}

class Heard final : public CopyHandler {
 public:
  void on_copied(const Status& status) override { heard.push_back(status.code()); }
  std::string copy_purpose() const override { return "a test"; }
  std::vector<Code> heard;
};

TEST(StagingCopyTest, CopyHasEndedBeforeItsFailureIsReported) {
  const Device real = create_sim_device("sim-handle", "latency=30ms").value();
  DeviceTable table = *real.table;
  table.event_record = [](void*, void*, void**) -> hetcomm_status_t {
    return HETCOMM_OUT_OF_MEMORY;
  };
  DeviceSet devices;
  ASSERT_TRUE(devices.add({&table, real.instance}).ok());
  Staging staging(devices, {});
  constexpr uint64_t kSize = 64 * kKi;
  void* address = nullptr;
  ASSERT_EQ(table.allocate(real.instance, kSize, &address), HETCOMM_OK);
  {
    Memory memory(devices, 0, address, kSize, true);
    const std::vector<BufferPiece> pieces = {{&memory, 0, kSize}};
    std::vector<std::byte> host(kSize, std::byte{0x77});
    for (int round = 0; round < 2; ++round) {
      CopyJob job;
      Heard handler;
      staging.start(job, StreamDirection::kToHost, pieces, 0, host.data(), kSize, handler);
      staging.progress();
      ASSERT_EQ(handler.heard, std::vector<Code>{Code::kOutOfMemory});
      // The next user of the chunk writes to it.
      host.assign(kSize, std::byte{0x33});
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      EXPECT_EQ(host, std::vector<std::byte>(kSize, std::byte{0x33}));
    }
  }
}

uint64_t unwaited;       // bytes of copies whose event has not been waited for
uint64_t most_unwaited;  // maximum of |unwaited|

void note_copy(uint64_t size) {
  unwaited += size;
  most_unwaited = std::max(most_unwaited, unwaited);
}

// The host memory belongs to the caller and is not pinned.
TEST(MemoryTest, LongCopiesAreSplitIntoPieces) {
  constexpr uint64_t kSize = 9 * kMi + 5;
  static const Device real = create_sim_device("sim-address", "memory=64M").value();
  DeviceTable table = *real.table;
  table.copy_to_host = [](void* device, void* stream, void* host, const void* address,
                          uint64_t offset, uint64_t size) {
    note_copy(size);
    return real.table->copy_to_host(device, stream, host, address, offset, size);
  };
  table.copy_from_host = [](void* device, void* stream, void* address, uint64_t offset,
                            const void* host, uint64_t size) {
    note_copy(size);
    return real.table->copy_from_host(device, stream, address, offset, host, size);
  };
  // Two pieces may run concurrently.
  table.event_query = [](void* device, void* event) {
    const hetcomm_status_t status = real.table->event_query(device, event);
    if (status == HETCOMM_OK) unwaited -= std::min<uint64_t>(unwaited, 2 * kMi);
    return status;
  };
  DeviceSet devices;
  ASSERT_TRUE(devices.add({&table, real.instance}).ok());
  void* address = nullptr;
  ASSERT_EQ(table.allocate(real.instance, kSize + 7, &address), HETCOMM_OK);
  Memory memory(devices, 0, address, kSize + 7, true);
  std::vector<std::byte> sent(kSize);
  for (size_t i = 0; i < kSize; ++i) sent[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  std::vector<std::byte> back(kSize);
  ASSERT_TRUE(memory.write(7, sent.data(), kSize).ok());
  ASSERT_TRUE(memory.read(7, back.data(), kSize).ok());
  EXPECT_TRUE(back == sent);
  EXPECT_LE(most_unwaited, 4 * kMi);
}

// Memory on a device whose copies take 200 ms, and a poller that sleeps on these copies.
struct SlowDevice {
  static constexpr uint64_t kSize = 64 * kKi;

  SlowDevice() {
    devices.notice().set_poller(poller);
    const Device device = create_sim_device("sim-handle", "latency=200ms").value();
    EXPECT_TRUE(devices.add(device).ok());
    void* address = nullptr;
    EXPECT_EQ(device.table->allocate(device.instance, kSize, &address), HETCOMM_OK);
    memory.emplace(devices, 0, address, kSize, true);
    pieces = {{&*memory, 0, kSize}};
  }
  Poller poller = Poller::create().value();
  DeviceSet devices;
  Staging staging{devices, {}};
  std::optional<Memory> memory;
  std::vector<BufferPiece> pieces;
};

// Submits two copies in the streams of each direction. A sleep may begin if devices will announce
// the end of the running copies, but not if a copy has ended, whichever call has consumed its
// notification.
TEST(StagingCopyTest, SleepEndsWhenACopyEnds) {
  SlowDevice slow;
  Poller& poller = slow.poller;
  Staging& staging = slow.staging;
  constexpr uint64_t kSize = SlowDevice::kSize;
  const std::vector<BufferPiece>& pieces = slow.pieces;
  std::vector<std::byte> host(4 * kSize);
  std::array<CopyJob, 4> jobs;
  Heard handler;
  EXPECT_TRUE(staging.may_sleep_on()) << "nothing runs";
  for (size_t i = 0; i < jobs.size(); ++i) {
    staging.start(jobs[i], i < 2 ? StreamDirection::kFromHost : StreamDirection::kToHost, pieces, 0,
                  host.data() + i * kSize, kSize, handler);
    // The second copy of a stream ends after the first.
    EXPECT_EQ(staging.may_sleep_on(), i % 2 == 1) << i;
    EXPECT_TRUE(staging.prepare_sleep());
    EXPECT_TRUE(staging.may_sleep_on());
  }
  size_t sleeps = 0;
  size_t late = 0;
  while (handler.heard.size() < jobs.size()) {
    while (!staging.prepare_sleep()) staging.progress();
    if (staging.idle()) break;
    const uint64_t begin = now_ns();
    poller.wait(10'000'000'000);
    ASSERT_LT(now_ns() - begin, 5'000'000'000U) << "nobody ended the sleep";
    ++sleeps;
    EXPECT_EQ(poller.poll(), 1);  // this consumes the notification
    // It may be that of a copy whose end was seen before.
    if (staging.prepare_sleep()) ++late;
  }
  // The second copies end long after the first ones.
  EXPECT_GE(sleeps - late, 2U) << "a sleep begins although a copy is over";
  EXPECT_EQ(handler.heard, std::vector<Code>(4, Code::kOk));
}

// The first copy to be slept on creates the descriptor. If that fails, copies are polled, and the
// next such copy tries again.
TEST(StagingCopyTest, CopiesArePolledIfNoDescriptorIsAvailable) {
  SlowDevice slow;
  Staging& staging = slow.staging;
  constexpr uint64_t kSize = SlowDevice::kSize;
  std::vector<std::byte> host(kSize);
  CopyJob job;
  Heard handler;
  staging.start(job, StreamDirection::kToHost, slow.pieces, 0, host.data(), kSize, handler);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool may_sleep = staging.prepare_sleep();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(may_sleep);
  EXPECT_TRUE(staging.prepare_sleep());
  while (handler.heard.empty()) staging.progress();
  EXPECT_EQ(handler.heard, std::vector<Code>{Code::kOk});
}

// Records the keys that are published and not withdrawn.
class Published final : public BlockPublisher {
 public:
  Result<RemoteKey> publish_block(size_t transport, int reader, Region region) override {
    EXPECT_EQ(transport, 3U);
    EXPECT_GE(region.file, 0);
    regions[++last] = {reader, region};
    return RemoteKey{{last, 0, 0}};
  }
  bool withdraw_block(size_t transport, const RemoteKey& key) override {
    EXPECT_EQ(transport, 3U);
    regions.erase(key.words[0]);
    return true;
  }
  std::map<uint64_t, std::pair<int, Region>> regions;
  uint64_t last = 0;
};

// Takes a chunk that is as long as a block.
std::byte* take_block(ChunkPools::Share& share) {
  share.choose_shape(64 * kMi, {.bytes_per_s = 100e9});
  bool exhausted = false;
  return share.take(false, &exhausted);
}

// A rank that has a file can read it forever. If there are more ranks than blocks, the blocks are
// reassigned in turn.
TEST(ChunkPoolsTest, BlockIsReservedForOneReader) {
  DeviceSet devices;
  const Device host = create_host_device().value();
  ASSERT_TRUE(devices.add(host).ok());
  Published published;
  ChunkPools pools{devices, {}};
  pools.set_publisher(&published);
  for (int round = 0; round < 3; ++round) {
    for (int reader = ChunkPools::kNoReader; reader < 40; ++reader) {
      ChunkPools::Share share(pools, ChunkPools::Pool::kSend, reader);
      std::byte* const chunk = take_block(share);
      ASSERT_NE(chunk, nullptr);
      for (const auto& [key, region] : published.regions) {
        const bool inside =
            chunk >= region.second.address && chunk < region.second.address + region.second.length;
        EXPECT_TRUE(!inside || region.first == reader) << "rank " << region.first << " reads it";
      }
      const std::optional<ChunkLocation> place = share.locate(chunk, 3);
      EXPECT_EQ(place.has_value(), reader != ChunkPools::kNoReader);
      if (place) {
        EXPECT_EQ(published.regions.at(place->region.words[0]).first, reader);
      }
      share.give(chunk);
    }
    EXPECT_LE(published.regions.size(), 32U);
  }
  // The same rank keeps its block from one transfer to the next.
  const uint64_t before = published.last;
  for (int i = 0; i < 5; ++i) {
    ChunkPools::Share share(pools, ChunkPools::Pool::kSend, 39);
    std::byte* const chunk = take_block(share);
    EXPECT_TRUE(share.locate(chunk, 3).has_value());
    share.give(chunk);
  }
  EXPECT_EQ(published.last, before);
  // Receiving uses no files.
  ChunkPools::Share receiving(pools, ChunkPools::Pool::kReceive, 1);
  std::byte* const chunk = take_block(receiving);
  EXPECT_FALSE(receiving.locate(chunk, 3).has_value());
  receiving.give(chunk);
}

// Memory that a peer may still read is not freed while a stream is held back, and no replacement is
// allocated for it.
TEST(ChunkPoolsTest, BlocksWaitingToBeFreedCountAgainstThePool) {
  DeviceSet devices;
  const Device host = create_host_device().value();
  ASSERT_TRUE(devices.add(host).ok());
  Published published;
  ChunkPools pools{devices, {}};
  pools.set_publisher(&published);
  std::vector<std::unique_ptr<ChunkPools::Share>> shares;
  std::vector<std::byte*> chunks;
  for (int i = 0; i < 32; ++i) {
    shares.push_back(std::make_unique<ChunkPools::Share>(pools, ChunkPools::Pool::kSend, 1));
    chunks.push_back(take_block(*shares.back()));
    ASSERT_NE(chunks.back(), nullptr);
  }
  {
    const std::lock_guard lock(devices.calls().holding());
    devices.calls().add_hold();
  }
  for (size_t i = 0; i < shares.size(); ++i) shares[i]->leave(chunks[i]);
  ChunkPools::Share next(pools, ChunkPools::Pool::kSend, 1);
  next.choose_shape(64 * kMi, {.bytes_per_s = 100e9});
  bool exhausted = true;
  EXPECT_EQ(next.take(true, &exhausted), nullptr);
  EXPECT_FALSE(exhausted);
  // A transfer without a chunk gets one even beyond the limit.
  std::byte* const guaranteed = next.take(false, &exhausted);
  EXPECT_NE(guaranteed, nullptr);
  next.give(guaranteed);
  devices.calls().drop_hold();
  pools.tidy();
  std::byte* const chunk = next.take(true, &exhausted);
  EXPECT_NE(chunk, nullptr);
  next.give(chunk);
}

// Polling threads yield only while processors of this host copy.
TEST(StagingCopyTest, PollersYieldOnlyWhileTheCpuCopies) {
  for (const bool unified : {true, false}) {
    SpinPolicy spin;
    spin.set_up(1000, true, false);
    DeviceSet devices;
    const Device host_device = create_host_device().value();
    const Device device =
        create_sim_device("sim-handle", unified ? "latency=200ms:unified=1" : "latency=200ms")
            .value();
    ASSERT_TRUE(devices.add(host_device).ok());
    ASSERT_TRUE(devices.add(device).ok());
    Staging staging{devices, {}, &spin};
    constexpr uint64_t kSize = 4096;
    void* address = nullptr;
    ASSERT_EQ(device.table->allocate(device.instance, kSize, &address), HETCOMM_OK);
    Memory memory(devices, 1, address, kSize, true);
    const std::vector<BufferPiece> pieces = {{&memory, 0, kSize}};
    std::vector<std::byte> host(kSize);
    std::array<CopyJob, 2> jobs;
    Heard handler;
    for (CopyJob& job : jobs) {
      staging.start(job, StreamDirection::kToHost, pieces, 0, host.data(), kSize, handler);
      EXPECT_EQ(spin.yields(), unified);
    }
    while (handler.heard.size() < jobs.size()) staging.progress();
    EXPECT_FALSE(spin.yields());
  }
}

// Rows of two memories are copied in one job. One memory's device does not support rows.
TEST(StagingCopyTest, RowsOfTwoMemoriesAreCopiedInOneJob) {
  DeviceSet devices;
  for (const char* const kind : {"sim-handle", "sim-address"}) {
    ASSERT_TRUE(devices.add(create_sim_device(kind, "").value()).ok());
  }
  Staging staging(devices, {});
  constexpr uint64_t kSize = 1000;
  std::vector<std::unique_ptr<Memory>> memories;
  for (size_t i = 0; i < 2; ++i) {
    const Device& device = devices.device(i);
    void* address = nullptr;
    ASSERT_EQ(device.table->allocate(device.instance, kSize, &address), HETCOMM_OK);
    memories.push_back(std::make_unique<Memory>(devices, i, address, kSize, true));
    const std::vector<std::byte> zeros(kSize);
    ASSERT_TRUE(memories.back()->write(0, zeros.data(), kSize).ok());
  }
  const DeviceRows rows{.offset = 7, .row_bytes = 5, .extents = {3, 4}, .strides = {100, 11}};
  std::vector<std::byte> host(4 * bytes_of(rows));
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i % 251 + 1);
  std::vector<StagedRows> pieces;
  for (size_t i = 0; i < 4; ++i) {
    DeviceRows own = rows;
    own.offset += i / 2 * 500;
    pieces.push_back({memories[i % 2].get(), own, host.data() + i * bytes_of(rows)});
  }
  const auto finish = [&](CopyJob& job, Heard& handler) {
    while (job.running()) staging.progress();
    EXPECT_EQ(handler.heard, std::vector<Code>{Code::kOk});
  };
  {
    CopyJob job;
    Heard handler;
    staging.start(job, StreamDirection::kFromHost, pieces, handler);
    finish(job, handler);
  }
  for (size_t i = 0; i < 2; ++i) {
    std::vector<std::byte> expected(kSize);
    for (size_t piece = i; piece < 4; piece += 2) {
      const std::byte* next = pieces[piece].host;
      for (uint64_t row = 0; row < 12; ++row) {
        const uint64_t at = pieces[piece].rows.offset + row / 4 * 100 + row % 4 * 11;
        std::memcpy(expected.data() + at, next, 5);
        next += 5;
      }
    }
    std::vector<std::byte> contents(kSize);
    ASSERT_TRUE(memories[i]->read(0, contents.data(), kSize).ok());
    EXPECT_EQ(contents, expected) << i;
  }
  const std::vector<std::byte> sent = host;
  host.assign(host.size(), std::byte{0});
  CopyJob job;
  Heard handler;
  staging.start(job, StreamDirection::kToHost, pieces, handler);
  finish(job, handler);
  EXPECT_EQ(host, sent);
}

}  // namespace
}  // namespace hetcomm
