// The rdma transport when devices and peers misbehave; over a fake: not run on hardware.
//   - an erroneous completion of any kind, for a send or a receive, fails its connection once, with
//     a text that names the status; other connections continue;
//   - every asynchronous event ends only the objects that it concerns;
//   - messages and immediates that no honest peer sends fail the connection without other effects;
//   - credits: with any number of messages, no receive is ever missing, and a side that only
//     receives does not block the other;
//   - most work requests ask for no completion, and flushed() nevertheless becomes true;
//   - a revoke of memory that a peer may still write, or that the device does not release, ends the
//     connection, and so does a cancel of an operation in flight; release does not, nor does a
//     revoke after everything has arrived;
//   - a put in flight into a region never lands later;
//   - a network is blocked for a connection only if the device gave up sending unanswered data, and
//     not if this side or the peer ended the connection;
//   - a device that refuses work requests does not block other devices;
//   - a removed address ends the connections that use it, established or not, and once it is
//     restored new connections can be made;
//   - a cut during connection setup ends the connection or re-establishes it, within seconds;
//   - no work request exceeds the port's limit; a chunk of a large buffer registers only the chunk
//     if nothing is cached;
//   - if no more memory can be locked, the text names the limit;
//   - all resources are released.
#include <arpa/inet.h>

#include <array>
#include <cerrno>
#include <climits>

#include "tests/support/cut_sockets.h"
#include "tests/support/fastest.h"
#include "tests/support/pattern.h"
#include "tests/unit/rdma/fixture.h"
#include "transports/rdma/wire.h"

namespace hetcomm::test {
namespace {

using ::testing::HasSubstr;

class RdmaFaults : public ::testing::Test {
 protected:
  void SetUp() override { FakeFabric::reset(); }
  void TearDown() override {
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }
};

void expect_failed(FakePair& pair, Rail& rail, const std::string& text) {
  EXPECT_TRUE(pair.run([&] { return rail.failed > 0; }));
  EXPECT_EQ(rail.failed, 1);
  EXPECT_EQ(rail.failure.code(), Code::kPeerLost);
  EXPECT_THAT(std::string(rail.failure.text()), HasSubstr(text));
  EXPECT_EQ(rail.send(numbered(1), {}), Code::kPeerLost);
}

bool send_and_see(FakePair& pair, Rail& from, Rail& to) {
  const size_t before = to.messages.size();
  if (from.send(numbered(7), {}) != Code::kOk) return false;
  return pair.run([&] { return to.messages.size() == before + 1; });
}

TEST_F(RdmaFaults, EveryErrorOfASendFailsTheConnection) {
  for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    FakeFabric::fail_next(static_cast<ibv_wc_status>(status), IBV_WR_SEND);
    EXPECT_EQ(pair.to_b().send(numbered(1), {}), Code::kOk);
    expect_failed(pair, pair.to_b(), "status " + std::to_string(status));
    EXPECT_TRUE(pair.run([&] { return pair.to_a().failed == 1; }));
  }
}

TEST_F(RdmaFaults, EveryErrorOfAPutOrGetFailsTheConnection) {
  for (const bool get : {false, true}) {
    for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
      FakePair pair;
      ASSERT_TRUE(pair.connect());
      std::vector<std::byte> far(100'000);
      std::vector<std::byte> near(100'000);
      const iovec far_piece{far.data(), far.size()};
      const iovec near_piece{near.data(), near.size()};
      auto key =
          pair.to_a().expose({&far_piece, 1}, get ? Access::kGetSource : Access::kPutTarget, 1);
      ASSERT_TRUE(key.ok());
      FakeFabric::fail_next(static_cast<ibv_wc_status>(status),
                            get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE_WITH_IMM);
      Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
      EXPECT_EQ(get ? pair.to_b().get(bulk) : pair.to_b().put(bulk), Code::kOk);
      expect_failed(pair, pair.to_b(), "status " + std::to_string(status));
      EXPECT_TRUE(pair.to_b().completions.empty());
    }
  }
}

TEST_F(RdmaFaults, EveryErrorOfARegionAccessFailsTheConnection) {
  std::vector<std::byte> far(100'000);
  std::vector<std::byte> near(100'000);
  const iovec near_piece{near.data(), near.size()};
  for (const bool get : {false, true}) {
    for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
      FakePair pair;
      ASSERT_TRUE(pair.connect());
      const auto key =
          pair.b.transport().abilities().regions->publish({far.data(), far.size(), true, true});
      ASSERT_TRUE(key.ok());
      FakeFabric::fail_next(static_cast<ibv_wc_status>(status),
                            get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
      Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
      EXPECT_EQ(get ? pair.to_b().get(bulk) : pair.to_b().put(bulk), Code::kOk);
      expect_failed(pair, pair.to_b(), "status " + std::to_string(status));
      EXPECT_TRUE(pair.to_b().completions.empty());
      pair.b.transport().abilities().regions->withdraw(key.value());
    }
  }
}

TEST_F(RdmaFaults, EveryErrorOfAReceiveFailsTheConnection) {
  for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    FakeFabric::inject_receive_error(FakePair::pair_of_b(), static_cast<ibv_wc_status>(status));
    expect_failed(
        pair, pair.to_a(),
        status == IBV_WC_WR_FLUSH_ERR ? "error state" : "status " + std::to_string(status));
  }
}

// The scope of the objects that an event ends.
enum class Ends : uint8_t { kNothing, kQueuePair, kPort, kChangedAddress, kTransport };

// The switch has no default: an event that new headers add must be handled here.
Ends ends_of(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      return Ends::kQueuePair;
    case IBV_EVENT_PORT_ERR:
      return Ends::kPort;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      return Ends::kChangedAddress;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_WQ_FATAL:
      return Ends::kTransport;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return Ends::kNothing;
  }
  return Ends::kNothing;
}

bool is_of_queue_pair(ibv_event_type type) {
  return ends_of(type) == Ends::kQueuePair || type == IBV_EVENT_COMM_EST ||
         type == IBV_EVENT_SQ_DRAINED || type == IBV_EVENT_PATH_MIG ||
         type == IBV_EVENT_QP_LAST_WQE_REACHED;
}

// Two pairs of connected ranks on one device: an event for one pair does not affect the other pair.
TEST_F(RdmaFaults, EachEventAffectsOnlyItsOwnObjects) {
  for (int number = IBV_EVENT_CQ_ERR; number <= IBV_EVENT_WQ_FATAL; ++number) {
    const auto type = static_cast<ibv_event_type>(number);
    const Ends ends = ends_of(type);
    FakePair other;
    ASSERT_TRUE(other.connect());
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    if (is_of_queue_pair(type)) {
      FakeFabric::raise_queue_pair(type, FakePair::pair_of_b());
    } else {
      FakeFabric::raise(type);
    }
    if (ends == Ends::kNothing || ends == Ends::kChangedAddress) {
      // No address has changed.
      EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a())) << "event " << number;
    } else {
      EXPECT_TRUE(pair.run([&] { return pair.to_a().failed == 1 && pair.to_b().failed == 1; }))
          << "event " << number;
    }
    const bool usable = ends != Ends::kTransport;
    EXPECT_EQ(pair.a.transport().reach(pair.b.transport().contact()).ok(), usable) << number;
    if (ends == Ends::kNothing || ends == Ends::kQueuePair) {
      EXPECT_TRUE(send_and_see(other, other.to_b(), other.to_a())) << "event " << number;
    }
  }
}

