// Requirements on the rdma transport from devices that are stricter than most; over a fake: not run
// on hardware.
//   - receives that an ended queue pair had consumed are posted again, however it ended;
//   - an ended queue pair's remaining completions are not attributed to other queue pairs, whose
//     completions remain their own;
//   - data that arrives before a connection is complete is delivered first, and its receive is
//     returned if the connection never completes;
//   - peers with different GID tables each use their own index, the peer's bytes, and one type;
//   - both ends use the smaller MTU and the smaller number of reads;
//   - the device refuses accesses to memory that a peer may not make: rights, and the end of every
//     range;
//   - an ended exposure's name finds nothing, even if its slot is reused;
//   - memory that several keys name is revoked without affecting the other keys' bytes;
//   - devices without inline data and with one piece per request support everything that other
//     devices do;
//   - an idle connection probes its peer.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/pattern.h"
#include "tests/unit/rdma/fixture.h"
#include "transports/rdma/wire.h"

namespace hetcomm::test {
namespace {

using ::testing::HasSubstr;

class RdmaQueuePair : public ::testing::Test {
 protected:
  void SetUp() override { FakeFabric::reset(); }
  void TearDown() override {
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }
};

void step_both(FakePair& pair, int times) {
  for (int i = 0; i < times; ++i) {
    pair.a.step();
    pair.b.step();
  }
}

bool send_and_see(FakePair& pair, Rail& from, Rail& to) {
  const size_t before = to.messages.size();
  if (from.send(numbered(7), {}) != Code::kOk) return false;
  return pair.run([&] { return to.messages.size() == before + 1; });
}

uint64_t number_of(const Rail::Message& message) {
  uint64_t number = 0;
  std::memcpy(&number, message.header.data(), sizeof(number));
  return number;
}

bool complete(FakePair& pair, Rail& rail) {
  return pair.run([&] { return !rail.completions.empty() || rail.failed > 0; }) &&
         rail.failed == 0 && rail.completions.back().code == Code::kOk;
}

// --- gone queue pairs ------------------------------------------------------------------------

enum class End : uint8_t { kClosed, kEvent, kPort };

TEST_F(RdmaQueuePair, ReceivesOfEndedQueuePairsArePostedAgain) {
  for (const bool keeps : {false, true}) {
    for (const End end : {End::kClosed, End::kEvent, End::kPort}) {
      FakeFabric::reset();
      if (keeps) FakeFabric::keep_completions();
      FakePair pair;
      ASSERT_TRUE(pair.connect());
      step_both(pair, 10);
      const size_t posted = FakeFabric::posted_receives(FakePair::pair_of_b());
      for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < 5; ++i) ASSERT_EQ(pair.to_b().send(numbered(1), {}), Code::kOk);
        // The completions wait in b's completion queue, because b has not polled.
        if (end == End::kClosed) pair.to_a().close();
        if (end == End::kEvent) {
          FakeFabric::raise_queue_pair(IBV_EVENT_QP_FATAL, FakePair::pair_of_b());
        }
        if (end == End::kPort) FakeFabric::raise(IBV_EVENT_PORT_ERR);
        ASSERT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
        ASSERT_TRUE(pair.connect());
      }
      step_both(pair, 10);
      EXPECT_EQ(FakeFabric::posted_receives(FakePair::pair_of_b()), posted)
          << "keeps " << keeps << " end " << static_cast<int>(end);
      EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
    }
  }
}

