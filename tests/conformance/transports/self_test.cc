// The transport from a rank to itself: one endpoint that is both ends. This suite tests for one
// rank the properties that the other suites test with two:
//
//   * messages arrive whole and in order; a refusal is followed by on_writable; on_message is never
//     called inside send();
//   * puts and gets move exactly the right bytes, and complete once each;
//   * after cancel() and revoke(), at any point, memory is quiet and no completion follows;
//   * the endpoint may end at any point.
#include <list>

#include "tests/conformance/transports/transport_test.h"
#include "transports/self/factory.h"

namespace hetcomm::test {
namespace {

class Self : public ::testing::Test {
 protected:
  Self()
      : factory_(make_self_factory()),
        node_(Node::Options{*factory_, "", make_credentials(), 0, 1}) {}

  void SetUp() override { connect(); }
  void connect() {
    const int before = node_.connect_outcomes;
    const std::vector<std::byte> descriptor = node_.transport().contact();
    ASSERT_TRUE(node_.transport().reach(descriptor).ok());
    node_.connect(0, descriptor);
    ASSERT_EQ(node_.connect_outcomes, before);
    node_.until("on_connected", [&] { return node_.connect_outcomes > before; });
    ASSERT_TRUE(node_.connected.contains(0));
    EXPECT_EQ(node_.accepts, 0);
  }
  Rail& rail() { return *node_.connected.at(0); }

  static constexpr uint64_t kSize = 8 << 20;
  std::unique_ptr<TransportFactory> factory_;
  Node node_;
  Random random_{5};
};

TEST_F(Self, MessagesArriveIntactAndInOrder) {
  uint64_t received = 0;
  rail().listen([&](const MessageHeader& header, ConstByteSpan payload) {
    EXPECT_EQ(decode(header).sequence, received++);
    expect_whole(header, payload);
  });
  const uint64_t largest = rail().capabilities().max_payload_bytes;
  for (uint64_t i = 0; i < 3000; ++i) {
    send_pattern(rail(), i, i % 100 == 0 ? largest : random_.size_up_to(largest) - 1, i);
  }
  node_.until("all messages", [&] { return received == 3000; });
  EXPECT_TRUE(rail().endpoint().flushed());
}

TEST_F(Self, RefusedSendIsFollowedByOnWritable) {
  uint64_t received = 0;
  rail().listen([&](const MessageHeader&, ConstByteSpan) { ++received; });
  uint64_t sent = 0;
  for (int i = 0; i < 20; ++i) {
    const int writable = rail().writable;
    Code code = Code::kOk;
    while ((code = rail().send(encode({}), {})) == Code::kOk) ++sent;
    ASSERT_EQ(code, Code::kWouldBlock);
    node_.until("on_writable", [&] { return rail().writable > writable; });
  }
  node_.until("all messages", [&] { return received == sent; });
}

TEST_F(Self, SendFromWithinAnUpcallArrives) {
  uint64_t received = 0;
  rail().listen([&](const MessageHeader& header, ConstByteSpan) {
    if (++received < 1000) {
      EXPECT_EQ(rail().send(header, {}), Code::kOk);
    }
  });
  send_empty(rail());
  node_.until("all messages", [&] { return received == 1000; });
}

TEST_F(Self, PutsAndGetsWriteExactlyTheRequestedBytes) {
  for (uint64_t i = 0; i < 60; ++i) {
    GuardedMemory source(random_.size_up_to(kSize), random_.between(1, 9), random_);
    GuardedMemory target(source.size(), random_.between(1, 9), random_);
    source.fill(i);
    target.fill(1000);
    const bool put = i % 2 == 0;
    const RemoteKey key = put ? expose_or_abandon(rail(), target, Access::kPutTarget, i)
                              : expose_or_abandon(rail(), source, Access::kGetSource, i);
    const uint64_t length = random_.size_up_to(source.size());
    const uint64_t offset = random_.between(0, source.size() - length);
    Bulk bulk = make_bulk(put ? source : target, offset, length, key, offset);
    until_accepted(rail(), [&] { return put ? rail().put(bulk) : rail().get(bulk); });
    EXPECT_EQ(await_bulk(rail(), bulk), Code::kOk);
    rail().revoke(key);
    EXPECT_EQ(rail().put_bytes[i], put ? length : 0);
    EXPECT_EQ(target.mismatch(1000, 0, offset, 0), std::nullopt);
    EXPECT_EQ(target.mismatch(i, offset, length, offset), std::nullopt);
    EXPECT_EQ(
        target.mismatch(1000, offset + length, target.size() - offset - length, offset + length),
        std::nullopt);
    EXPECT_TRUE(source.guards_intact() && target.guards_intact());
  }
}

TEST_F(Self, MemoryIsUntouchedAfterCancelRevokeOrClose) {
  for (int i = 0; i < 60; ++i) {
    GuardedMemory source(kSize, 3, random_);
    GuardedMemory target(kSize, 2, random_);
    source.fill(1);
    const bool put = random_.chance(0.5);
    const RemoteKey key = put ? expose_or_abandon(rail(), target, Access::kPutTarget, 1)
                              : expose_or_abandon(rail(), source, Access::kGetSource, 1);
    Bulk bulk = make_bulk(put ? source : target, 0, kSize, key, 0);
    until_accepted(rail(), [&] { return put ? rail().put(bulk) : rail().get(bulk); });
    for (uint64_t step = random_.below(4); step > 0; --step) node_.step();
    switch (i % 3) {
      case 0:
        if (rail().running() > 0) rail().cancel(bulk);
        break;
      case 1:
        rail().revoke(key);
        if (rail().running() > 0) {
          EXPECT_NE(await_bulk(rail(), bulk), Code::kPending);
        }
        break;
      default:
        rail().close();
    }
    if (rail().open()) rail().completions.clear();
    source.fill(2);
    target.fill(3);
    node_.linger(kMillisecond);
    EXPECT_EQ(target.mismatch(3), std::nullopt);
    EXPECT_EQ(source.mismatch(2), std::nullopt);
    EXPECT_TRUE(target.guards_intact());
    EXPECT_TRUE(rail().completions.empty());
    if (!rail().open()) connect();
    rail().revoke(key);
  }
}

TEST_F(Self, InvalidKeysDoNotChangeMemory) {
  GuardedMemory target(1000, 1, random_);
  GuardedMemory local(1000, 1, random_);
  target.fill(1);
  local.fill(2);
  const RemoteKey good = expose_or_abandon(rail(), target, Access::kPutTarget, 1);
  for (int i = 0; i < 200; ++i) {
    RemoteKey key = good;
    uint64_t offset = 0;
    if (i % 3 == 0) {
      offset = random_.chance(0.5) ? random_.between(1, 2000) : ~random_.below(2000);
    } else if (i % 3 == 1) {
      for (uint64_t& word : key.words) word = random_.next();
    }
    Bulk bulk = make_bulk(local, 0, 1000, key, offset);
    const bool get = i % 3 == 2;  // reads from a put target
    if ((get ? rail().get(bulk) : rail().put(bulk)) == Code::kOk) {
      EXPECT_NE(await_bulk(rail(), bulk), Code::kOk);
    }
  }
  EXPECT_EQ(target.mismatch(1), std::nullopt);
  EXPECT_EQ(local.mismatch(2), std::nullopt);
  EXPECT_TRUE(rail().put_bytes.empty());
}

}  // namespace
}  // namespace hetcomm::test