TEST_F(RdmaFaults, EventsOfAnotherPortChangeNothing) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  FakeFabric::set_gid(0, 0, 0, ipv4_gid(9));
  for (const ibv_event_type type : {IBV_EVENT_PORT_ERR, IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE,
                                    IBV_EVENT_CLIENT_REREGISTER}) {
    FakeFabric::raise(type, 2);
  }
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
}

TEST_F(RdmaFaults, UnknownEventChangesNothing) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  FakeFabric::raise(static_cast<ibv_event_type>(IBV_EVENT_WQ_FATAL + 1));
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
}

TEST_F(RdmaFaults, ChangedLidEndsTheConnections) {
  FakeDeviceSpec device;
  device.ports.push_back({.link_layer = IBV_LINK_LAYER_INFINIBAND,
                          .lid = 4,
                          .gids = {{.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7},
                                    .type = IBV_GID_TYPE_IB}}});
  for (const ibv_event_type type : {IBV_EVENT_LID_CHANGE, IBV_EVENT_CLIENT_REREGISTER}) {
    FakeFabric::reset({device});
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    FakeFabric::raise(type);
    EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a())) << "the LID is the same";
    FakeFabric::set_lid(0, 0, 5);
    FakeFabric::raise(type);
    EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
    EXPECT_THAT(std::string(pair.to_b().failure.text()), HasSubstr("address"));
  }
}

TEST_F(RdmaFaults, FatalEventOfAQueuePairFailsItsConnection) {
  for (const ibv_event_type type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
                                    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_PATH_MIG_ERR}) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    FakeFabric::raise_queue_pair(type, FakePair::pair_of_a());
    expect_failed(pair, pair.to_b(), "event " + std::to_string(type));
    ASSERT_TRUE(pair.connect()) << "a new connection can be made";
    EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  }
}

TEST_F(RdmaFaults, HarmlessEventsChangeNothing) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  for (const ibv_event_type type : {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG,
                                    IBV_EVENT_QP_LAST_WQE_REACHED}) {
    FakeFabric::raise_queue_pair(type, FakePair::pair_of_a());
  }
  for (const ibv_event_type type :
       {IBV_EVENT_PORT_ACTIVE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
        IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE, IBV_EVENT_SRQ_LIMIT_REACHED}) {
    FakeFabric::raise(type);
  }
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  EXPECT_TRUE(send_and_see(pair, pair.to_a(), pair.to_b()));
}

TEST_F(RdmaFaults, LostReceivesAreReplacedUntilSpaceRunsOut) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  // Lost receives are replaced while there is room; then the connection ends, and no rank waits
  // forever.
  int replaced = 0;
  while (replaced < 1000) {
    FakeFabric::lose_receives(FakePair::pair_of_b());
    ASSERT_EQ(pair.to_b().send(numbered(1), {}), Code::kOk);
    const size_t before = pair.to_a().messages.size();
    ASSERT_TRUE(
        pair.run([&] { return pair.to_a().messages.size() > before || pair.to_a().failed > 0; }));
    if (pair.to_a().failed > 0) break;
    ++replaced;
  }
  EXPECT_GT(replaced, 3);
  EXPECT_LT(replaced, 1000);
  EXPECT_THAT(std::string(pair.to_a().failure.text()), HasSubstr("receives were lost"));
}

TEST_F(RdmaFaults, PortDownEndsItsConnections) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  FakeFabric::raise(IBV_EVENT_PORT_ERR);
  EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
  EXPECT_THAT(std::string(pair.to_b().failure.text()), HasSubstr("port went down"));
  // The state is queried again once the port is up.
  FakeFabric::raise(IBV_EVENT_PORT_ACTIVE);
  ASSERT_TRUE(pair.connect());
}

TEST_F(RdmaFaults, FatalEventOfTheDeviceBreaksTheTransport) {
  for (const ibv_event_type type :
       {IBV_EVENT_DEVICE_FATAL, IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR, IBV_EVENT_WQ_FATAL}) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    FakeFabric::raise(type);
    EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
    const Status reach = pair.a.transport().reach(pair.b.transport().contact());
    EXPECT_EQ(reach.code(), Code::kDeviceLost);
    EXPECT_FALSE(pair.connect());
    EXPECT_FALSE(pair.a.connect_failed[1].ok());
  }
}

TEST_F(RdmaFaults, ChangedPortAddressEndsTheConnections) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  FakeFabric::set_gid(0, 0, 0, ipv4_gid(9));
  FakeFabric::raise(IBV_EVENT_GID_CHANGE);
  EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
  EXPECT_THAT(std::string(pair.to_b().failure.text()), HasSubstr("address"));
}