// The ranks' next connection has advanced |steps| steps when the first one ends, so its queue pair
// may exist before this side polls the first one's remaining completions.
TEST_F(RdmaQueuePair, CompletionsOfAnEndedQueuePairDoNotReachOthers) {
  for (const bool keeps : {false, true}) {
    int used_again = 0;
    for (int steps = 0; steps < 10; ++steps) {
      FakeFabric::reset();
      FakeFabric::reuse_numbers();
      if (keeps) FakeFabric::keep_completions();
      FakePair pair;
      ASSERT_TRUE(pair.connect());
      const uint32_t number = FakePair::pair_of_b();
      pair.a.connect(1, pair.b.transport().contact());
      for (int i = 0; i < steps; ++i) i % 2 == 0 ? pair.a.step() : pair.b.step();
      if (pair.a.connect_outcomes > 1) break;
      Rail* const first = pair.a.connected.at(1).get();
      for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(first->send(numbered(i), {}), Code::kOk);
      pair.to_a().close();
      pair.b.step();
      ASSERT_TRUE(pair.run([&] { return pair.b.accepts == 2 && pair.a.connect_outcomes == 2; }));
      const std::vector<uint32_t> numbers = FakeFabric::queue_pairs();
      if (std::count(numbers.begin(), numbers.end(), number) == 1) ++used_again;
      ASSERT_EQ(pair.to_b().send(numbered(77), {}), Code::kOk);
      ASSERT_TRUE(pair.run([&] { return !pair.to_a().messages.empty(); }));
      EXPECT_EQ(number_of(pair.to_a().messages.front()), 77u)
          << "keeps " << keeps << " steps " << steps;
      EXPECT_EQ(pair.to_a().failed, 0);
    }
    EXPECT_GT(used_again, 0) << "no queue pair had the number of a gone one";
  }
}

// Rank 2 has two connections: one ends while both have completions in the queue.
TEST_F(RdmaQueuePair, CompletionsOfOtherQueuePairsAreKept) {
  for (const bool fails : {false, true}) {
    const auto factory = rdma::make_factory(FakeFabric::verbs());
    const Credentials credentials = make_credentials();
    Node near({*factory, "", credentials, 0, 3});
    Node other({*factory, "", credentials, 1, 3});
    Node far({*factory, "", credentials, 2, 3});
    const auto until = [&](auto&& done) {
      const uint64_t deadline = now_ns() + 5 * kSecond;
      while (!done() && now_ns() < deadline) {
        near.step();
        other.step();
        far.step();
      }
      return done();
    };
    near.connect(2, far.transport().contact());
    other.connect(2, far.transport().contact());
    ASSERT_TRUE(until([&] { return far.accepted.contains(0) && far.accepted.contains(1); }));
    ASSERT_TRUE(until([&] { return near.connected.contains(2) && other.connected.contains(2); }));
    for (uint64_t i = 0; i < 10; ++i) {
      ASSERT_EQ(near.connected.at(2)->send(numbered(i), {}), Code::kOk);
      ASSERT_EQ(other.connected.at(2)->send(numbered(100 + i), {}), Code::kOk);
    }
    if (fails) {
      // The other one ends in the upcall of the first message, when the next one is already
      // available.
      Rail& doomed = *far.accepted.at(1);
      uint64_t seen = 0;
      far.accepted.at(0)->listen([&](const MessageHeader&, ConstByteSpan) {
        if (++seen == 1) doomed.endpoint().close();
      });
      ASSERT_TRUE(until([&] { return doomed.failed > 0 && seen == 10; }));
      ASSERT_EQ(near.connected.at(2)->send(numbered(10), {}), Code::kOk);
      ASSERT_TRUE(until([&] { return seen == 11; }));
      EXPECT_LE(doomed.messages.size(), 10u);
    } else {
      far.accepted.at(0)->close();
      Rail& kept = *far.accepted.at(1);
      ASSERT_TRUE(until([&] { return kept.messages.size() == 10; }));
      for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(number_of(kept.messages[i]), 100 + i);
      EXPECT_EQ(kept.failed, 0);
    }
  }
}

// The peer sends as soon as it can, possibly before this side knows that it can.
TEST_F(RdmaQueuePair, DataBeforeTheConnectionIsCompleteIsDeliveredFirst) {
  FakePair pair;
  pair.a.connect(1, pair.b.transport().contact());
  ASSERT_TRUE(pair.run([] { return FakeFabric::queue_pairs().size() == 2; }));
  MessageHeader before{};
  for (uint64_t i = 0; i < 3; ++i) {
    std::array<std::byte, rdma::kMaxHeadBytes> bytes;
    const size_t size = rdma::encode_head(bytes.data(), 0, numbered(100 + i), before);
    FakeFabric::inject_message(FakePair::pair_of_b(), ConstByteSpan(bytes).first(size));
  }
  for (int i = 0; i < 3; ++i) pair.b.step();
  ASSERT_TRUE(pair.run([&] { return pair.b.accepts == 1; }));
  ASSERT_TRUE(pair.run([&] { return pair.to_a().messages.size() == 3; }));
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(number_of(pair.to_a().messages[i]), 100 + i);
}

