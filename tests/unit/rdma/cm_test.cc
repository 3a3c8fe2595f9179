// Connections through rdma_cm (HETCOMM_RDMA_CONNECT=cm). Over a fake, not run on hardware:
//   - over IPv4, IPv6 and InfiniBand two ranks connect by the path that rdma_cm has found, and both
//     directions are usable;
//   - every event that ends an attempt ends it once, with a text that names the cause; so do every
//     failing call and a timeout; the next attempt is not affected;
//   - every event that ends a connection ends it on both sides, once;
//   - without rdma_cm, or without an address that it can listen on, creation fails with a text that
//     names what is missing;
//   - a request without a token, with a wrong or used token, or from another queue pair than the
//     named one is refused;
//   - two sides with different settings report the difference;
//   - no identifier is destroyed with an event in use, wherever an attempt is cancelled, and all
//     resources are released.
// Over the installed librdmacm, if there is a device: connecting, and refusing a stranger.
#include <poll.h>

#include <cerrno>
#include <memory>

#include "src/capi/variables.h"
#include "tests/support/fake_cm.h"
#include "tests/unit/rdma/fixture.h"
#include "transports/rdma/wire.h"

namespace hetcomm::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kByCm = "RDMA_CONNECT=cm";

class RdmaCm : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeFabric::reset();
    FakeCm::reset();
  }
  void TearDown() override {
    EXPECT_EQ(FakeCm::would_hang(), 0u);
    EXPECT_EQ(FakeCm::identifiers(), 0u);
    EXPECT_EQ(FakeCm::channels(), 0u);
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    EXPECT_EQ(FakeFabric::registrations(), 0u);
  }
};

struct CmPair : FakePair {
  explicit CmPair(const std::string& settings = kByCm) : FakePair(settings, &FakeCm::cm()) {}
  // Returns ok, or why a connection attempt failed.
  Status outcome() {
    const int before = a.connect_outcomes;
    a.connected.erase(1);
    a.connect(1, b.transport().contact());
    EXPECT_TRUE(run([&] { return a.connect_outcomes > before; }));
    for (int i = 0; i < 20; ++i) {
      a.step();
      b.step();
    }
    EXPECT_EQ(a.connect_outcomes, before + 1);
    return a.connected.contains(1) ? Status() : a.connect_failed.at(1);
  }
  bool is_usable() {
    const size_t at_a = to_b().messages.size();
    const size_t at_b = to_a().messages.size();
    return to_b().send(numbered(1), {}) == Code::kOk && to_a().send(numbered(2), {}) == Code::kOk &&
           run([&] { return to_b().messages.size() > at_a && to_a().messages.size() > at_b; });
  }
};

std::string text(const Status& status) { return std::string(status.text()); }

void expect_connects(CmPair& pair) {
  ASSERT_TRUE(pair.connect());
  EXPECT_TRUE(pair.is_usable());
}

TEST_F(RdmaCm, ConnectsOverIpv4) {
  CmPair pair;
  EXPECT_THAT(FakeCm::listeners(), ::testing::Each(HasSubstr("192.0.2.1:")));
  expect_connects(pair);
  // Each node has a listener and one end of the connection.
  EXPECT_EQ(FakeCm::identifiers(), 4u);
  pair.a.connected.clear();
  EXPECT_TRUE(pair.run([&] { return pair.to_a().failed == 1; }));
}

TEST_F(RdmaCm, ConnectsOverIpv6AndSkipsLinkLocalAddresses) {
  FakeGid local{.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  FakeGid global{.bytes = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7}};
  FakeFabric::reset({{.name = "fake0", .ports = {{.gids = {local, global}}}}});
  CmPair pair;
  EXPECT_THAT(FakeCm::listeners(), ::testing::Each(HasSubstr("[2001:db8::7]:")));
  expect_connects(pair);
}