TEST_F(RdmaFaults, RemovedAddressEndsTheConnectionsThatUseIt) {
  FakeDeviceSpec device;
  device.ports.push_back(
      {.gids = {ipv4_gid(1), {.bytes = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}}});
  FakeFabric::reset({device});
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  // The address represents a temporary IPv6 address.
  FakeFabric::set_gid(0, 0, 1, {});
  FakeFabric::raise(IBV_EVENT_GID_CHANGE);
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a())) << "it is not used";
  FakeFabric::set_gid(0, 0, 0, {});
  FakeFabric::raise(IBV_EVENT_GID_CHANGE);
  expect_failed(pair, pair.to_b(), "address");
  const Status reach = pair.a.transport().reach(pair.b.transport().contact());
  EXPECT_THAT(std::string(reach.text()), HasSubstr("no address"));
  EXPECT_FALSE(pair.connect());
  FakeFabric::set_gid(0, 0, 0, ipv4_gid(1));
  FakeFabric::raise(IBV_EVENT_GID_CHANGE);
  for (int i = 0; i < 10; ++i) {
    pair.a.step();
    pair.b.step();
  }
  ASSERT_TRUE(pair.connect()) << "it is back";
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
}

// No connection exists yet when the event comes.
TEST_F(RdmaFaults, AddressRemovedDuringSetupEndsTheAttempt) {
  {
    FakePair pair;
    pair.a.connect(1, pair.b.transport().contact());
    ASSERT_TRUE(pair.run([] { return FakeFabric::queue_pairs().size() == 2; }));
    ASSERT_EQ(pair.a.connect_outcomes, 0);
    FakeFabric::set_gid(0, 0, 0, ipv4_gid(9));
    FakeFabric::raise(IBV_EVENT_GID_CHANGE);
    ASSERT_TRUE(pair.run([&] { return pair.a.connect_outcomes > 0; }));
    EXPECT_FALSE(pair.a.connected.contains(1));
    FakeFabric::set_gid(0, 0, 0, ipv4_gid(1));
    FakeFabric::raise(IBV_EVENT_GID_CHANGE);
  }
  FakePair pair;
  pair.a.connect(1, pair.b.transport().contact());
  ASSERT_TRUE(pair.run([] { return FakeFabric::queue_pairs().size() == 2; }));
  const uint64_t deadline = now_ns() + kSecond;
  while (!pair.a.connected.contains(1) && now_ns() < deadline) pair.a.step();
  ASSERT_TRUE(pair.a.connected.contains(1));
  ASSERT_EQ(pair.b.accepts, 0);
  FakeFabric::set_gid(0, 0, 0, ipv4_gid(9));
  ASSERT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
  EXPECT_EQ(pair.b.accepts, 0);
}

// The address that the peer has named is removed before the queue pair is connected by its index,
// comes back, and is removed again when the connection is complete. The address then at that index
// is not the named one.
TEST_F(RdmaFaults, AcceptorDetectsThatItsAddressWasReplaced) {
  FakePair pair;
  // A device that opens later would know the current addresses.
  std::vector<std::byte> memory(100);
  RegionPublisher& regions = *pair.b.transport().abilities().regions;
  ASSERT_TRUE(regions.publish({memory.data(), memory.size(), true, true}).ok());
  pair.a.connect(1, pair.b.transport().contact());
  FakeFabric::set_gid(0, 0, 0, ipv4_gid(9));
  ASSERT_TRUE(pair.run([] { return FakeFabric::queue_pairs().size() == 2; }));
  FakeFabric::set_gid(0, 0, 0, ipv4_gid(1));
  const uint64_t deadline = now_ns() + kSecond;
  while (!pair.a.connected.contains(1) && now_ns() < deadline) pair.a.step();
  ASSERT_TRUE(pair.a.connected.contains(1));
  ASSERT_EQ(pair.b.accepts, 0);
  FakeFabric::set_gid(0, 0, 0, ipv4_gid(9));
  ASSERT_TRUE(pair.run([&] { return pair.to_b().failed > 0; }));
  EXPECT_EQ(pair.b.accepts, 0);
}

TEST_F(RdmaFaults, LidChangedDuringSetupEndsTheAttempt) {
  FakeDeviceSpec device;
  device.ports.push_back({.link_layer = IBV_LINK_LAYER_INFINIBAND,
                          .lid = 4,
                          .gids = {{.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7},
                                    .type = IBV_GID_TYPE_IB}}});
  FakeFabric::reset({device});
  FakePair pair;
  pair.a.connect(1, pair.b.transport().contact());
  ASSERT_TRUE(pair.run([] { return FakeFabric::queue_pairs().size() == 2; }));
  ASSERT_EQ(pair.a.connect_outcomes, 0);
  FakeFabric::set_lid(0, 0, 5);
  ASSERT_TRUE(pair.run([&] { return pair.a.connect_outcomes > 0; }));
  EXPECT_FALSE(pair.a.connected.contains(1));
  FakeFabric::raise(IBV_EVENT_LID_CHANGE);
  for (int i = 0; i < 10; ++i) {
    pair.a.step();
    pair.b.step();
  }
  ASSERT_TRUE(pair.connect()) << "by the one that there is now";
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
}

// The network is cut silently, at every step and in both directions. Neither side waits for the
// bootstrap timeout.
TEST_F(RdmaFaults, NetworkCutDuringSetupYieldsOneOutcome) {
  constexpr size_t kSteps = 12;
  std::vector<std::unique_ptr<FakePair>> pairs;
  for (size_t steps = 0; steps < kSteps; ++steps) {
    pairs.push_back(std::make_unique<FakePair>("DETECTION_TIME=2s;INTERFACE=lo;FAMILY=ipv4"));
    FakePair& pair = *pairs.back();
    pair.a.connect(1, pair.b.transport().contact());
    for (size_t i = 0; i < steps; ++i) i % 2 == 0 ? pair.a.step() : pair.b.step();
  }
  EXPECT_GT(cut_sockets([](const SocketEnds&) { return true; }), 4);
  const auto settled = [&] {
    size_t connected = 0;
    for (const auto& pair : pairs) {
      pair->a.step();
      pair->b.step();
      if (pair->a.connect_outcomes == 0) return false;
      for (const auto* rails : {&pair->a.connected, &pair->b.accepted}) {
        for (const auto& [peer, rail] : *rails) connected += rail->failed == 0 ? 1u : 0u;
      }
    }
    // No side keeps resources for a connection that the other side has abandoned.
    return FakeFabric::queue_pairs().size() == connected;
  };
  const uint64_t end = now_ns() + 12 * kSecond;
  bool done = false;
  while (!done && now_ns() < end) {
    for (const auto& pair : pairs) {
      pair->a.step();
      pair->b.step();
    }
    done = settled();
    usleep(1000);
  }
  EXPECT_TRUE(done);
  for (const auto& pair : pairs) EXPECT_EQ(pair->a.connect_outcomes, 1);
}