TEST_F(RdmaQueuePair, ReceiveOfEarlyDataIsReturnedIfTheConnectionFails) {
  for (const bool looked : {false, true}) {
    FakeFabric::reset();
    FakeFabric::reuse_numbers();
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    size_t posted = 0;
    const size_t before = FakeFabric::queue_pairs().size();
    const int accepted = pair.b.accepts;
    for (int round = 0; round < 20; ++round) {
      // The address used by another connection between the same ranks is removed before that
      // connection is complete.
      const int outcomes = pair.a.connect_outcomes;
      pair.a.connect(1, pair.b.transport().contact());
      ASSERT_TRUE(pair.run([&] { return FakeFabric::queue_pairs().size() == before + 2; }));
      for (int i = 0; i < 3; ++i) {
        FakeFabric::inject_message(FakePair::pair_of_b(), std::array<std::byte, 3>{});
      }
      for (int i = 0; looked && i < 3; ++i) pair.b.step();
      ASSERT_EQ(pair.b.accepts, accepted);
      FakeFabric::set_gid(0, 0, 0, ipv4_gid(9));
      ASSERT_TRUE(pair.run([&] {
        return pair.a.connect_outcomes > outcomes && FakeFabric::queue_pairs().size() == before;
      }));
      FakeFabric::set_gid(0, 0, 0, ipv4_gid(1));
      step_both(pair, 10);
      // There are more receives since a second connection existed.
      if (round == 0) posted = FakeFabric::posted_receives(FakeFabric::queue_pairs().back());
    }
    EXPECT_EQ(pair.b.accepts, accepted);
    EXPECT_EQ(FakeFabric::posted_receives(FakeFabric::queue_pairs().back()), posted)
        << "looked " << looked;
    EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  }
}

// --- paths -----------------------------------------------------------------------------------

// Two ranks, each on a device of its own.
class TwoDevices {
 public:
  TwoDevices(FakeDeviceSpec near, FakeDeviceSpec far) {
    near.name = "near";
    far.name = "far";
    FakeFabric::reset({std::move(near), std::move(far)});
    factory_ = rdma::make_factory(FakeFabric::verbs());
    const Credentials credentials = make_credentials();
    a = std::make_unique<Node>(Node::Options{*factory_, "RDMA_NIC=near", credentials, 0, 2});
    b = std::make_unique<Node>(Node::Options{*factory_, "RDMA_NIC=far", credentials, 1, 2});
  }
  template <typename Done>
  [[nodiscard]] bool run(Done&& done) {
    const uint64_t deadline = now_ns() + 5 * kSecond;
    while (!done() && now_ns() < deadline) {
      a->step();
      b->step();
    }
    return done();
  }
  // Checks that bytes are delivered in both directions, as messages, puts and gets.
  void expect_to_work() {
    a->connect(1, b->transport().contact());
    ASSERT_TRUE(run([&] { return a->connect_outcomes > 0 && b->accepts > 0; }));
    ASSERT_TRUE(a->connected.contains(1)) << a->connect_failed[1].text();
    Rail& to_b = *a->connected.at(1);
    Rail& to_a = *b->accepted.at(0);
    ASSERT_EQ(to_b.send(numbered(1), {}), Code::kOk);
    ASSERT_EQ(to_a.send(numbered(2), {}), Code::kOk);
    ASSERT_TRUE(run([&] { return to_a.messages.size() + to_b.messages.size() == 2; }));
    expect_bulks(to_b, to_a);
    expect_bulks(to_a, to_b);
    EXPECT_EQ(to_a.failed + to_b.failed, 0);
  }

  std::unique_ptr<Node> a;
  std::unique_ptr<Node> b;