TEST_F(RdmaCm, ConnectsOverInfiniBandUsingAnInterfaceAddress) {
  FakeGid gid{.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  FakePort port{.link_layer = IBV_LINK_LAYER_INFINIBAND, .lid = 12, .gids = {gid}};
  FakeFabric::reset({{.name = "ib0", .ports = {port}}});
  FakeCm::give_other_addresses("ib0");
  CmPair pair(std::string(kByCm) + ";INTERFACE=lo");
  EXPECT_THAT(FakeCm::listeners(), ::testing::Contains(HasSubstr("127.0.0.1:")));
  expect_connects(pair);
}

// --- attempts that fail ----------------------------------------------------------------------

struct Failing {
  rdma_cm_event_type usual;
  rdma_cm_event_type instead;
  int status;
  const char* text;
};

TEST_F(RdmaCm, EveryFatalEventEndsAnAttemptOnceWithItsCause) {
  constexpr auto kAddress = RDMA_CM_EVENT_ADDR_RESOLVED;
  constexpr auto kRoute = RDMA_CM_EVENT_ROUTE_RESOLVED;
  constexpr auto kAnswer = RDMA_CM_EVENT_CONNECT_RESPONSE;
  const Failing all[] = {
      {kAddress, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT, "address cannot be found"},
      {kAddress, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, "device was removed"},
      {kRoute, RDMA_CM_EVENT_ROUTE_ERROR, -EHOSTUNREACH, "no route"},
      {kRoute, RDMA_CM_EVENT_ADDR_CHANGE, 0, "moved to another device"},
      {kAnswer, RDMA_CM_EVENT_CONNECT_ERROR, -ECONNREFUSED, "Connection refused"},
      {kAnswer, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, "does not answer: Connection timed out"},
      {kAnswer, RDMA_CM_EVENT_REJECTED, 8, "nobody listens"},
      {kAnswer, RDMA_CM_EVENT_REJECTED, 10, "connection that has ended"},
      {kAnswer, RDMA_CM_EVENT_REJECTED, 28, "refused by the peer"},
      {kAnswer, RDMA_CM_EVENT_REJECTED, 99, "reason 99"},
      {kAnswer, RDMA_CM_EVENT_DISCONNECTED, 0, "closed by peer"},
      {kAnswer, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, "device was removed"},
  };
  CmPair pair;
  for (const Failing& each : all) {
    FakeCm::replace_next(each.usual, each.instead, each.status);
    const Status outcome = pair.outcome();
    EXPECT_EQ(outcome.code(), Code::kPeerLost);
    EXPECT_THAT(text(outcome),
                AllOf(HasSubstr("rdma_cm: 192.0.2.1 to 192.0.2.1:"), HasSubstr(each.text)));
    EXPECT_EQ(pair.b.accepts, 0);
  }
  expect_connects(pair);
}

TEST_F(RdmaCm, EveryFailingCallEndsTheAttemptWithItsCause) {
  CmPair pair;
  for (const char* call : {"create_id", "resolve_addr", "resolve_route", "connect", "init_qp_attr",
                           "accept", "establish"}) {
    FakeCm::fail_next(call, ENOBUFS);
    const Status outcome = pair.outcome();
    EXPECT_EQ(outcome.code(),
              std::string(call) == "create_id" ? Code::kOutOfResources : Code::kPeerLost)
        << call;
    EXPECT_THAT(text(outcome), AllOf(HasSubstr("rdma_cm"), HasSubstr("No buffer space"))) << call;
    EXPECT_EQ(pair.b.accepts, 0) << call;
  }
  expect_connects(pair);
}

TEST_F(RdmaCm, SilentPeerEndsTheAttemptAtTheTimeout) {
  const auto factory = rdma::make_factory(FakeFabric::verbs(), &FakeCm::cm());
  const Credentials credentials = make_credentials();
  Node a({*factory, std::string(kByCm) + ";BOOTSTRAP_TIMEOUT=150ms", credentials, 0, 2});
  Node b({*factory, kByCm, credentials, 1, 2});
  for (const auto step : {RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED,
                          RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE}) {
    FakeCm::swallow_next(step);
    const int before = a.connect_outcomes;
    a.connect(1, b.transport().contact());
    a.until("the outcome", [&] {
      b.step();
      return a.connect_outcomes > before;
    });
    EXPECT_THAT(text(a.connect_failed.at(1)), HasSubstr("did not answer by rdma_cm in time"));
  }
}

TEST_F(RdmaCm, AttemptCancelledAtAnyStepLeavesNothingBehind) {
  for (int steps = 0; steps < 40; ++steps) {
    CmPair pair;
    pair.a.connect(1, pair.b.transport().contact());
    for (int i = 0; i < steps; ++i) (i % 2 == 0 ? pair.b : pair.a).step();
    const bool made = pair.a.connect_outcomes > 0;
    pair.a.transport().cancel_connect({.rank = 1});
    for (int i = 0; i < 20; ++i) {
      pair.a.step();
      pair.b.step();
    }
    EXPECT_EQ(pair.a.connect_outcomes, made ? 1 : 0);
    EXPECT_EQ(FakeFabric::queue_pairs().size(), made ? 2u : 0u) << steps;
  }
}

TEST_F(RdmaCm, AddressOfAnotherDeviceIsRefused) {
  FakeFabric::reset({{.name = "one", .ports = {{.gids = {ipv4_gid(1)}}}},
                     {.name = "two", .ports = {{.gids = {ipv4_gid(1)}}}}});
  Log log;
  const auto factory = rdma::make_factory(FakeFabric::verbs(), &FakeCm::cm());
  try {
    Node node({*factory, std::string(kByCm) + ";RDMA_NIC=two", make_credentials(), 0, 2});
    ADD_FAILURE() << "created";
  } catch (const Abandoned& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("192.0.2.1 belongs to one:1, not to two:1"));
  }
}