TEST_F(RdmaFaults, SendToADeviceThatRefusesWorkDoesNotBlock) {
  for (const int times : {1, INT_MAX}) {
    uint64_t fastest = UINT64_MAX;
    for (int round = 0; round < 4; ++round) {
      FakePair pair;
      ASSERT_TRUE(pair.connect());
      // The sends are complete, but not known to be complete.
      for (int i = 0; i < 3; ++i) EXPECT_EQ(pair.to_b().send(numbered(1), {}), Code::kOk);
      FakeFabric::refuse_posts(times);
      const uint64_t took = test::fastest_ns(1, [&] { (void)pair.to_b().send(numbered(1), {}); });
      fastest = std::min(fastest, took);
      FakeFabric::refuse_posts(0);
      expect_failed(pair, pair.to_b(), "refuses");
    }
    EXPECT_LT(fastest, kSecond / 10) << times;
  }
}

TEST_F(RdmaFaults, FragmentsRespectThePortLimit) {
  FakeDeviceSpec device;
  device.ports.push_back({.gids = {ipv4_gid(1)}, .max_message_bytes = 16384});
  FakeFabric::reset({device});
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> far(100'000);
  std::vector<std::byte> near(100'000, std::byte{3});
  const iovec far_piece{far.data(), far.size()};
  const iovec near_piece{near.data(), near.size()};
  const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
  ASSERT_TRUE(key.ok());
  Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  ASSERT_TRUE(pair.run([&] { return pair.to_b().running() == 0; }));
  EXPECT_EQ(pair.to_b().failed, 0);
  EXPECT_EQ(far, near);
}

// Soft-RoCE mishandles retransmissions, so its single timeout equals the total of all retries
// elsewhere.
TEST_F(RdmaFaults, SoftRoceUsesOneLongTimeoutInsteadOfRetries) {
  for (const bool soft : {false, true}) {
    FakeDeviceSpec device;
    device.ports.push_back({.gids = {ipv4_gid(1)}});
    if (soft) device.vendor = rdma::Nic::kSoftRoceVendor;
    FakeFabric::reset({device});
    FakePair pair("RDMA_TIMEOUT=16ms;RDMA_RETRIES=6");  // 16.8 ms is 4.096 us * 2^12
    ASSERT_TRUE(pair.connect());
    for (const uint32_t number : FakeFabric::queue_pairs()) {
      EXPECT_EQ(FakeFabric::patience_of(number).retries, soft ? 0 : 6);
      EXPECT_EQ(FakeFabric::patience_of(number).timeout, soft ? 15 : 12);
    }
  }
}

TEST_F(RdmaFaults, PutOfAChunkRegistersOnlyThatChunkWithoutACache) {
  FakePair pair("RDMA_CACHE_BYTES=0");
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> far(300'000);
  std::vector<std::byte> near(1u << 20);
  for (size_t i = 0; i < near.size(); ++i) near[i] = static_cast<std::byte>(i % 251);
  const auto key =
      pair.b.transport().abilities().regions->publish({far.data(), far.size(), true, true});
  ASSERT_TRUE(key.ok());
  // The range starts inside one piece and ends inside another.
  const std::array<iovec, 3> pieces = {
      {{near.data(), 300'000}, {near.data() + 300'000, 100'000}, {near.data() + 400'000, 500'000}}};
  const uint64_t before = FakeFabric::registered_bytes();
  Bulk bulk{.local = {pieces, 200'000, 250'000}, .key = key.value()};
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  EXPECT_EQ(FakeFabric::registered_bytes() - before, 250'000u);
  ASSERT_TRUE(pair.run([&] { return pair.to_b().running() == 0; }));
  EXPECT_EQ(FakeFabric::registered_bytes(), before);
  EXPECT_TRUE(std::equal(far.begin(), far.begin() + 250'000, near.begin() + 200'000));
  pair.b.transport().abilities().regions->withdraw(key.value());
}

TEST_F(RdmaFaults, CancelledPutIntoARegionNeverLandsLater) {
  std::vector<std::byte> far(1000);
  std::vector<std::byte> near(1000);
  const iovec far_piece{far.data(), far.size()};
  const iovec near_piece{near.data(), near.size()};
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  const auto region =
      pair.b.transport().abilities().regions->publish({far.data(), far.size(), true, true});
  const auto target = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
  ASSERT_TRUE(region.ok() && target.ok());
  // The connection survives the cancellation of a put to an exposed target, or of a get.
  Bulk copied{.local = {{&near_piece, 1}, 0, near.size()}, .key = target.value()};
  ASSERT_EQ(pair.to_b().put(copied), Code::kOk);
  pair.to_b().cancel(copied);
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  Bulk read{.local = {{&near_piece, 1}, 0, near.size()}, .key = region.value()};
  ASSERT_EQ(pair.to_b().get(read), Code::kOk);
  pair.to_b().cancel(read);
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = region.value()};
  const size_t pairs = FakeFabric::queue_pairs().size();
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  pair.to_b().cancel(bulk);
  EXPECT_EQ(FakeFabric::queue_pairs().size(), pairs - 1) << "ended when cancel returns";
  expect_failed(pair, pair.to_b(), "cancelled");
  pair.b.transport().abilities().regions->withdraw(region.value());
}

TEST_F(RdmaFaults, MalformedMessagesFailTheConnection) {
  std::vector<std::vector<std::byte>> bad;
  bad.push_back({});
  bad.emplace_back(3);
  bad.emplace_back(8);   // type 0
  bad.emplace_back(40);  // type 0
  MessageHeader before{};
  MessageHeader header{};
  header.fill(std::byte{1});
  std::vector<std::byte> cut(rdma::kMaxHeadBytes);
  ASSERT_EQ(rdma::encode_head(cut.data(), 0, header, before), cut.size());
  cut.pop_back();
  bad.push_back(cut);
  std::vector<std::byte> no_mask(rdma::kCreditsHeadBytes + 3);
  no_mask[0] = std::byte{static_cast<uint8_t>(rdma::HeadType::kMessage)};
  bad.push_back(no_mask);
  std::vector<std::byte> long_credits(rdma::kCreditsHeadBytes + 1);
  rdma::encode_credits(long_credits.data(), 1);
  bad.push_back(long_credits);
  std::vector<std::byte> generous(rdma::kCreditsHeadBytes);
  rdma::encode_credits(generous.data(), 1);  // no credit was used
  bad.push_back(generous);
  for (uint32_t type : {4u, 0x80u, 0xffu}) {
    std::vector<std::byte> unknown(40);
    unknown[0] = static_cast<std::byte>(type);
    bad.push_back(unknown);
  }
  for (const std::vector<std::byte>& bytes : bad) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    FakeFabric::inject_message(FakePair::pair_of_b(), bytes);
    expect_failed(pair, pair.to_a(), "protocol error");
    EXPECT_TRUE(pair.to_a().messages.empty());
  }
}

TEST_F(RdmaFaults, HostileImmediatesFailTheConnection) {
  std::vector<std::byte> memory(1000);
  const iovec piece{memory.data(), memory.size()};
  enum class Case : uint8_t { kUnknown, kGeneration, kSource, kTooLong, kReleased, kNoFlag };
  for (const Case each : {Case::kUnknown, Case::kGeneration, Case::kSource, Case::kTooLong,
                          Case::kReleased, Case::kNoFlag}) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    Rail& rail = pair.to_a();
    const auto target = rail.expose({&piece, 1}, Access::kPutTarget, 5);
    const auto source = rail.expose({&piece, 1}, Access::kGetSource, 6);
    ASSERT_TRUE(target.ok() && source.ok());
    uint32_t immediate = rdma::decode_key(target.value())->immediate;
    uint32_t length = 10;
    if (each == Case::kUnknown) immediate += 77;
    if (each == Case::kGeneration) immediate ^= 1u << 31;
    if (each == Case::kSource) immediate = rdma::decode_key(source.value())->immediate;
    if (each == Case::kTooLong) length = 1001;
    if (each == Case::kReleased) rail.release(target.value());
    FakeFabric::inject_immediate(FakePair::pair_of_b(), htonl(immediate), length,
                                 each != Case::kNoFlag);
    expect_failed(pair, rail, "not exposed");
    EXPECT_TRUE(rail.put_bytes.empty());
  }
}

TEST_F(RdmaFaults, EveryMessageFindsAPostedReceive) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> payload(3000);
  const iovec piece{payload.data(), payload.size()};
  const ExtentView view{{&piece, 1}, 0, payload.size()};
  uint64_t sent = 0;
  int writable = 0;
  for (int round = 0; round < 200; ++round) {
    // Only one side sends; its peer returns credits in separate messages.
    Code code = Code::kOk;
    while ((code = pair.to_b().send(numbered(sent), view)) == Code::kOk) ++sent;
    ASSERT_EQ(code, Code::kWouldBlock);
    writable = pair.to_b().writable;
    ASSERT_TRUE(pair.run([&] { return pair.to_b().writable > writable; }));
  }
  ASSERT_TRUE(pair.run([&] { return pair.to_a().messages.size() == sent; }));
  EXPECT_EQ(FakeFabric::not_ready(), 0u);
  EXPECT_GT(sent, 1000u);
  EXPECT_LT(FakeFabric::signalled(), FakeFabric::requests());
  EXPECT_TRUE(pair.run([&] { return pair.to_b().endpoint().flushed(); }));
}

TEST_F(RdmaFaults, BothSidesResumeAfterBothWereFull) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  uint64_t sent_a = 0;
  uint64_t sent_b = 0;
  for (int round = 0; round < 100; ++round) {
    while (pair.to_b().send(numbered(sent_a), {}) == Code::kOk) ++sent_a;
    while (pair.to_a().send(numbered(sent_b), {}) == Code::kOk) ++sent_b;
    const int before_a = pair.to_b().writable;
    const int before_b = pair.to_a().writable;
    ASSERT_TRUE(pair.run(
        [&] { return pair.to_b().writable > before_a && pair.to_a().writable > before_b; }));
  }
  ASSERT_TRUE(pair.run([&] {
    return pair.to_a().messages.size() == sent_a && pair.to_b().messages.size() == sent_b;
  }));
  EXPECT_EQ(FakeFabric::not_ready(), 0u);
}

TEST_F(RdmaFaults, PutsToAnIdlePeerPauseAndResume) {
  FakePair pair("RDMA_SLICE=4K");
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> far(1u << 20);
  std::vector<std::byte> near(1u << 20, std::byte{5});
  const iovec far_piece{far.data(), far.size()};
  const iovec near_piece{near.data(), near.size()};
  const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
  ASSERT_TRUE(key.ok());
  Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  for (int i = 0; i < 1000; ++i) pair.a.step();
  EXPECT_EQ(pair.to_b().running(), 1u) << "no credits are left for it";
  EXPECT_EQ(pair.to_b().send(numbered(1), {}), Code::kOk) << "but for messages";
  ASSERT_TRUE(pair.run([&] { return pair.to_b().running() == 0; }));
  ASSERT_TRUE(pair.run([&] { return pair.to_a().put_bytes[3] == near.size(); }));
  EXPECT_EQ(far, near);
  EXPECT_EQ(FakeFabric::not_ready(), 0u);
  pair.to_a().revoke(key.value());
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a())) << "all had arrived: nothing to fence";
}