 private:
  void expect_bulks(Rail& from, Rail& to) {
    std::vector<std::byte> right(100'000);
    fill_pattern(right, 3);
    for (const bool get : {false, true}) {
      std::vector<std::byte> near(right.size());
      std::vector<std::byte> far(right.size());
      (get ? far : near) = right;
      const iovec near_piece{near.data(), near.size()};
      const iovec far_piece{far.data(), far.size()};
      auto key = to.expose({&far_piece, 1}, get ? Access::kGetSource : Access::kPutTarget, 4);
      ASSERT_TRUE(key.ok());
      Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
      ASSERT_EQ(get ? from.get(bulk) : from.put(bulk), Code::kOk);
      ASSERT_TRUE(run([&] { return from.running() == 0; })) << from.failure.text();
      ASSERT_TRUE(run([&] { return get || to.put_bytes[4] == right.size(); }));
      to.put_bytes.clear();
      EXPECT_EQ(get ? near : far, right);
      to.release(key.value());
    }
  }

  std::unique_ptr<TransportFactory> factory_;
};

FakeGid gid_of(std::initializer_list<uint8_t> first, uint8_t last) {
  FakeGid gid{.bytes = first};
  gid.bytes.resize(16);
  gid.bytes.back() = last;
  return gid;
}
FakeGid older(FakeGid gid) {
  gid.type = IBV_GID_TYPE_ROCE_V1;
  return gid;
}

// Real tables contain every address twice, by type, in order of configuration.
TEST_F(RdmaQueuePair, EachSideUsesItsOwnGidTable) {
  const FakeGid near_local = gid_of({0xfe, 0x80}, 1);
  const FakeGid far_local = gid_of({0xfe, 0x80}, 2);
  const FakeGid near_global = gid_of({0x20, 0x01}, 1);
  const FakeGid far_global = gid_of({0x20, 0x01}, 2);
  const std::vector<FakeGid> near = {older(near_local), near_local, older(ipv4_gid(1)),
                                     ipv4_gid(1),       {},         near_global};
  const std::vector<FakeGid> far = {
      {}, ipv4_gid(2), older(ipv4_gid(2)), far_global, older(far_local)};
  const auto device = [](std::vector<FakeGid> gids) {
    FakeDeviceSpec spec;
    spec.ports.push_back({.gids = std::move(gids)});
    return spec;
  };
  // All of them, then only those left without the best.
  TwoDevices(device(near), device(far)).expect_to_work();
  TwoDevices(device(far), device(near)).expect_to_work();
  TwoDevices(device({older(near_local), near_local, near_global, older(ipv4_gid(1))}), device(far))
      .expect_to_work();
  TwoDevices(device({near_local, older(ipv4_gid(1))}), device(far)).expect_to_work();
  TwoDevices(device(far), device({near_local, {}, older(ipv4_gid(1))})).expect_to_work();
  // The same bytes appear first with another type: a peer that named the newer type means that one.
  TwoDevices(device({older(ipv4_gid(1)), ipv4_gid(1)}), device({older(ipv4_gid(2)), ipv4_gid(2)}))
      .expect_to_work();
}

TEST_F(RdmaQueuePair, InfiniBandPeersConnectWithinASubnetAndAcrossSubnets) {
  const auto device = [](uint16_t lid, uint8_t prefix, uint8_t last) {
    FakeDeviceSpec spec;
    FakeGid gid = gid_of({0xfe, 0x80, 0, 0, 0, 0, 0, prefix}, last);
    gid.type = IBV_GID_TYPE_IB;
    spec.ports.push_back(
        {.link_layer = IBV_LINK_LAYER_INFINIBAND, .lid = lid, .gids = {std::move(gid)}});
    return spec;
  };
  TwoDevices(device(4, 0, 1), device(9, 0, 2)).expect_to_work();
  TwoDevices(device(4, 0, 1), device(9, 7, 2)).expect_to_work();
}

TEST_F(RdmaQueuePair, BothEndsUseTheSmallerMtuAndReadCount) {
  const auto device = [](uint8_t last, ibv_mtu mtu, int reads) {
    FakeDeviceSpec spec;
    spec.ports.push_back({.active_mtu = mtu, .gids = {ipv4_gid(last)}});
    spec.max_reads = reads;
    return spec;
  };
  TwoDevices(device(1, IBV_MTU_4096, 16), device(2, IBV_MTU_1024, 16)).expect_to_work();
  TwoDevices(device(1, IBV_MTU_512, 16), device(2, IBV_MTU_4096, 16)).expect_to_work();
  TwoDevices(device(1, IBV_MTU_1024, 1), device(2, IBV_MTU_1024, 16)).expect_to_work();
  TwoDevices(device(1, IBV_MTU_1024, 16), device(2, IBV_MTU_1024, 2)).expect_to_work();
}

// --- memory ----------------------------------------------------------------------------------

// Returns a key for |length| bytes in the memory of |key|, regardless of the key's own range.
RemoteKey forged(const RemoteKey& key, bool write, uint64_t length) {
  rdma::Key own = *rdma::decode_key(key);
  own.kind = rdma::KeyKind::kRegion;
  own.immediate = write ? rdma::kRegionWritable : rdma::kRegionReadable;
  own.length = length;
  return rdma::encode_key(own);
}

TEST_F(RdmaQueuePair, DeviceRefusesAccessBeyondTheRightsOfAKey) {
  enum class Kind : uint8_t { kTarget, kSource, kReadable, kWritable };
  constexpr size_t kLength = 10'000;
  for (const Kind kind : {Kind::kTarget, Kind::kSource, Kind::kReadable, Kind::kWritable}) {
    for (const bool write : {false, true}) {
      for (const uint64_t more : {uint64_t{0}, uint64_t{1}}) {
        for (const bool strict : {false, true}) {
          FakePair pair(strict ? "RDMA_STRICT_KEYS=on" : "");
          ASSERT_TRUE(pair.connect());
          // The range is in the middle of a page, with neighbours.
          std::vector<std::byte> memory(kLength + 200, std::byte{1});
          std::vector<std::byte> local(kLength + 1, std::byte{2});
          const iovec piece{memory.data() + 100, kLength};
          const iovec local_piece{local.data(), local.size()};
          const bool exposed = kind == Kind::kTarget || kind == Kind::kSource;
          Result<RemoteKey> key =
              exposed ? pair.to_a().expose(
                            {&piece, 1},
                            kind == Kind::kTarget ? Access::kPutTarget : Access::kGetSource, 1)
                      : pair.b.transport().abilities().regions->publish(
                            {.address = memory.data() + 100,
                             .length = kLength,
                             .writable = kind == Kind::kWritable,
                             .readable = kind == Kind::kReadable});
          ASSERT_TRUE(key.ok());
          const bool allowed =
              more == 0 && write == (kind == Kind::kTarget || kind == Kind::kWritable);
          Bulk bulk{.local = {{&local_piece, 1}, 0, kLength},
                    .key = forged(key.value(), write, kLength + more),
                    .remote_offset = more};
          ASSERT_EQ(write ? pair.to_b().put(bulk) : pair.to_b().get(bulk), Code::kOk);
          ASSERT_TRUE(
              pair.run([&] { return pair.to_b().running() == 0 || pair.to_b().failed > 0; }));
          const std::string which = "kind " + std::to_string(static_cast<int>(kind)) + " write " +
                                    std::to_string(write) + " more " + std::to_string(more);
          EXPECT_EQ(pair.to_b().failed == 0, allowed) << which;
          if (!allowed) {
            EXPECT_EQ(memory, std::vector<std::byte>(memory.size(), std::byte{1})) << which;
            EXPECT_EQ(local, std::vector<std::byte>(local.size(), std::byte{2})) << which;
          }
          if (!exposed) pair.b.transport().abilities().regions->withdraw(key.value());
        }
      }
    }
  }
}

// A put whose end this side has not yet learned may still use such a name.
TEST_F(RdmaQueuePair, StaleExposureNameIsRefusedAfterItsSlotIsReused) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> memory(100);
  const iovec piece{memory.data(), memory.size()};
  const auto first = pair.to_a().expose({&piece, 1}, Access::kPutTarget, 1);
  ASSERT_TRUE(first.ok());
  const uint32_t stale = rdma::decode_key(first.value())->immediate;
  pair.to_a().release(first.value());
  Result<RemoteKey> next = Code::kInternal;
  for (int i = 0; i < 1000; ++i) {
    next = pair.to_a().expose({&piece, 1}, Access::kPutTarget, 2);
    ASSERT_TRUE(next.ok());
    if (rdma::slot_of(rdma::decode_key(next.value())->immediate) == rdma::slot_of(stale)) break;
    pair.to_a().release(next.value());
  }
  ASSERT_EQ(rdma::slot_of(rdma::decode_key(next.value())->immediate), rdma::slot_of(stale));
  pair.to_a().release(first.value());
  FakeFabric::inject_immediate(FakePair::pair_of_b(),
                               htonl(rdma::decode_key(next.value())->immediate), 10);
  ASSERT_TRUE(pair.run([&] { return pair.to_a().put_bytes[2] == 10; })) << "it is live";
  FakeFabric::inject_immediate(FakePair::pair_of_b(), htonl(stale), 10);
  ASSERT_TRUE(pair.run([&] { return pair.to_a().failed > 0; }));
  EXPECT_EQ(pair.to_a().put_bytes[2], 10u);
}