// --- what creation needs ---------------------------------------------------------------------

std::string why_not_created(const std::string& settings = kByCm) {
  const auto factory = rdma::make_factory(FakeFabric::verbs(), &FakeCm::cm());
  try {
    Node node({*factory, settings, make_credentials(), 0, 2});
  } catch (const Abandoned& failure) {
    return failure.what();
  }
  return "created";
}

TEST_F(RdmaCm, CreationErrorNamesWhatIsMissing) {
  FakeCm::fail_next("create_event_channel", ENOENT);
  EXPECT_THAT(why_not_created(), AllOf(HasSubstr("HETCOMM_RDMA_CONNECT=cm"),
                                       HasSubstr("No such file"), HasSubstr("rdma_ucm")));
  for (const char* call : {"create_id", "bind_addr", "listen"}) {
    FakeCm::fail_next(call, EACCES);
    EXPECT_THAT(why_not_created(),
                AllOf(HasSubstr("fake0:1 has no address for rdma_cm"), HasSubstr("denied")))
        << call;
  }
  FakeFabric::reset(
      {{.name = "fake0",
        .ports = {{.gids = {{.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}}}}}});
  EXPECT_THAT(why_not_created(), HasSubstr("link-local"));
}

// --- connections that end --------------------------------------------------------------------

TEST_F(RdmaCm, EveryFatalEventEndsAConnectionOnce) {
  const std::pair<rdma_cm_event_type, const char*> all[] = {
      {RDMA_CM_EVENT_DISCONNECTED, "closed by peer"},
      {RDMA_CM_EVENT_DEVICE_REMOVAL, "device was removed"},
      {RDMA_CM_EVENT_ADDR_CHANGE, "moved to another device"},
  };
  for (const auto& [type, expected] : all) {
    CmPair pair;
    ASSERT_TRUE(pair.connect());
    EXPECT_EQ(pair.to_b().send(numbered(5), {}), Code::kOk);
    FakeCm::raise(type);
    FakeCm::raise(RDMA_CM_EVENT_DISCONNECTED);
    Rail& to_a = pair.to_a();
    EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0 && to_a.failed > 0; }));
    for (int i = 0; i < 20; ++i) {
      pair.a.step();
      pair.b.step();
    }
    EXPECT_EQ(pair.to_b().failed + to_a.failed, 2);
    EXPECT_THAT(text(pair.to_b().failure), HasSubstr(expected));
    EXPECT_EQ(to_a.messages.size(), 1u) << "what had arrived is taken first";
  }
}

