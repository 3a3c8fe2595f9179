// A rank's connection to itself. Messages arrive complete, in order and never inside send().
// Refusals are followed by on_writable. Puts, gets, revoke, cancel and priorities follow the rules
// in transport.h. The transport never sleeps on pending work. Connecting to another rank fails with
// a text.
#include <gtest/gtest.h>

#include "src/system/random.h"
#include "tests/support/transport_node.h"
#include "transports/self/factory.h"

namespace hetcomm::test {
namespace {

class SelfTransport : public ::testing::Test {
 protected:
  SelfTransport() : factory_(make_self_factory()), node_({*factory_, "", {}, 3, 5}) {
    node_.connect(3, {});
    EXPECT_EQ(node_.connect_outcomes, 0) << "from inside connect()";
    node_.until("the connection", [&] { return node_.connected.contains(3); });
  }
  Rail& rail() { return *node_.connected.at(3); }
  Code finish(Bulk& bulk) {
    node_.until("completion", [&] { return !rail().completions.empty(); });
    EXPECT_EQ(rail().completions[0].bulk, &bulk);
    const Code code = rail().completions[0].code;
    rail().completions.clear();
    return code;
  }
  static Bulk make_bulk(const GuardedMemory& memory, uint64_t offset, uint64_t length,
                        const RemoteKey& key, uint64_t remote_offset) {
    Bulk bulk;
    bulk.local = {memory.extents(), offset, length};
    bulk.key = key;
    bulk.remote_offset = remote_offset;
    return bulk;
  }

  std::unique_ptr<TransportFactory> factory_;
  Node node_;
};

TEST_F(SelfTransport, MessagesArriveInOrderAndRefusedSendsResume) {
  Random random(1);
  const uint32_t largest = rail().capabilities().max_payload_bytes;
  uint64_t received = 0;
  rail().listen([&](const MessageHeader& header, ConstByteSpan payload) {
    uint64_t number = 0;
    std::memcpy(&number, header.data(), sizeof(number));
    EXPECT_EQ(number, received++);
    EXPECT_FALSE(find_mismatch(payload, number));
  });
  GuardedMemory memory(largest, 4, random);
  for (uint64_t number = 0; number < 2000; ++number) {
    const uint64_t size = random.below(largest + 1);
    const uint64_t offset = random.below(largest - size + 1);
    memory.fill(number, offset, size, 0);
    MessageHeader header{};
    std::memcpy(header.data(), &number, sizeof(number));
    while (rail().send(header, {memory.extents(), offset, size}) != Code::kOk) {
      const int writable = rail().writable;
      node_.until("on_writable", [&] { return rail().writable > writable; });
    }
    EXPECT_FALSE(node_.transport().prepare_sleep(Sleep::kLong));
  }
  node_.until("the rest", [&] { return received == 2000; });
  EXPECT_TRUE(rail().endpoint().flushed());
  EXPECT_TRUE(node_.transport().prepare_sleep(Sleep::kLong));
  node_.transport().finish_sleep();
}

TEST_F(SelfTransport, ReplySentInAnUpcallArrivesAtTheNextStep) {
  int left = 1000;
  rail().listen([&](const MessageHeader& header, ConstByteSpan) {
    if (--left > 0) {
      EXPECT_EQ(rail().send(header, {}), Code::kOk);
    }
  });
  EXPECT_EQ(rail().send({}, {}), Code::kOk);
  node_.step();
  EXPECT_EQ(left, 999);
  node_.until("the last", [&] { return left == 0; });
}

TEST_F(SelfTransport, PutsAndGetsMoveRandomExtents) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    const uint64_t size = random.size_up_to(2'000'000);
    GuardedMemory here(size, random.between(1, 40), random);
    GuardedMemory there(size, random.between(1, 40), random);
    const bool put = random.chance(0.5);
    (put ? here : there).fill(9);
    const auto key =
        rail().expose(there.extents(), put ? Access::kPutTarget : Access::kGetSource, 4).value();
    const uint64_t from = random.below(size);
    const uint64_t length = random.below(size - from + 1);
    const uint64_t to = random.below(size - length + 1);
    Bulk bulk =
        put ? make_bulk(here, from, length, key, to) : make_bulk(here, to, length, key, from);
    ASSERT_EQ(put ? rail().put(bulk) : rail().get(bulk), Code::kOk);
    EXPECT_EQ(finish(bulk), Code::kOk);
    EXPECT_FALSE((put ? there : here).mismatch(9, to, length, from));
    EXPECT_TRUE(here.guards_intact() && there.guards_intact());
    EXPECT_EQ(rail().put_bytes[4], put ? length : 0);
    rail().put_bytes.clear();
    rail().revoke(key);
  }
}