TEST_F(RdmaQueuePair, FragmentBeyondItsTargetFailsTheConnection) {
  for (const uint64_t offset : {900u, 901u, 1000u}) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    std::vector<std::byte> memory(1100, std::byte{1});
    const iovec piece{memory.data(), 1000};
    FakeFabric::fail_registrations(ENOMEM);
    const auto key = pair.to_a().expose({&piece, 1}, Access::kPutTarget, 7);
    FakeFabric::fail_registrations(0);
    ASSERT_TRUE(key.ok());
    std::vector<std::byte> bytes(rdma::kFragmentHeadBytes + 100, std::byte{2});
    rdma::encode_fragment_head(
        bytes.data(), 0, {.immediate = rdma::decode_key(key.value())->immediate, .offset = offset});
    FakeFabric::inject_message(FakePair::pair_of_b(), bytes);
    ASSERT_TRUE(pair.run([&] { return pair.to_a().failed > 0 || pair.to_a().put_bytes[7] > 0; }));
    EXPECT_EQ(pair.to_a().failed, offset > 900 ? 1 : 0) << offset;
    EXPECT_EQ(memory[999], offset > 900 ? std::byte{1} : std::byte{2});
    for (size_t i = 1000; i < memory.size(); ++i) ASSERT_EQ(memory[i], std::byte{1}) << offset;
  }
}