TEST_F(RdmaFaults, RevokeAndCancelInFlightEndTheConnection) {
  std::vector<std::byte> far(1u << 20);
  std::vector<std::byte> near(1u << 20);
  const iovec far_piece{far.data(), far.size()};
  const iovec near_piece{near.data(), near.size()};
  {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
    ASSERT_TRUE(key.ok());
    const size_t pairs = FakeFabric::queue_pairs().size();
    pair.to_a().revoke(key.value());
    EXPECT_EQ(FakeFabric::queue_pairs().size(), pairs - 1) << "ended when revoke returns";
    EXPECT_EQ(pair.to_a().failed, 0) << "reported from progress only";
    expect_failed(pair, pair.to_a(), "revoked");
    expect_failed(pair, pair.to_b(), "closed by peer");
  }
  {
    FakePair pair("RDMA_SLICE=4K");
    ASSERT_TRUE(pair.connect());
    const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
    ASSERT_TRUE(key.ok());
    Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
    ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
    pair.to_b().cancel(bulk);
    expect_failed(pair, pair.to_b(), "cancelled");
  }
}

TEST_F(RdmaFaults, OnlyUnansweredDataCountsAsBlocked) {
  for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    ASSERT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));  // the opening
    FakeFabric::fail_next(static_cast<ibv_wc_status>(status), IBV_WR_SEND);
    EXPECT_EQ(pair.to_b().send(numbered(1), {}), Code::kOk);
    EXPECT_TRUE(pair.run([&] { return pair.to_b().failed == 1 && pair.to_a().failed == 1; }));
    EXPECT_EQ(pair.to_b().endpoint().passage(),
              status == IBV_WC_RETRY_EXC_ERR ? Passage::kBlocked : Passage::kNothing)
        << status;
    EXPECT_NE(pair.to_a().endpoint().passage(), Passage::kBlocked) << status;
  }
  // The opening alone tells nothing of long packets.
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  FakeFabric::fail_next(IBV_WC_RETRY_EXC_ERR, IBV_WR_SEND);
  EXPECT_EQ(pair.to_b().send(numbered(1), {}), Code::kOk);
  EXPECT_TRUE(pair.run([&] { return pair.to_b().failed == 1; }));
  EXPECT_EQ(pair.to_b().endpoint().passage(), Passage::kNothing);
}

