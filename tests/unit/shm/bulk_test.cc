// Puts and gets, where shm has its own rules (the common rules are tested in tests/conformance):
//
//    * a put reports once, when complete; a cancelled put, or one with a revoked target, writes
//      nothing later;
//    * high priority overtakes, and messages pass between a put's pieces; a refused message is sent
//      before all further pieces;
//    * a get ends with kCancelled if its source is withdrawn at any time before its last byte is
//      checked, and otherwise reads lists of any shape;
//    * HETCOMM_SHM_BULK decides whether gets are available, and describe() gives the reason if not.
#include <sys/mman.h>

#include "tests/unit/shm/raw_peer.h"

namespace hetcomm::test {
namespace {

Bulk make_bulk(const GuardedMemory& memory, uint64_t offset, uint64_t length, const RemoteKey& key,
               uint64_t remote_offset) {
  Bulk bulk;
  bulk.local = {memory.extents(), offset, length};
  bulk.key = key;
  bulk.remote_offset = remote_offset;
  return bulk;
}

TEST(ShmBulk, PutsOfRandomShapesArriveIntactAndReportOnce) {
  for (const char* settings : {"", "SHM_RING_BYTES=64K", "SHM_RING_BYTES=64K;SHM_CHUNK=4K"}) {
    ShmPair pair(settings);
    Random random(1);
    for (int round = 0; round < 40; ++round) {
      const uint64_t size = random.size_up_to(600'000);
      GuardedMemory source(size, random.between(1, 30), random);
      GuardedMemory target(size, random.between(1, 30), random);
      source.fill(17);
      const auto key = pair.far().expose(target.extents(), Access::kPutTarget, 3).value();
      const uint64_t at = random.below(size);
      const uint64_t length = random.below(size - at + 1);
      Bulk bulk = make_bulk(source, at, length, key, at);
      pair.far().put_bytes.clear();
      ASSERT_EQ(pair.near().put(bulk), Code::kOk);
      pair.until("the put", [&] { return pair.far().put_bytes.contains(3); });
      EXPECT_EQ(pair.far().put_bytes[3], length);
      EXPECT_FALSE(target.mismatch(17, at, length, at));
      EXPECT_TRUE(target.guards_intact());
      pair.until("completion", [&] { return pair.near().completions.size() == 1; });
      EXPECT_EQ(pair.near().completions[0].code, Code::kOk);
      pair.near().completions.clear();
      pair.far().revoke(key);
    }
  }
}

TEST(ShmBulk, RevokeStopsWritesAndCancelStopsReports) {
  Random random(2);
  ShmPair pair("SHM_RING_BYTES=64K");
  for (int round = 0; round < 60; ++round) {
    const uint64_t size = 400'000;
    GuardedMemory source(size, 3, random);
    GuardedMemory target(size, 3, random);
    source.fill(1);
    target.fill(2);
    const auto key = pair.far().expose(target.extents(), Access::kPutTarget, 5).value();
    Bulk bulk = make_bulk(source, 0, size, key, 0);
    pair.far().put_bytes.clear();
    ASSERT_EQ(pair.near().put(bulk), Code::kOk);
    for (uint64_t i = random.below(6); i > 0; --i) pair.near_node().step();
    for (uint64_t i = random.below(3); i > 0; --i) pair.far_node().step();
    const bool ended = !pair.near().completions.empty();
    const bool cancel = random.chance(0.5);
    if (cancel && !ended) {
      pair.near().cancel(bulk);
      source.fill(3);
    }
    pair.far().revoke(key);
    EXPECT_FALSE(target.neither(1, 2));
    target.fill(9);
    for (int i = 0; i < 20; ++i) pair.step();
    EXPECT_FALSE(target.mismatch(9)) << "written after revoke";
    EXPECT_FALSE(pair.far().put_bytes.contains(5));
    if (!cancel || ended) {
      pair.until("completion", [&] { return !pair.near().completions.empty(); });
    }
    pair.near().completions.clear();
  }
}

TEST(ShmBulk, HighPriorityOvertakesAndMessagesPassBetweenPieces) {
  ShmPair pair;
  Random random(3);
  const uint64_t size = 16 << 20;
  GuardedMemory source(size, 1, random);
  GuardedMemory target(size, 1, random);
  const auto key = pair.far().expose(target.extents(), Access::kPutTarget, 1).value();
  const auto urgent_key = pair.far().expose(target.extents(), Access::kPutTarget, 2).value();
  Bulk bulk = make_bulk(source, 0, size, key, 0);
  Bulk urgent = make_bulk(source, 0, 100'000, urgent_key, 0);
  urgent.high_priority = true;
  ASSERT_EQ(pair.near().put(bulk), Code::kOk);
  pair.step();
  ASSERT_EQ(pair.near().put(urgent), Code::kOk);
  int steps = 0;
  while (pair.near().send({}, {}) == Code::kWouldBlock && ++steps < 10) pair.step();
  pair.until("both",
             [&] { return !pair.far().messages.empty() && pair.far().put_bytes.contains(2); });
  EXPECT_FALSE(pair.far().put_bytes.contains(1));
  EXPECT_LT(steps, 5);
  pair.until("the rest", [&] { return pair.far().put_bytes.contains(1); });
}

TEST(ShmBulk, RefusedMessageIsNotStarvedByPuts) {
  ShmPair pair("SHM_RING_BYTES=64K");
  Random random(4);
  const uint64_t size = 8 << 20;
  GuardedMemory source(size, 1, random);
  GuardedMemory target(size, 1, random);
  const auto key = pair.far().expose(target.extents(), Access::kPutTarget, 1).value();
  Bulk bulk = make_bulk(source, 0, size, key, 0);
  ASSERT_EQ(pair.near().put(bulk), Code::kOk);
  const uint32_t largest = pair.near().capabilities().max_payload_bytes;
  // The caller retries some time after on_writable, not inside the upcall.
  int refused = 0;
  int sent = 0;
  for (int i = 0; i < 200 && pair.near().completions.empty(); ++i) {
    pair.near_node().step();
    const bool accepted = pair.near().send({}, {source.extents(), 0, largest}) == Code::kOk;
    ++(accepted ? sent : refused);
    if (!accepted) pair.far_node().step();
  }
  EXPECT_GT(refused, 20);
  EXPECT_GE(sent, refused - 1);
}

// A put leaves room for a waiting message instead of filling the ring with small pieces.
TEST(ShmBulk, PutWaitsBehindARefusedMessage) {
  ShmPair pair("SHM_RING_BYTES=64K");
  Random random(4);
  GuardedMemory memory(64 << 10, 1, random);
  const auto key = pair.far().expose(memory.extents(), Access::kPutTarget, 1).value();
  const uint32_t largest = pair.near().capabilities().max_payload_bytes;
  const auto send = [&](uint64_t length) {
    return pair.near().send({}, {memory.extents(), 0, length});
  };
  // The ring has 128 bytes left.
  ASSERT_EQ(send(1024 - 128), Code::kOk);
  uint64_t length = largest;
  while (length >= 1024) {
    if (send(length) != Code::kOk) length /= 2;
  }
  ASSERT_EQ(send(largest), Code::kWouldBlock);
  Bulk bulk = make_bulk(memory, 0, 64, key, 0);
  ASSERT_EQ(pair.near().put(bulk), Code::kOk);
  for (int i = 0; i < 10; ++i) pair.near_node().step();
  EXPECT_TRUE(pair.near().completions.empty());
  EXPECT_EQ(pair.near().writable, 0);
  pair.until("room", [&] { return pair.near().writable > 0; });
  ASSERT_EQ(send(largest), Code::kOk);
  pair.until("the put", [&] { return pair.far().put_bytes[1] == 64; });
}

class ShmGet : public ::testing::Test {
 protected:
  ShmGet() : pair_("SHM_BULK=read") {}
  void SetUp() override {
    if (!pair_.near().capabilities().get) {
      GTEST_SKIP() << pair_.near().endpoint().describe();
    }
  }
  Code finish() {
    pair_.until("completion", [&] { return pair_.near().completions.size() == 1; });
    const Code code = pair_.near().completions[0].code;
    pair_.near().completions.clear();
    return code;
  }
  // Reads by get() or by get_now(), and returns the outcome.
  Code read(Bulk& bulk, bool now) {
    if (now) return pair_.near().endpoint().abilities().immediate_gets->get_now(bulk);
    const Code code = pair_.near().get(bulk);
    return code == Code::kOk ? finish() : code;
  }
  ShmPair pair_;
};

TEST_F(ShmGet, GetReadsRandomExtents) {
  Random random(5);
  for (int round = 0; round < 60; ++round) {
    const uint64_t size = random.size_up_to(round % 10 == 0 ? 3'000'000 : 200'000);
    GuardedMemory source(size, random.between(1, 300), random);
    GuardedMemory target(size, random.between(1, 300), random);
    source.fill(21);
    const auto key = pair_.far().expose(source.extents(), Access::kGetSource, 0).value();
    const uint64_t from = random.below(size);
    const uint64_t length = random.below(size - from + 1);
    const uint64_t to = random.below(size - length + 1);
    Bulk bulk = make_bulk(target, to, length, key, from);
    EXPECT_EQ(read(bulk, round % 2 == 1), Code::kOk);
    EXPECT_FALSE(target.mismatch(21, to, length, from));
    EXPECT_TRUE(target.guards_intact());
    pair_.far().revoke(key);
    EXPECT_EQ(read(bulk, round % 2 == 1), Code::kCancelled);
  }
}

TEST_F(ShmGet, GetOfAWithdrawnSourceIsCancelled) {
  Random random(6);
  const uint64_t size = 4 << 20;
  GuardedMemory source(size, 2, random);
  GuardedMemory target(size, 1, random);
  for (int steps = 0; steps < 4; ++steps) {
    const auto key = pair_.far().expose(source.extents(), Access::kGetSource, 0).value();
    Bulk bulk = make_bulk(target, 0, size, key, 0);
    ASSERT_EQ(pair_.near().get(bulk), Code::kOk);
    for (int i = 0; i < steps; ++i) pair_.near_node().step();
    if (!pair_.near().completions.empty()) break;
    pair_.far().revoke(key);
    EXPECT_EQ(finish(), Code::kCancelled) << steps;
  }
  // The source is unmapped after it was withdrawn: the reader hits a hole, and still reports
  // cancelled.
  void* const page =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const iovec piece{page, size};
  const auto key = pair_.far().expose(Extents(&piece, 1), Access::kGetSource, 0).value();
  Bulk bulk = make_bulk(target, 0, size, key, 0);
  ASSERT_EQ(pair_.near().get(bulk), Code::kOk);
  pair_.near_node().step();
  pair_.far().revoke(key);
  munmap(page, size);
  EXPECT_EQ(finish(), Code::kCancelled);
}

// The slot that holds the source's word is reused.
TEST_F(ShmGet, GetOfASourceExposedAgainIsCancelled) {
  Random random(6);
  GuardedMemory source(1000, 1, random);
  GuardedMemory target(1000, 1, random);
  const auto first = pair_.far().expose(source.extents(), Access::kGetSource, 0).value();
  pair_.far().revoke(first);
  const auto second = pair_.far().expose(source.extents(), Access::kGetSource, 0).value();
  ASSERT_EQ(first.words[0] & 0xffffffff, second.words[0] & 0xffffffff);
  for (const bool now : {false, true}) {
    Bulk stale = make_bulk(target, 0, 1000, first, 0);
    EXPECT_EQ(read(stale, now), Code::kCancelled);
    Bulk bulk = make_bulk(target, 0, 1000, second, 0);
    EXPECT_EQ(read(bulk, now), Code::kOk);
  }
}

// The peer's process number may now belong to another process with other data at that address. Here
// the number stays the same, and so does the word.
TEST(ShmGetAlone, GetFromADeadPeerFails) {
  ShmNode node("SHM_BULK=read");
  RawPeer peer(node.node, node.credentials);
  Rail& rail = peer.rail();
  if (!rail.capabilities().get) GTEST_SKIP() << rail.endpoint().describe();
  std::vector<std::byte> memory(1000, std::byte{7});
  std::vector<std::byte> local(1000);
  const iovec piece{local.data(), local.size()};
  peer.mine().sources[3] = 9;
  const shm::SourceKey source{3, 9, reinterpret_cast<uint64_t>(memory.data()), 0, memory.size()};
  Bulk bulk{.local = {Extents(&piece, 1), 0, local.size()}, .key = source.encode()};
  EXPECT_EQ(rail.endpoint().abilities().immediate_gets->get_now(bulk), Code::kOk);
  EXPECT_EQ(local, memory);
  peer.connection.socket.reset();
  EXPECT_EQ(rail.endpoint().abilities().immediate_gets->get_now(bulk), Code::kPeerLost);
  node.node.until("on_failed", [&] { return rail.failed > 0; });
}

TEST_F(ShmGet, GetWithAForgedKeyFailsAndKeepsTheConnection) {
  Random random(7);
  GuardedMemory target(10'000, 1, random);
  std::vector<std::byte> memory(10'000);
  const iovec piece{memory.data(), memory.size()};
  const auto key = pair_.far().expose(Extents(&piece, 1), Access::kGetSource, 0).value();
  Bulk bulk = make_bulk(target, 0, 10'000, key, 1);
  for (const bool now : {false, true}) {
    EXPECT_EQ(read(bulk, now), Code::kInvalidArgument) << "beyond the end";
  }
  bulk = make_bulk(target, 0, 10'000, {}, 0);
  for (const bool now : {false, true}) EXPECT_EQ(read(bulk, now), Code::kInvalidArgument);
  for (int i = 0; i < 600; ++i) {
    RemoteKey forged = key;
    forged.words[random.below(3)] ^= uint64_t{1} << random.below(64);
    bulk = make_bulk(target, 0, random.size_up_to(10'000), forged, 0);
    (void)read(bulk, i % 2 == 1);
  }
  bulk = make_bulk(target, 0, 10'000, key, 0);
  ASSERT_EQ(pair_.near().get(bulk), Code::kOk);
  EXPECT_EQ(finish(), Code::kOk);
}

TEST_F(ShmGet, CancelledGetWritesNothingLater) {
  Random random(8);
  const uint64_t size = 4 << 20;
  GuardedMemory source(size, 1, random);
  GuardedMemory target(size, 1, random);
  source.fill(1);
  const auto key = pair_.far().expose(source.extents(), Access::kGetSource, 0).value();
  Bulk bulk = make_bulk(target, 0, size, key, 0);
  ASSERT_EQ(pair_.near().get(bulk), Code::kOk);
  pair_.near_node().step();
  pair_.near().cancel(bulk);
  target.fill(2);
  for (int i = 0; i < 10; ++i) pair_.step();
  EXPECT_FALSE(target.mismatch(2));
  EXPECT_TRUE(pair_.near().completions.empty());
}

TEST(ShmBulk, ConfigurationDecidesWhetherGetsAreOffered) {
  ShmPair copying("SHM_BULK=copy");
  EXPECT_FALSE(copying.near().capabilities().get);
  EXPECT_NE(copying.near().endpoint().describe().find("HETCOMM_SHM_BULK=copy"), std::string::npos);
  EXPECT_EQ(copying.near().abilities().gets, nullptr);
  EXPECT_EQ(copying.near().abilities().immediate_gets, nullptr);
  ShmPair automatic;
  EXPECT_TRUE(automatic.near().capabilities().get) << automatic.near().endpoint().describe();
  EXPECT_FALSE(automatic.near().capabilities().prefers_get);
  ShmPair reading("SHM_BULK=read");
  EXPECT_TRUE(reading.near().capabilities().prefers_get);
}

}  // namespace
}  // namespace hetcomm::test