// The remaining bytes may be in flight.
TEST_F(RdmaQueuePair, RevokeOfAPartlyWrittenTargetEndsTheConnection) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> far(100'000);
  std::vector<std::byte> near(100'000);
  const iovec far_piece{far.data(), far.size()};
  const iovec near_piece{near.data(), near.size()};
  const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
  ASSERT_TRUE(key.ok());
  Bulk bulk{.local = {{&near_piece, 1}, 0, near.size() - 1}, .key = key.value()};
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  ASSERT_TRUE(pair.run([&] { return pair.to_a().put_bytes[3] == near.size() - 1; }));
  const size_t pairs = FakeFabric::queue_pairs().size();
  pair.to_a().revoke(key.value());
  EXPECT_EQ(FakeFabric::queue_pairs().size(), pairs - 1) << "ended when revoke returns";
  ASSERT_TRUE(pair.run([&] { return pair.to_a().failed > 0 && pair.to_b().failed > 0; }));
}

// A broadcast exposes memory twice like this, and the other ranks still read.
TEST_F(RdmaQueuePair, RevokeEndsTheConnectionIfTwoExposuresShareARegistration) {
  FakePair pair("RDMA_CACHE_BYTES=1G");
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> right(100'000);
  fill_pattern(right, 5);
  std::vector<std::byte> memory = right;
  std::vector<std::byte> local(memory.size());
  const iovec piece{memory.data(), memory.size()};
  const iovec local_piece{local.data(), local.size()};
  const size_t before = FakeFabric::registrations();
  const auto first = pair.to_a().expose({&piece, 1}, Access::kGetSource, 1);
  const auto second = pair.to_a().expose({&piece, 1}, Access::kGetSource, 2);
  ASSERT_TRUE(first.ok() && second.ok());
  const bool shared = FakeFabric::registrations() == before + 1;
  const size_t pairs = FakeFabric::queue_pairs().size();
  pair.to_a().revoke(first.value());
  if (shared) {
    EXPECT_EQ(FakeFabric::queue_pairs().size(), pairs - 1) << "ended when revoke returns";
    ASSERT_TRUE(pair.run([&] { return pair.to_a().failed > 0 && pair.to_b().failed > 0; }));
    return;
  }
  // If registrations are not kept, each key has its own.
  Bulk bulk{.local = {{&local_piece, 1}, 0, local.size()}, .key = second.value()};
  ASSERT_EQ(pair.to_b().get(bulk), Code::kOk);
  ASSERT_TRUE(complete(pair, pair.to_b()));
  EXPECT_EQ(local, right);
}

// --- devices ---------------------------------------------------------------------------------

TEST_F(RdmaQueuePair, TransfersWorkWithLimitedInlineDataAndPieces) {
  for (const uint32_t max_inline : {0u, 64u}) {
    for (const int pieces : {1, 2, 30}) {
      for (const bool locked : {true, false}) {
        FakeDeviceSpec device;
        device.ports.push_back({.gids = {ipv4_gid(1)}});
        device.max_inline = max_inline;
        device.max_pieces = pieces;
        FakeFabric::reset({device});
        FakePair pair;
        ASSERT_TRUE(pair.connect());
        // There are enough messages that slots and credits wrap around.
        for (uint64_t i = 0; i < 200; ++i) {
          Code code = Code::kWouldBlock;
          ASSERT_TRUE(pair.run([&] {
            if (code != Code::kOk) code = pair.to_b().send(numbered(i), {});
            return code == Code::kOk;
          }));
        }
        ASSERT_TRUE(pair.run([&] { return pair.to_a().messages.size() == 200; }));
        for (uint64_t i = 0; i < 200; ++i) ASSERT_EQ(number_of(pair.to_a().messages[i]), i);
        // The put has pieces of uneven size, some of them empty.
        std::vector<std::byte> right(300'000);
        fill_pattern(right, 9);
        std::vector<std::byte> far(right.size());
        std::vector<std::byte> near = right;
        std::vector<iovec> cut;
        for (size_t at = 0, step = 0; at < near.size(); at += step, step = step * 7 % 20'011) {
          step = std::min(step + (cut.size() % 3 == 0 ? 0 : 5'000), near.size() - at);
          cut.push_back({near.data() + at, step});
        }
        const iovec far_piece{far.data(), far.size()};
        if (!locked) FakeFabric::fail_registrations(ENOMEM);
        const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
        FakeFabric::fail_registrations(0);
        ASSERT_TRUE(key.ok());
        Bulk bulk{.local = {cut, 0, near.size()}, .key = key.value()};
        ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
        ASSERT_TRUE(complete(pair, pair.to_b()));
        ASSERT_TRUE(pair.run([&] { return pair.to_a().put_bytes[3] == right.size(); }));
        EXPECT_EQ(far, right) << max_inline << " " << pieces << " " << locked;
        pair.to_a().release(key.value());
        EXPECT_TRUE(send_and_see(pair, pair.to_a(), pair.to_b()));
        EXPECT_EQ(FakeFabric::not_ready(), 0u);
      }
    }
  }
}

// This side only waits, and its sends no longer arrive.
TEST_F(RdmaQueuePair, IdleConnectionProbesItsPeer) {
  FakePair pair("DETECTION_TIME=2s");
  ASSERT_TRUE(pair.connect());
  ASSERT_TRUE(send_and_see(pair, pair.to_a(), pair.to_b()));
  const uint64_t start = now_ns();
  FakeFabric::fail_next(IBV_WC_RETRY_EXC_ERR, IBV_WR_RDMA_WRITE, FakePair::pair_of_a());
  ASSERT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
  EXPECT_LT(now_ns() - start, 4 * kSecond);
  EXPECT_THAT(std::string(pair.to_b().failure.text()),
              HasSubstr("status " + std::to_string(IBV_WC_RETRY_EXC_ERR)));
}

}  // namespace
}  // namespace hetcomm::test