// Both sides have data in flight when one of them revokes memory, again and again.
TEST_F(RdmaFaults, RevokesWithDataInFlightDoNotCountAsBlocked) {
  std::vector<std::byte> far(1u << 20);
  std::vector<std::byte> near(1u << 20);
  const iovec far_piece{far.data(), far.size()};
  const iovec near_piece{near.data(), near.size()};
  FakePair pair("RDMA_SLICE=4K");
  ASSERT_TRUE(pair.connect());
  ASSERT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  ASSERT_TRUE(send_and_see(pair, pair.to_a(), pair.to_b()));
  const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
  const auto back = pair.to_b().expose({&near_piece, 1}, Access::kPutTarget, 3);
  ASSERT_TRUE(key.ok() && back.ok());
  Bulk there{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
  Bulk here{.local = {{&far_piece, 1}, 0, far.size()}, .key = back.value()};
  ASSERT_EQ(pair.to_b().put(there), Code::kOk);
  ASSERT_EQ(pair.to_a().put(here), Code::kOk);
  pair.to_a().revoke(key.value());
  EXPECT_TRUE(pair.run([&] { return pair.to_b().failed == 1 && pair.to_a().failed == 1; }));
  EXPECT_NE(pair.to_a().endpoint().passage(), Passage::kBlocked);
  EXPECT_NE(pair.to_b().endpoint().passage(), Passage::kBlocked);
}

// Ending a get source's registration revokes the source. A peer that does not read it keeps the
// connection. If a device silently puts the queue pair into the error state, that is detected.
TEST_F(RdmaFaults, RevokedSourceKeepsTheConnectionUnlessRead) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> memory(100'000);
  std::vector<std::byte> local(100'000);
  const iovec piece{memory.data(), memory.size()};
  const iovec local_piece{local.data(), local.size()};
  const auto key = pair.to_a().expose({&piece, 1}, Access::kGetSource, 3);
  ASSERT_TRUE(key.ok());
  const size_t before = FakeFabric::registrations();
  pair.to_a().revoke(key.value());
  EXPECT_EQ(FakeFabric::registrations(), before - 1) << "not kept for later";
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  Bulk bulk{.local = {{&local_piece, 1}, 0, local.size()}, .key = key.value()};
  ASSERT_EQ(pair.to_b().get(bulk), Code::kOk);
  EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0 && pair.to_a().failed > 0; }));
  ASSERT_TRUE(pair.connect());
  const auto first = pair.to_a().expose({&piece, 1}, Access::kGetSource, 3);
  ASSERT_TRUE(first.ok());
  pair.to_a().revoke(first.value());
  FakeFabric::silence(FakePair::pair_of_b());
  EXPECT_TRUE(pair.run([&] { return pair.to_a().failed > 0; }));
  EXPECT_THAT(std::string(pair.to_a().failure.text()), HasSubstr("read memory that was revoked"));
}

TEST_F(RdmaFaults, FailedDeregistrationOnRevokeEndsTheConnection) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> memory(100'000);
  const iovec piece{memory.data(), memory.size()};
  const auto key = pair.to_a().expose({&piece, 1}, Access::kGetSource, 3);
  ASSERT_TRUE(key.ok());
  const size_t pairs = FakeFabric::queue_pairs().size();
  FakeFabric::fail_deregistrations(EBUSY);
  pair.to_a().revoke(key.value());
  EXPECT_EQ(FakeFabric::queue_pairs().size(), pairs - 1) << "ended when revoke returns";
  expect_failed(pair, pair.to_a(), "revoked");
  ASSERT_TRUE(pair.connect());
}