TEST_F(RdmaCm, HarmlessEventsChangeNothing) {
  CmPair pair;
  ASSERT_TRUE(pair.connect());
  for (const auto type : {RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_TIMEWAIT_EXIT,
                          RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_MULTICAST_ERROR}) {
    FakeCm::raise(type);
  }
  FakeCm::raise_at_listeners(RDMA_CM_EVENT_ADDR_CHANGE);
  EXPECT_TRUE(pair.is_usable());
}

TEST_F(RdmaCm, RemovalOfTheListenersDeviceBreaksTheTransport) {
  CmPair pair;
  ASSERT_TRUE(pair.connect());
  FakeCm::raise_at_listeners(RDMA_CM_EVENT_DEVICE_REMOVAL);
  EXPECT_TRUE(pair.run([&] { return pair.to_b().failed > 0 && pair.to_a().failed > 0; }));
  EXPECT_TRUE(FakeCm::listeners().empty());
  const Status outcome = pair.outcome();
  EXPECT_EQ(outcome.code(), Code::kDeviceLost);
  EXPECT_THAT(text(outcome), HasSubstr("removed"));
}

// --- strangers -------------------------------------------------------------------------------

// Connects from |from| to |to| as any stranger can. Returns the event that ended the attempt;
// |refusal| receives its status.
rdma_cm_event_type knock(const rdma::Cm& cm, const std::string& from, const Address& to,
                         ConstByteSpan data, const std::function<void()>& step, int& refusal) {
  rdma_event_channel* channel = cm.create_event_channel();
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(cm.create_id(channel, &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_storage mine{};
  sockaddr_storage theirs{};
  const Address source = Address::parse_numeric(from, 0).value();
  std::memcpy(&mine, source.get(), source.length());
  std::memcpy(&theirs, to.get(), to.length());
  EXPECT_EQ(cm.resolve_addr(id, reinterpret_cast<sockaddr*>(&mine),
                            reinterpret_cast<sockaddr*>(&theirs), 2000),
            0);
  rdma_cm_event_type last = RDMA_CM_EVENT_ADDR_RESOLVED;
  bool over = false;
  for (const uint64_t limit = now_ns() + 10 * kSecond; !over && now_ns() < limit;) {
    step();
    pollfd ready{.fd = channel->fd, .events = POLLIN, .revents = 0};
    rdma_cm_event* event = nullptr;
    if (poll(&ready, 1, 1) != 1 || cm.get_cm_event(channel, &event) != 0) continue;
    last = event->event;
    refusal = event->status;
    (void)cm.ack_cm_event(event);
    if (last == RDMA_CM_EVENT_ADDR_RESOLVED) {
      EXPECT_EQ(cm.resolve_route(id, 2000), 0);
    } else if (last == RDMA_CM_EVENT_ROUTE_RESOLVED) {
      rdma_conn_param parameters{};
      parameters.private_data = data.data();
      parameters.private_data_len = static_cast<uint8_t>(data.size());
      parameters.retry_count = 7;
      parameters.srq = 1;
      parameters.qp_num = 0x4711;
      EXPECT_EQ(cm.connect(id, &parameters), 0);
    } else {
      over = true;
    }
  }
  EXPECT_TRUE(over) << "no end after event " << last;
  (void)cm.destroy_id(id);
  cm.destroy_event_channel(channel);
  return last;
}

Address parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  return Address::parse_numeric(text.substr(0, colon),
                                static_cast<uint16_t>(std::stoi(text.substr(colon + 1))))
      .value();
}

// Returns the token of the last request.
std::vector<std::byte> last_token() {
  std::vector<std::byte> token = FakeCm::last_token();
  token.resize(rdma::kCmTokenBytes);
  return token;
}

TEST_F(RdmaCm, RequestWithoutAValidTokenIsRefused) {
  CmPair pair;
  const Address listener = parse(FakeCm::listeners().back());
  const auto step = [&] { pair.b.step(); };
  const auto refused = [&](ConstByteSpan data) {
    int status = 0;
    return knock(FakeCm::cm(), "192.0.2.1", listener, data, step, status) ==
               RDMA_CM_EVENT_REJECTED &&
           status == 28;
  };
  const std::vector<std::byte> zeros(rdma::kCmTokenBytes);
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(zeros));
  // A peer is still awaited.
  FakeCm::swallow_next(RDMA_CM_EVENT_CONNECT_REQUEST);
  pair.a.connect(1, pair.b.transport().contact());
  EXPECT_TRUE(pair.run([&] { return last_token() != zeros; }));
  std::vector<std::byte> token = last_token();
  std::vector<std::byte> close = token;
  close.back() ^= std::byte{1};
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(zeros));
  EXPECT_TRUE(refused(close));
  // The token is right, but the queue pair is not the one that the token's owner named.
  EXPECT_TRUE(refused(token));
  pair.a.transport().cancel_connect({.rank = 1});
  EXPECT_EQ(pair.b.accepts, 0);
  expect_connects(pair);
  // A used token is refused.
  token = last_token();
  EXPECT_TRUE(refused(token));
  EXPECT_EQ(pair.b.accepts, 1);
  EXPECT_TRUE(pair.is_usable());
}