TEST_F(SelfTransport, MemoryIsUntouchedAfterRevokeAndCancel) {
  Random random(3);
  const uint64_t size = 4 << 20;
  GuardedMemory here(size, 1, random);
  GuardedMemory there(size, 1, random);
  here.fill(1);
  for (const Access access : {Access::kPutTarget, Access::kGetSource}) {
    const bool put = access == Access::kPutTarget;
    const auto key = rail().expose(there.extents(), access, 6).value();
    Bulk bulk = make_bulk(here, 0, size, key, 0);
    ASSERT_EQ(put ? rail().put(bulk) : rail().get(bulk), Code::kOk);
    node_.step();
    rail().revoke(key);
    there.fill(2);
    EXPECT_EQ(finish(bulk), put ? Code::kOk : Code::kCancelled);
    EXPECT_FALSE(there.mismatch(2));
    EXPECT_EQ(rail().put_bytes.count(6), 0u);
    const auto again = rail().expose(there.extents(), access, 7).value();
    EXPECT_NE(again, key);
    bulk = make_bulk(here, 0, size, again, 0);
    ASSERT_EQ(put ? rail().put(bulk) : rail().get(bulk), Code::kOk);
    node_.step();
    rail().cancel(bulk);
    here.fill(3);
    there.fill(4);
    for (int i = 0; i < 20; ++i) node_.step();
    EXPECT_FALSE(here.mismatch(3));
    EXPECT_FALSE(there.mismatch(4));
    EXPECT_TRUE(rail().completions.empty());
    EXPECT_TRUE(rail().endpoint().flushed());
    rail().revoke(again);
  }
}

TEST_F(SelfTransport, StaleKeyAccessesNothingAfterItsSlotIsReused) {
  Random random(9);
  GuardedMemory source(1000, 2, random);
  GuardedMemory target(1000, 2, random);
  source.fill(1);
  target.fill(2);
  for (const Access access : {Access::kPutTarget, Access::kGetSource}) {
    const bool put = access == Access::kPutTarget;
    const auto stale = rail().expose(target.extents(), access, 7).value();
    rail().revoke(stale);
    const auto key = rail().expose(target.extents(), access, 8).value();
    ASSERT_EQ(static_cast<uint32_t>(stale.words[0]), static_cast<uint32_t>(key.words[0]));
    ASSERT_NE(stale, key);
    rail().revoke(stale);
    Bulk late = make_bulk(source, 0, 1000, stale, 0);
    ASSERT_EQ(put ? rail().put(late) : rail().get(late), Code::kOk);
    EXPECT_EQ(finish(late), put ? Code::kOk : Code::kCancelled);
    EXPECT_EQ(target.mismatch(2), std::nullopt);
    EXPECT_EQ(source.mismatch(1), std::nullopt);
    EXPECT_TRUE(rail().put_bytes.empty());
    Bulk bulk = make_bulk(source, 0, 1000, key, 0);
    ASSERT_EQ(put ? rail().put(bulk) : rail().get(bulk), Code::kOk);
    EXPECT_EQ(finish(bulk), Code::kOk);
    EXPECT_EQ(put ? target.mismatch(1) : source.mismatch(2), std::nullopt);
    rail().revoke(key);
    rail().put_bytes.clear();
    source.fill(1);
    target.fill(2);
  }
}

TEST_F(SelfTransport, HighPriorityGoesFirstAndAccessBeyondAKeyIsRefused) {
  Random random(4);
  GuardedMemory here(2 << 20, 1, random);
  GuardedMemory there(2 << 20, 1, random);
  const auto key = rail().expose(there.extents(), Access::kPutTarget, 1).value();
  Bulk normal = make_bulk(here, 0, 2 << 20, key, 0);
  Bulk urgent = make_bulk(here, 0, 10, key, 0);
  urgent.high_priority = true;
  ASSERT_EQ(rail().put(normal), Code::kOk);
  ASSERT_EQ(rail().put(urgent), Code::kOk);
  EXPECT_EQ(finish(urgent), Code::kOk);
  EXPECT_EQ(finish(normal), Code::kOk);
  Bulk beyond = make_bulk(here, 0, 11, key, (2 << 20) - 10);
  EXPECT_EQ(rail().put(beyond), Code::kInvalidArgument);
  EXPECT_EQ(rail().get(beyond), Code::kInvalidArgument);
}

TEST_F(SelfTransport, ConnectionToAnotherRankIsRefused) {
  node_.connect(2, {});
  node_.until("the refusal", [&] { return node_.connect_outcomes == 2; });
  EXPECT_FALSE(node_.connect_failed.at(2).ok());
}

TEST_F(SelfTransport, CancelledConnectReportsNoOutcome) {
  const int before = node_.connect_outcomes;
  node_.connect(3, {});
  node_.transport().cancel_connect({.rank = 3});
  for (int i = 0; i < 5; ++i) node_.step();
  EXPECT_EQ(node_.connect_outcomes, before);
}

}  // namespace
}  // namespace hetcomm::test