TEST_F(RdmaFaults, StrictKeysExpireWithTheExposure) {
  FakePair pair("RDMA_STRICT_KEYS=on");
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> memory(100'000);
  std::vector<std::byte> local(100'000);
  const iovec piece{memory.data(), memory.size()};
  const iovec local_piece{local.data(), local.size()};
  const size_t before = FakeFabric::registrations();
  const auto key = pair.to_a().expose({&piece, 1}, Access::kGetSource, 3);
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(FakeFabric::registrations(), before + 1);
  pair.to_a().release(key.value());
  EXPECT_EQ(FakeFabric::registrations(), before);
  Bulk bulk{.local = {{&local_piece, 1}, 0, local.size()}, .key = key.value()};
  ASSERT_EQ(pair.to_b().get(bulk), Code::kOk);
  expect_failed(pair, pair.to_b(), "status " + std::to_string(IBV_WC_REM_ACCESS_ERR));
}

std::vector<std::byte> pattern_of(size_t size) {
  std::vector<std::byte> bytes(size);
  fill_pattern(bytes, 7);
  return bytes;
}

// If the target, the source, or both cannot be registered, the bytes go through message buffers.
TEST_F(RdmaFaults, UnregistrableMemoryIsCopiedThroughMessages) {
  const std::vector<std::byte> right = pattern_of(1'000'001);
  for (const bool target_fails : {false, true}) {
    for (const bool source_fails : {false, true}) {
      FakePair pair;
      ASSERT_TRUE(pair.connect());
      std::vector<std::byte> far(right.size());
      std::vector<std::byte> near = right;
      const iovec far_piece{far.data(), far.size()};
      const iovec near_piece{near.data(), near.size()};
      if (target_fails) FakeFabric::fail_registrations(ENOMEM);
      const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
      ASSERT_TRUE(key.ok()) << key.status().text();
      FakeFabric::fail_registrations(source_fails ? ENOMEM : 0);
      // Two halves, second one first.
      Bulk first{.local = {{&near_piece, 1}, 0, 600'000}, .key = key.value()};
      Bulk second{.local = {{&near_piece, 1}, 600'000, 400'001},
                  .key = key.value(),
                  .remote_offset = 600'000};
      ASSERT_EQ(pair.to_b().put(second), Code::kOk);
      ASSERT_EQ(pair.to_b().put(first), Code::kOk);
      ASSERT_TRUE(pair.run([&] { return pair.to_a().put_bytes[3] == right.size(); }));
      ASSERT_TRUE(pair.run([&] { return pair.to_b().completions.size() == 2; }));
      for (const auto& completion : pair.to_b().completions) EXPECT_EQ(completion.code, Code::kOk);
      EXPECT_EQ(far, right);
      pair.to_a().release(key.value());
      FakeFabric::fail_registrations(0);
      EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
    }
  }
}

TEST_F(RdmaFaults, UnregistrableMemoryIsTransferredToAndFromRegions) {
  const std::vector<std::byte> right = pattern_of(300'000);
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> far(right.size());
  std::vector<std::byte> near = right;
  const iovec near_piece{near.data(), near.size()};
  const auto region =
      pair.b.transport().abilities().regions->publish({far.data(), far.size(), true, true});
  ASSERT_TRUE(region.ok());
  FakeFabric::fail_registrations(ENOMEM);
  for (const bool get : {false, true}) {
    Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = region.value()};
    ASSERT_EQ(get ? pair.to_b().get(bulk) : pair.to_b().put(bulk), Code::kOk);
    ASSERT_TRUE(pair.run([&] { return pair.to_b().running() == 0; }));
    EXPECT_EQ(pair.to_b().completions.back().code, Code::kOk);
    EXPECT_EQ(get ? near : far, right);
    std::fill(near.begin(), near.end(), std::byte{});
  }
  FakeFabric::fail_registrations(0);
  pair.b.transport().abilities().regions->withdraw(region.value());
}

// Some pieces are registered before the limit is reached. Those that the device has started to
// access stay in use while the rest is copied.
TEST_F(RdmaFaults, TransferCompletesIfLockedMemoryRunsOut) {
  const std::vector<std::byte> right = pattern_of(800'000);
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> far(right.size());
  std::vector<std::byte> near = right;
  std::vector<iovec> pieces;
  for (size_t at = 0; at < near.size(); at += 100'000)
    pieces.push_back({near.data() + at, 100'000});
  const auto region =
      pair.b.transport().abilities().regions->publish({far.data(), far.size(), true, true});
  ASSERT_TRUE(region.ok());
  FakeFabric::fail_registrations(ENOMEM, 3);
  Bulk bulk{.local = {pieces, 0, near.size()}, .key = region.value()};
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  ASSERT_TRUE(pair.run([&] { return pair.to_b().running() == 0; }));
  EXPECT_EQ(pair.to_b().completions.back().code, Code::kOk);
  EXPECT_EQ(far, right);
  // The transfer is cancelled while the device may read the memory: only the end of the queue pair
  // stops that.
  FakeFabric::fail_registrations(ENOMEM, 3);
  const size_t pairs = FakeFabric::queue_pairs().size();
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  pair.to_b().cancel(bulk);
  EXPECT_EQ(FakeFabric::queue_pairs().size(), pairs - 1) << "ended when cancel returns";
  FakeFabric::fail_registrations(0);
  pair.b.transport().abilities().regions->withdraw(region.value());
}

// Only messages are in flight, so the connection stays, and late fragments find nothing.
TEST_F(RdmaFaults, RevokeOfACopiedTargetKeepsTheConnection) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> far(100'000);
  std::vector<std::byte> near(100'000, std::byte{1});
  const iovec far_piece{far.data(), far.size()};
  const iovec near_piece{near.data(), near.size()};
  FakeFabric::fail_registrations(ENOMEM);
  const auto key = pair.to_a().expose({&far_piece, 1}, Access::kPutTarget, 3);
  ASSERT_TRUE(key.ok());
  FakeFabric::fail_registrations(0);
  Bulk bulk{.local = {{&near_piece, 1}, 0, near.size()}, .key = key.value()};
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  pair.to_a().revoke(key.value());
  ASSERT_TRUE(pair.run([&] { return pair.to_b().completions.size() == 1; }));
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  EXPECT_EQ(far, std::vector<std::byte>(far.size())) << "nothing is written any more";
  EXPECT_TRUE(pair.to_a().put_bytes.empty());
}

TEST_F(RdmaFaults, HostileFragmentsFailTheConnection) {
  std::vector<std::byte> memory(1000);
  const iovec piece{memory.data(), memory.size()};
  std::vector<std::byte> other(1000);
  const iovec other_piece{other.data(), other.size()};
  enum class Case : uint8_t { kTarget, kSource, kTooFar, kTooLong, kWraps, kEmpty, kWritten };
  for (const Case each : {Case::kTarget, Case::kSource, Case::kTooFar, Case::kTooLong, Case::kWraps,
                          Case::kEmpty, Case::kWritten}) {
    FakePair pair;
    ASSERT_TRUE(pair.connect());
    Rail& rail = pair.to_a();
    const auto target = rail.expose({&piece, 1}, Access::kPutTarget, 5);
    const auto source = rail.expose({&piece, 1}, Access::kGetSource, 6);
    FakeFabric::fail_registrations(ENOMEM);
    const auto copied = rail.expose({&other_piece, 1}, Access::kPutTarget, 7);
    FakeFabric::fail_registrations(0);
    ASSERT_TRUE(target.ok() && source.ok() && copied.ok());
    ASSERT_EQ(rdma::decode_key(copied.value())->kind, rdma::KeyKind::kCopiedTarget);
    rdma::FragmentHead fragment{.immediate = rdma::decode_key(copied.value())->immediate};
    size_t length = 10;
    if (each == Case::kTarget) fragment.immediate = rdma::decode_key(target.value())->immediate;
    if (each == Case::kSource) fragment.immediate = rdma::decode_key(source.value())->immediate;
    if (each == Case::kTooFar) fragment.offset = 1001;
    if (each == Case::kTooLong) length = 1001;
    if (each == Case::kWraps) fragment.offset = UINT64_MAX - 4;
    if (each == Case::kEmpty) length = 0;
    if (each == Case::kWritten) {
      FakeFabric::inject_immediate(FakePair::pair_of_b(), htonl(fragment.immediate), 10, true);
    } else {
      std::vector<std::byte> bytes(rdma::kFragmentHeadBytes + length);
      rdma::encode_fragment_head(bytes.data(), 0, fragment);
      FakeFabric::inject_message(FakePair::pair_of_b(), bytes);
    }
    expect_failed(pair, rail, "protocol error");
    EXPECT_TRUE(rail.put_bytes.empty());
  }
}

TEST_F(RdmaFaults, RegistrationErrorNamesTheMemlockLimit) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> memory(1u << 20);
  const iovec piece{memory.data(), memory.size()};
  FakeFabric::fail_registrations(ENOMEM);
  // If a source can neither be registered nor copied, it is refused with a helpful text.
  const auto key = pair.to_a().expose({&piece, 1}, Access::kGetSource, 3);
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.status().code(), Code::kOutOfResources);
  EXPECT_THAT(std::string(key.status().text()), HasSubstr("RLIMIT_MEMLOCK"));
  EXPECT_THAT(std::string(key.status().text()), HasSubstr("ulimit -l"));
  const auto region =
      pair.a.transport().abilities().regions->publish({memory.data(), memory.size(), true, true});
  EXPECT_THAT(std::string(region.status().text()), HasSubstr("RLIMIT_MEMLOCK"));
  // Memory that does not exist is refused without being accessed.
  FakeFabric::fail_registrations(EFAULT);
  const auto nowhere = pair.to_a().expose({&piece, 1}, Access::kPutTarget, 3);
  EXPECT_EQ(nowhere.status().code(), Code::kInvalidArgument);
  FakeFabric::fail_registrations(0);
  const auto target = pair.to_a().expose({&piece, 1}, Access::kPutTarget, 3);
  ASSERT_TRUE(target.ok());
  Bulk bulk{.local = {{&piece, 1}, 0, piece.iov_len}, .key = target.value()};
  FakeFabric::fail_registrations(EFAULT);
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  ASSERT_TRUE(pair.run([&] { return pair.to_b().completions.size() == 1; }));
  EXPECT_EQ(pair.to_b().completions[0].code, Code::kInvalidArgument);
  FakeFabric::fail_registrations(0);
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
  // Connecting also requires lockable memory.
  FakeFabric::fail_registrations(ENOMEM);
  pair.a.connect_failed.clear();
  EXPECT_FALSE(pair.connect());
  EXPECT_THAT(std::string(pair.a.connect_failed[1].text()), HasSubstr("RLIMIT_MEMLOCK"));
  FakeFabric::fail_registrations(0);
}

TEST_F(RdmaFaults, LackOfQueuePairsFailsTheAttempt) {
  FakePair pair;
  FakeFabric::fail_queue_pairs(ENOMEM);
  EXPECT_FALSE(pair.connect());
  EXPECT_THAT(std::string(pair.a.connect_failed[1].text()), HasSubstr("queue pair"));
  FakeFabric::fail_queue_pairs(0);
  ASSERT_TRUE(pair.connect());
  EXPECT_TRUE(send_and_see(pair, pair.to_b(), pair.to_a()));
}

TEST_F(RdmaFaults, RegionAccessNeedsNoHelpFromTheOwner) {
  FakePair pair;
  ASSERT_TRUE(pair.connect());
  std::vector<std::byte> memory(100'000, std::byte{1});
  std::vector<std::byte> local(100'000, std::byte{2});
  const iovec piece{local.data(), local.size()};
  const auto both =
      pair.b.transport().abilities().regions->publish({memory.data(), memory.size(), true, true});
  const auto read =
      pair.b.transport().abilities().regions->publish({memory.data(), memory.size(), false, true});
  ASSERT_TRUE(both.ok() && read.ok());
  Bulk bulk{.local = {{&piece, 1}, 0, 50'000}, .key = both.value(), .remote_offset = 7};
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  for (int i = 0; i < 100 && pair.to_b().running() > 0; ++i) pair.a.step();
  EXPECT_EQ(pair.to_b().running(), 0u) << "the target does nothing for it";
  EXPECT_EQ(memory[6], std::byte{1});
  EXPECT_EQ(memory[7], std::byte{2});
  EXPECT_EQ(memory[50'006], std::byte{2});
  EXPECT_EQ(memory[50'007], std::byte{1});
  bulk.key = read.value();
  EXPECT_EQ(pair.to_b().put(bulk), Code::kPermissionDenied);
  bulk.remote_offset = 60'000;
  EXPECT_EQ(pair.to_b().get(bulk), Code::kOutOfRange);
  bulk.remote_offset = 0;
  EXPECT_EQ(pair.to_b().get(bulk), Code::kOk);
  for (int i = 0; i < 100 && pair.to_b().running() > 0; ++i) pair.a.step();
  EXPECT_EQ(local[6], std::byte{1});
  pair.b.transport().abilities().regions->withdraw(both.value());
  bulk.key = both.value();
  ASSERT_EQ(pair.to_b().put(bulk), Code::kOk);
  expect_failed(pair, pair.to_b(), "status " + std::to_string(IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(pair.to_a().put_bytes.empty());
  pair.b.transport().abilities().regions->withdraw(read.value());
}

}  // namespace
}  // namespace hetcomm::test
