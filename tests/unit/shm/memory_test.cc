// The parts below an endpoint:
//
//    * a connection's memory takes at most 32 KiB until a ring is used, and then only as much as is
//      used, with and without its file; it is sealed, and leaves nothing behind;
//    * entries and bytes cross the ring complete and in order at every size, between two threads,
//      while the used part of the ring grows; the producer never waits for consumption reports
//      while it has room;
//    * impossible entries are refused wherever in a lap they occur;
//    * a process is read only if its whole nonce is found;
//    * a peer's region is mapped only if it is sealed plain memory of the requested length;
//    * cursors, queues and tables behave as their headers specify, even with stale keys;
//    * streaming copies write exactly their target at every alignment.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "src/base/copy.h"
#include "tests/support/pattern.h"
#include "transports/shm/bulk_queue.h"
#include "transports/shm/cma.h"
#include "transports/shm/connection_memory.h"
#include "transports/shm/exposure.h"
#include "transports/shm/mapping.h"
#include "transports/shm/ring.h"

namespace hetcomm::test {
namespace {

using shm::ConnectionMemory;
using shm::Geometry;

uint64_t allocated_bytes(int file) {
  struct stat info {};
  EXPECT_EQ(fstat(file, &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(ShmConnectionMemory, RingTakesMemoryOnlyWhenUsed) {
  const Geometry geometry;
  auto memory = ConnectionMemory::create(geometry);
  ASSERT_TRUE(memory.ok()) << memory.status().text();
  EXPECT_LE(allocated_bytes(memory->file()), 32u << 10);
  const UniqueFd file(dup(memory->file()));
  constexpr uint64_t kPart = 16 << 10;
  for (const uint64_t from : {uint64_t{0}, kPart}) {
    if (from > 0) {
      memory->let_go_of_file();
      EXPECT_LT(memory->file(), 0) << "an old kernel: not tested here";
    }
    EXPECT_EQ(memory->allocate_ring(1, from, from + kPart), Code::kOk);
    EXPECT_EQ(allocated_bytes(file.get()), shm::kControlBytes + from + kPart);
    std::memset(memory->ring(1) + from, 1, kPart);
    EXPECT_EQ(allocated_bytes(file.get()), shm::kControlBytes + from + kPart);
  }
  EXPECT_EQ(memory->allocate_ring(1, 2 * kPart, geometry.ring_bytes), Code::kOk);
  EXPECT_EQ(allocated_bytes(file.get()), shm::kControlBytes + geometry.ring_bytes);
  EXPECT_NE(ftruncate(file.get(), 4096), 0) << "sealed against shrinking";
}

TEST(ShmConnectionMemory, CreationFailureStatesItsReason) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit little = before;
  little.rlim_cur = 64 << 10;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto memory = ConnectionMemory::create({});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(memory.status().text().find("shm"), std::string_view::npos) << memory.status().text();
}

TEST(ShmMapping, OnlySealedMemoryOfTheRequestedLengthIsMapped) {
  constexpr uint64_t kSize = 64 << 10;
  const auto make = [](unsigned flags, int seals, uint64_t size) {
    UniqueFd file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (!file.valid()) return file;
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  };
  const auto map = [](const UniqueFd& file, uint64_t offset, uint64_t length, uint64_t asked) {
    const shm::Parcel here{shm::ParcelKind::kHere, 0, 1, length, offset};
    return shm::Mapping::create(file, here, asked).status();
  };
  const UniqueFd good = make(0, F_SEAL_SHRINK, kSize);
  EXPECT_TRUE(map(good, 0, kSize, kSize).ok());
  EXPECT_TRUE(map(good, 100, 200, 200).ok());
  EXPECT_FALSE(map(good, 0, kSize, kSize - 1).ok());
  EXPECT_FALSE(map(good, 0, kSize - 1, kSize).ok());
  EXPECT_FALSE(map(good, 0, 0, 0).ok());
  EXPECT_FALSE(map(good, 1, kSize, kSize).ok());
  EXPECT_FALSE(map(good, ~uint64_t{0}, 2, 2).ok());
  EXPECT_FALSE(map(make(0, F_SEAL_GROW, kSize), 0, kSize, kSize).ok());
  constexpr uint64_t kHuge = 2 << 20;
  if (const UniqueFd huge = make(MFD_HUGETLB, F_SEAL_SHRINK, kHuge); huge.valid()) {
    const Status status = map(huge, 0, kHuge, kHuge);
    EXPECT_NE(status.text().find("no memory file"), std::string_view::npos) << status.text();
  }
  UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(map(file, 0, 4096, 4096).ok());
}

struct RingEnds {
  explicit RingEnds(const Geometry& geometry) : memory(ConnectionMemory::create(geometry).value()) {
    if (memory.allocate_ring(0, 0, geometry.ring_bytes) != Code::kOk) std::abort();
  }
  shm::Producer producer() {
    return {memory.side(0), memory.side(1), memory.ring(0), memory.geometry().ring_bytes};
  }
  // Grows the used part of the ring until |producer| has room for |length| bytes.
  static void make_fit(shm::Producer& producer, uint64_t length) {
    for (uint64_t bytes = 1 << 10; !producer.fits(length); bytes *= 2) {
      if (bytes > producer.used_ring_bytes()) producer.grow(bytes);
    }
  }
  shm::Consumer consumer() {
    return {memory.side(0), memory.side(1), memory.ring(0), memory.geometry().ring_bytes};
  }
  ConnectionMemory memory;
};

TEST(ShmRing, BytesOfAllSizesCrossInOrder) {
  const Geometry geometry{64 << 10, 16 << 10};
  RingEnds ends(geometry);
  constexpr uint64_t kEntries = 30'000;
  std::thread far([&] {
    Random random(1);
    shm::Consumer consumer = ends.consumer();
    for (uint64_t i = 0; i < kEntries; ++i) {
      while (!consumer.ready()) std::this_thread::yield();
      const uint64_t length = random.size_up_to(geometry.chunk_bytes);
      ASSERT_EQ(consumer.slot().kind_and_length & 0xffffff, length);
      uint64_t position = 0;
      std::memcpy(&position, consumer.slot().body.data(), sizeof(position));
      const std::byte* const bytes = consumer.take_bytes(position, length);
      ASSERT_NE(bytes, nullptr);
      ASSERT_FALSE(find_mismatch({bytes, length}, i)) << i;
      consumer.pop();
      if (consumer.should_publish()) consumer.publish();
    }
  });
  Random random(1);
  shm::Producer producer = ends.producer();
  for (uint64_t i = 0; i < kEntries; ++i) {
    const uint64_t length = random.size_up_to(geometry.chunk_bytes);
    while (!producer.has_room(length)) std::this_thread::yield();
    RingEnds::make_fit(producer, length);
    const uint64_t position = producer.position_for(length);
    fill_pattern({producer.at(position), length}, i);
    std::memcpy(producer.slot().body.data(), &position, sizeof(position));
    producer.publish_bytes(shm::SlotKind::kRing, position, length);
  }
  far.join();
  EXPECT_FALSE(producer.broken());
}

// Consumption is reported in quarters only, but a request for a chunk must still get all of it.
// Whatever the ring's entries say, no byte outside the producer's possible writes is read.
TEST(ShmRing, InvalidEntriesAreRefusedAtAnyRingPosition) {
  const Geometry geometry{64 << 10, 16 << 10};
  constexpr uint64_t kLap = 64 << 10;
  RingEnds ends(geometry);
  for (const uint64_t consumed : {uint64_t{0}, kLap / 2, kLap - 128, 3 * kLap, 3 * kLap + 4096}) {
    const auto consumer = [&] {
      shm::Consumer at = ends.consumer();
      for (uint64_t lap = 0; lap < consumed; lap += kLap) {
        EXPECT_NE(at.take_bytes(lap, std::min(kLap, consumed - lap)), nullptr);
      }
      return at;
    };
    const auto takes = [&](uint64_t position, uint64_t length) {
      return consumer().take_bytes(position, length) != nullptr;
    };
    const uint64_t end = (consumed / kLap + 1) * kLap;
    EXPECT_TRUE(takes(consumed, end - consumed));
    EXPECT_TRUE(takes(end - 64, 64));
    EXPECT_FALSE(takes(consumed, end - consumed + 1)) << "over the end of the ring";
    EXPECT_FALSE(takes(end - 64, 65)) << "over the end of the ring";
    EXPECT_FALSE(takes(consumed + kLap, 1)) << "more than the ring holds";
    EXPECT_FALSE(takes(consumed + kLap + 64, 64)) << "more than the ring holds";
    EXPECT_FALSE(takes(consumed + 2 * kLap, 64)) << "more than the ring holds";
    EXPECT_FALSE(takes(consumed - 64, 64)) << "what was consumed before";
    EXPECT_FALSE(takes(consumed + 1, 1)) << "no entry begins there";
  }
}

TEST(ShmRing, IdleConsumerNeverStarvesTheProducer) {
  const Geometry geometry{64 << 10, 16 << 10};
  Random random(2);
  for (int round = 0; round < 100; ++round) {
    RingEnds ends(geometry);
    shm::Producer producer = ends.producer();
    shm::Consumer consumer = ends.consumer();
    for (int i = 0; i < 40; ++i) {
      const uint64_t length =
          random.chance(0.5) ? geometry.chunk_bytes : random.size_up_to(geometry.chunk_bytes);
      if (!producer.has_room(length)) {
        while (consumer.ready()) {
          uint64_t position = 0;
          std::memcpy(&position, consumer.slot().body.data(), sizeof(position));
          ASSERT_NE(consumer.take_bytes(position, consumer.slot().kind_and_length & 0xffffff),
                    nullptr);
          consumer.pop();
          if (consumer.should_publish()) consumer.publish();
        }
        ASSERT_TRUE(producer.has_room(length));
      }
      RingEnds::make_fit(producer, length);
      ASSERT_LE(producer.used_ring_bytes(), geometry.ring_bytes);
      const uint64_t position = producer.position_for(length);
      std::memcpy(producer.slot().body.data(), &position, sizeof(position));
      producer.publish_bytes(shm::SlotKind::kRing, position, length);
    }
  }
}

// Small messages, each consumed before the next, stay in a small part of a large ring.
TEST(ShmRing, SmallMessagesUseASmallPartOfTheRing) {
  const Geometry geometry;
  RingEnds ends(geometry);
  shm::Producer producer = ends.producer();
  shm::Consumer consumer = ends.consumer();
  constexpr uint64_t kLength = 200;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(producer.has_room(kLength));
    RingEnds::make_fit(producer, kLength);
    const uint64_t position = producer.position_for(kLength);
    ASSERT_LE((position & (geometry.ring_bytes - 1)) + kLength, producer.used_ring_bytes());
    std::memset(producer.at(position), i, kLength);
    std::memcpy(producer.slot().body.data(), &position, sizeof(position));
    producer.publish_bytes(shm::SlotKind::kRing, position, kLength);
    ASSERT_TRUE(consumer.ready());
    const std::byte* const bytes = consumer.take_bytes(position, kLength);
    ASSERT_NE(bytes, nullptr);
    ASSERT_EQ(bytes[kLength - 1], static_cast<std::byte>(i));
    consumer.pop();
    if (consumer.should_publish()) consumer.publish();
  }
  EXPECT_LE(producer.used_ring_bytes(), 8u << 10);
}

TEST(ShmBulkQueue, HighPriorityGoesFirstThenArrivalOrder) {
  std::array<Bulk, 6> bulks;
  bulks[3].high_priority = bulks[5].high_priority = true;
  shm::BulkQueue queue;
  for (Bulk& bulk : bulks) queue.push(bulk);
  EXPECT_TRUE(queue.remove(bulks[1]));
  EXPECT_FALSE(queue.remove(bulks[1]));
  for (const size_t expected : {3u, 5u, 0u, 2u, 4u}) {
    ASSERT_EQ(&queue.front(), &bulks[expected]);
    EXPECT_TRUE(queue.remove(bulks[expected]));
  }
  EXPECT_TRUE(queue.empty());
  queue.push(bulks[0]);
  queue.push(bulks[1]);
  EXPECT_TRUE(queue.remove(bulks[1]));
  queue.push(bulks[2]);
  EXPECT_TRUE(queue.remove(bulks[0]));
  EXPECT_EQ(&queue.front(), &bulks[2]);
}

TEST(ShmExposure, StaleKeysFindNothing) {
  std::array<std::byte, 64> memory{};
  const iovec piece{memory.data(), memory.size()};
  shm::TargetTable targets;
  const RemoteKey first = targets.add(Extents(&piece, 1), 1);
  EXPECT_NE(targets.find(first.words[0]), nullptr);
  targets.remove(first);
  const RemoteKey second = targets.add(Extents(&piece, 1), 2);
  EXPECT_EQ(targets.find(first.words[0]), nullptr);
  targets.remove(first);
  ASSERT_NE(targets.find(second.words[0]), nullptr);
  EXPECT_EQ(targets.find(second.words[0])->cookie, 2u);

  auto shared = ConnectionMemory::create({}).value();
  shm::SourceTable sources(shared.side(0));
  std::vector<RemoteKey> keys;
  for (uint32_t i = 0; i < shm::kSourceCount; ++i) {
    auto key = sources.add(Extents(&piece, 1));
    ASSERT_TRUE(key.ok());
    keys.push_back(key.value());
  }
  EXPECT_EQ(sources.add(Extents(&piece, 1)).status().code(), Code::kOutOfResources);
  shm::SourceKey decoded{};
  ASSERT_TRUE(shm::SourceKey::decode(keys[7], decoded));
  const auto& word = shared.side(0).sources[decoded.index];
  EXPECT_EQ(word.load(), decoded.generation);
  sources.remove(keys[7]);
  EXPECT_EQ(word.load(), 0u);
  ASSERT_TRUE(sources.add(Extents(&piece, 1)).ok());
  sources.remove(keys[7]);
  EXPECT_NE(word.load(), 0u) << "a stale key must not withdraw its successor";
  sources.clear();
  for (const auto& each : shared.side(0).sources) EXPECT_EQ(each.load(), 0u);
}

// The process's number may by now belong to another process, or refer to one in another namespace.
TEST(ShmReading, ReadingAProcessRequiresItsWholeNonce) {
  shm::Nonce there{};
  for (size_t i = 0; i < there.size(); ++i) there[i] = static_cast<std::byte>(i + 1);
  const auto address = reinterpret_cast<uint64_t>(there.data());
  const Status right = shm::prove_reading(getpid(), address, there);
  if (!right.ok()) GTEST_SKIP() << right.text();
  for (size_t i = 0; i < there.size(); ++i) {
    shm::Nonce expected = there;
    expected[i] ^= std::byte{1};
    EXPECT_FALSE(shm::prove_reading(getpid(), address, expected).ok()) << i;
  }
  EXPECT_FALSE(shm::prove_reading(0, address, there).ok());
  EXPECT_FALSE(shm::prove_reading(getpid(), 64, there).ok());
}

TEST(ShmCopy, StreamingCopyWritesExactlyItsRange) {
  Random random(6);
  std::vector<std::byte> source(20'000);
  fill_pattern(source, 8);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> target(20'300, std::byte{0xa5});
    const size_t from = random.below(100);
    const size_t to = random.below(200);
    const size_t length = random.size_up_to(19'900) - 1;
    copy_streaming(target.data() + to, source.data() + from, length);
    ASSERT_FALSE(find_mismatch({target.data() + to, length}, 8, from));
    for (size_t i = 0; i < target.size(); ++i) {
      const bool outside = i < to || i >= to + length;
      ASSERT_TRUE(!outside || target[i] == std::byte{0xa5}) << i;
    }
  }
}

}  // namespace
}  // namespace hetcomm::test