TEST_F(RdmaCm, PathToAnotherQueuePairIsRefused) {
  CmPair pair;
  for (const bool in_answer : {false, true}) {
    FakeCm::misdirect_next(in_answer);
    EXPECT_THAT(text(pair.outcome()), HasSubstr("another queue pair"));
    EXPECT_EQ(pair.b.accepts, 0);
  }
  expect_connects(pair);
}

TEST_F(RdmaCm, DifferentConnectSettingsAreReported) {
  const auto factory = rdma::make_factory(FakeFabric::verbs(), &FakeCm::cm());
  const Credentials credentials = make_credentials();
  Node exchange({*factory, "", credentials, 0, 2});
  Node cm({*factory, kByCm, credentials, 1, 2});
  const Status there = exchange.transport().reach(cm.transport().contact());
  EXPECT_EQ(there.code(), Code::kUnsupported);
  EXPECT_THAT(text(there), AllOf(HasSubstr("HETCOMM_RDMA_CONNECT is exchange here and cm at"),
                                 HasSubstr("alike on all ranks")));
  EXPECT_THAT(text(cm.transport().reach(exchange.transport().contact())),
              HasSubstr("HETCOMM_RDMA_CONNECT is cm here and exchange at"));
  // This attempt connects nevertheless.
  exchange.connect(1, cm.transport().contact());
  exchange.until("the outcome", [&] { return exchange.connect_outcomes == 1; });
  EXPECT_THAT(text(exchange.connect_failed.at(1)), HasSubstr("set it alike"));
}

TEST_F(RdmaCm, AnswersRoundTripAndMalformedOnesAreRefused) {
  rdma::Answer answer{.parameters = {.credits = 32, .slot_bytes = 8256}, .invitation = {}};
  answer.invitation = {Address::parse_numeric("2001:db8::5", 4711).value(), {}};
  answer.invitation->token[31] = std::byte{9};
  const rdma::AnswerBytes bytes = rdma::encode_answer(answer);
  Result<rdma::Answer> back = rdma::decode_answer(bytes);
  ASSERT_TRUE(back.ok());
  ASSERT_TRUE(back->invitation.has_value());
  EXPECT_EQ(back->invitation->address.to_string(), "[2001:db8::5]:4711");
  EXPECT_EQ(back->invitation->token, answer.invitation->token);
  const auto whole = std::to_integer<size_t>(bytes[1]);
  for (size_t length = 0; length < whole; ++length) {
    rdma::AnswerBytes cut = bytes;
    cut[1] = static_cast<std::byte>(length);
    EXPECT_EQ(rdma::decode_answer(cut).ok(), length == rdma::kParametersBytes) << length;
  }
}

// --- over the installed library --------------------------------------------------------------

class RdmaCmDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    factory_ = make_rdma_factory();
    Log log;
    auto config = Config::load(kVariables, nullptr, kByCm, log);
    ASSERT_TRUE(config.ok());
    if (const Status usable = factory_->probe(config.value()); !usable.ok()) {
      GTEST_SKIP() << usable.text();
    }
  }
  std::unique_ptr<TransportFactory> factory_;
};

// The most recent listener's address.
Address listening;
int listen_and_tell(rdma_cm_id* id, int backlog) {
  const int result = rdma::load_cm().value()->listen(id, backlog);
  const sockaddr& address = id->route.addr.src_addr;
  listening = Address::from_sockaddr(
      &address, address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return result;
}

TEST_F(RdmaCmDevice, RequestWithAWrongTokenIsRefusedAndAPeerConnects) {
  rdma::Cm telling = *rdma::load_cm().value();
  telling.listen = listen_and_tell;
  const auto factory = rdma::make_factory(*rdma::load_verbs().value(), &telling);
  const Credentials credentials = make_credentials();
  Node a({*factory, kByCm, credentials, 0, 2});
  Node b({*factory, kByCm, credentials, 1, 2});
  const std::string text = listening.with_port(0).to_string();
  std::string host = text.substr(0, text.rfind(':'));
  std::erase_if(host, [](char c) { return c == '[' || c == ']'; });
  for (const size_t bytes : {size_t{0}, rdma::kCmTokenBytes}) {
    int status = 0;
    const std::vector<std::byte> token(bytes, std::byte{1});
    EXPECT_EQ(knock(
                  telling, host, listening, token, [&] { b.step(); }, status),
              RDMA_CM_EVENT_REJECTED);
    EXPECT_EQ(status, 28);
  }
  EXPECT_EQ(b.accepts, 0);
  for (int round = 0; round < 5; ++round) {
    a.connected.clear();
    a.connect(1, b.transport().contact());
    a.until("the connection", [&] {
      b.step();
      return a.connected.contains(1) && b.accepts == round + 1;
    });
    Rail& rail = *b.accepted.at(0);
    EXPECT_EQ(a.connected.at(1)->send(numbered(3), {}), Code::kOk);
    b.until("a message", [&] {
      a.step();
      return rail.messages.size() == 1;
    });
    a.connected.clear();
    b.until("the end", [&] {
      a.step();
      return rail.failed == 1;
    });
  }
}

TEST_F(RdmaCmDevice, RequestIsRejectedWithStatus8IfNobodyListens) {
  const Credentials credentials = make_credentials();
  auto b = std::make_unique<Node>(Node::Options{*factory_, kByCm, credentials, 1, 2});
  int status = 0;
  rdma::Cm telling = *rdma::load_cm().value();
  telling.listen = listen_and_tell;
  const auto factory = rdma::make_factory(*rdma::load_verbs().value(), &telling);
  { const Node other({*factory, kByCm, credentials, 1, 2}); }
  const std::string text = listening.with_port(0).to_string();
  std::string host = text.substr(0, text.rfind(':'));
  std::erase_if(host, [](char c) { return c == '[' || c == ']'; });
  EXPECT_EQ(knock(
                telling, host, listening, {}, [&] { b->step(); }, status),
            RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(status, 8);
}

}  // namespace
}  // namespace hetcomm::test
