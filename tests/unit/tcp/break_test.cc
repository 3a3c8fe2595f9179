// The tcp transport when things go wrong:
//   - after revoke or cancel has returned, memory is not accessed, wherever a frame was cut, and
//     the connection continues;
//   - a peer that closes or resets fails the connection once, after all the data that it had sent
//     has been received;
//   - bytes that no honest peer sends fail the connection with a text, and modify no memory.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/net/connector.h"
#include "tests/support/cut_sockets.h"
#include "tests/support/fastest.h"
#include "tests/unit/tcp/fixture.h"
#include "transports/tcp/endpoint.h"
#include "transports/tcp/stream_count.h"
#include "transports/tcp/wire.h"

namespace hetcomm::test {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBig = 4u << 20;
// With full sockets, frames are cut repeatedly.
constexpr char kSmallBuffers[] = "TCP_SOCKET_BUFFER=64K;TCP_CHUNK=1M";

// A put from a to b in flight.
struct Transfer {
  explicit Transfer(Pair& pair, size_t size = kBig)
      : data(pattern(size, 1)), memory(size, std::byte{0xee}), local(piece(data)) {
    const iovec target = piece(memory);
    Result<RemoteKey> exposed =
        pair.eb().abilities().exposer->expose({&target, 1}, Access::kPutTarget, 1);
    if (!exposed.ok()) std::abort();
    key = *exposed;
    bulk = {.local = {{&local, 1}, 0, size}, .key = key};
    if (pair.ea().abilities().puts->put(bulk) != Code::kOk) std::abort();
  }
  // Runs until about |bytes| have arrived. The run ends inside a frame, because a frame is larger
  // than the buffers.
  bool run_to(Pair& pair, size_t bytes) {
    return pair.run(
        [&] { return memory[bytes] != std::byte{0xee} || data[bytes] == std::byte{0xee}; });
  }
  std::vector<std::byte> data;
  std::vector<std::byte> memory;
  iovec local;
  RemoteKey key;
  Bulk bulk;
};

void expect_put_works(Pair& pair) {
  std::vector<std::byte> data = pattern(100000, 7);
  std::vector<std::byte> memory(data.size());
  const iovec local = piece(data);
  const iovec target = piece(memory);
  Result<RemoteKey> key =
      pair.eb().abilities().exposer->expose({&target, 1}, Access::kPutTarget, 77);
  ASSERT_TRUE(key.ok());
  Bulk bulk{.local = {{&local, 1}, 0, data.size()}, .key = *key};
  const uint64_t before = pair.rb().put_bytes[77];
  ASSERT_EQ(pair.ea().abilities().puts->put(bulk), Code::kOk);
  ASSERT_TRUE(pair.run([&] {
    return pair.rb().put_bytes[77] == before + data.size() &&
           std::count(pair.ra().completed.begin(), pair.ra().completed.end(), &bulk) == 1;
  }));
  EXPECT_EQ(memory, data);
  pair.eb().abilities().exposer->revoke(*key);
  pair.ra().completed.clear();
}

// --- the fate of sent data ----------------------------------------------------------------------

Code send_bytes(Endpoint& endpoint, size_t size) {
  std::vector<std::byte> data = pattern(size, 3);
  const iovec local = piece(data);
  return endpoint.send(MessageHeader{}, {{&local, 1}, 0, size});
}

TEST(TcpPassage, OpeningDoesNotCountAsData) {
  Pair pair;
  pair.idle();
  EXPECT_EQ(pair.ea().passage(), Passage::kNothing);
  for (const size_t size : {size_t{40}, size_t{40}}) {
    EXPECT_EQ(pair.ea().passage(), Passage::kNothing);
    ASSERT_EQ(send_bytes(pair.ea(), size), Code::kOk);
    const size_t before = pair.rb().messages.size();
    ASSERT_TRUE(pair.run([&] { return pair.rb().messages.size() > before; }));
  }
  EXPECT_TRUE(pair.run([&] { return pair.ea().passage() == Passage::kPassed; }));
  EXPECT_EQ(pair.eb().passage(), Passage::kNothing);
  EXPECT_TRUE(pair.ea().trouble().empty());
}

// The network is cut, and then a message or a put is sent.
TEST(TcpPassage, UnacknowledgedDataCountsAsBlocked) {
  for (const bool by_put : {false, true}) {
    Pair pair("TCP_STREAMS=1;DETECTION_TIME=2s");
    ASSERT_EQ(send_bytes(pair.ea(), 40), Code::kOk);
    ASSERT_EQ(send_bytes(pair.eb(), 40), Code::kOk);
    ASSERT_TRUE(
        pair.run([&] { return !pair.rb().messages.empty() && !pair.ra().messages.empty(); }));
    std::optional<Transfer> first;
    if (by_put) {
      // Opens the bulk stream from the other side.
      std::vector<std::byte> data = pattern(100, 1);
      const iovec local = piece(data);
      Result<RemoteKey> key =
          pair.ea().abilities().exposer->expose({&local, 1}, Access::kPutTarget, 9);
      ASSERT_TRUE(key.ok());
      Bulk bulk{.local = {{&local, 1}, 0, data.size()}, .key = *key};
      ASSERT_EQ(pair.eb().abilities().puts->put(bulk), Code::kOk);
      ASSERT_TRUE(pair.run([&] { return pair.ra().put_bytes[9] == data.size(); }));
    }
    EXPECT_EQ(pair.ea().passage(), Passage::kNothing);
    EXPECT_GT(cut_sockets([](const SocketEnds&) { return true; }), 0);
    if (by_put) {
      first.emplace(pair);
      ASSERT_TRUE(pair.run([&] { return pair.ea().passage() == Passage::kBlocked; }));
    } else {
      ASSERT_EQ(send_bytes(pair.ea(), 40), Code::kOk);
      EXPECT_EQ(pair.ea().passage(), Passage::kBlocked);
    }
    // The trouble is reported both before and after the connection is abandoned.
    ASSERT_TRUE(pair.run([&] { return !pair.ea().trouble().empty(); }));
    EXPECT_THAT(pair.ea().trouble(), HasSubstr("not acknowledged"));
    ASSERT_TRUE(pair.run([&] { return pair.ra().failures > 0; }));
    EXPECT_EQ(pair.ea().passage(), Passage::kBlocked);
  }
}

TEST(TcpRevoke, RevokeInsideAFrameStopsAccess) {
  std::mt19937_64 random(1);
  for (const char* settings :
       {kSmallBuffers, "TCP_STREAMS=3;TCP_SOCKET_BUFFER=64K;TCP_CHUNK=300K"}) {
    Pair pair(settings);
    for (int i = 0; i < 8; ++i) {
      Transfer transfer(pair);
      ASSERT_TRUE(transfer.run_to(pair, random() % kBig));
      pair.eb().abilities().exposer->revoke(transfer.key);
      // The memory now belongs to another owner.
      std::fill(transfer.memory.begin(), transfer.memory.end(), std::byte{0x55});
      const uint64_t told = pair.rb().put_bytes[1];
      ASSERT_TRUE(pair.run([&] { return pair.ra().completed.size() == 1; }));
      pair.ra().completed.clear();
      ASSERT_NO_FATAL_FAILURE(expect_put_works(pair));
      EXPECT_EQ(pair.rb().put_bytes[1], told);
      EXPECT_TRUE(std::all_of(transfer.memory.begin(), transfer.memory.end(),
                              [](std::byte b) { return b == std::byte{0x55}; }));
      pair.eb().abilities().exposer->revoke(transfer.key);  // the second call has no effect
    }
  }
}

TEST(TcpRevoke, RevokeInsideTheUpcallOfAPutStopsAccess) {
  Pair pair("TCP_CHUNK=64K");
  Transfer transfer(pair);
  pair.rb().put_hook = [&] {
    pair.eb().abilities().exposer->revoke(transfer.key);
    pair.rb().put_hook = nullptr;
  };
  ASSERT_TRUE(pair.run([&] { return pair.ra().completed.size() == 1; }));
  pair.ra().completed.clear();
  expect_put_works(pair);
  EXPECT_EQ(pair.rb().put_bytes[1], 64u << 10);
}

TEST(TcpCancel, CancelInsideAFrameStopsAccess) {
  std::mt19937_64 random(2);
  for (const char* settings :
       {kSmallBuffers, "TCP_STREAMS=3;TCP_SOCKET_BUFFER=64K;TCP_CHUNK=300K"}) {
    Pair pair(settings);
    for (int i = 0; i < 8; ++i) {
      Transfer transfer(pair);
      const size_t reached = random() % (kBig / 2);
      ASSERT_TRUE(transfer.run_to(pair, reached));
      pair.ea().abilities().puts->cancel(transfer.bulk);
      // The source's new contents must not arrive, except for bytes that had left before.
      const std::vector<std::byte> original = transfer.data;
      std::fill(transfer.data.begin(), transfer.data.end(), std::byte{0x55});
      transfer.bulk = {};
      ASSERT_NO_FATAL_FAILURE(expect_put_works(pair));
      EXPECT_TRUE(pair.ra().completed.empty());
      EXPECT_LT(pair.rb().put_bytes[1], kBig);
      for (size_t at = 0; at < kBig; ++at) {
        ASSERT_TRUE(transfer.memory[at] == original[at] || transfer.memory[at] == std::byte{0xee});
      }
      pair.eb().abilities().exposer->revoke(transfer.key);
      pair.rb().put_bytes[1] = 0;
    }
  }
}

TEST(TcpCancel, CancelInEveryStateStopsAccess) {
  Pair pair(kSmallBuffers);
  ASSERT_NO_FATAL_FAILURE(expect_put_works(pair));
  {
    // The transfer is queued behind another one, first and last in the list.
    Transfer transfer(pair);
    std::array<Bulk, 4> more;
    for (Bulk& bulk : more) {
      bulk.local = transfer.bulk.local;
      bulk.key = transfer.key;
      ASSERT_EQ(pair.ea().abilities().puts->put(bulk), Code::kOk);
    }
    pair.ea().abilities().puts->cancel(more[3]);
    pair.ea().abilities().puts->cancel(more[1]);
    ASSERT_EQ(pair.ea().abilities().puts->put(more[3]), Code::kOk);
    pair.ea().abilities().puts->cancel(transfer.bulk);
    ASSERT_TRUE(pair.run([&] { return pair.ra().completed.size() == 3; }));
    EXPECT_EQ(pair.ra().completed, (std::vector<Bulk*>{&more[0], &more[2], &more[3]}));
    pair.ra().completed.clear();
    pair.eb().abilities().exposer->revoke(transfer.key);
  }
  {
    // The put has completed, but before its upcall another bulk's upcall cancels it.
    Bulk one;
    Bulk two;
    ASSERT_EQ(pair.ea().abilities().puts->put(one), Code::kOk);
    ASSERT_EQ(pair.ea().abilities().puts->put(two), Code::kOk);
    pair.ra().complete_hook = [&] { pair.ea().abilities().puts->cancel(two); };
    pair.idle();
    EXPECT_EQ(pair.ra().completed, std::vector<Bulk*>{&one});
  }
}

// Makes puts from both sides use the message stream, because no other stream can be opened.
void expect_no_bulk_streams(Pair& pair) {
  pair.a.log.set_level(LogLevel::kError);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  expect_put_works(pair);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_THAT(pair.ea().describe(), HasSubstr("over the message stream"));
}

// Sends as much as the kernel takes, so that a frame is cut anywhere.
void fill_the_stream(Pair& pair) {
  for (int idle = 0; idle < 100;) idle = pair.a.step() > 0 ? 0 : idle + 1;
}

constexpr size_t kOverMessages = 16u << 20;  // more than the sockets can buffer

TEST(TcpRevoke, RevokeInsideAFrameOnTheMessageStreamStopsAccess) {
  Pair pair;
  ASSERT_NO_FATAL_FAILURE(expect_no_bulk_streams(pair));
  for (int i = 0; i < 3; ++i) {
    Transfer transfer(pair, kOverMessages);
    fill_the_stream(pair);
    for (int idle = 0; idle < 10 + i;) idle = pair.b.step() > 0 ? 0 : idle + 1;
    ASSERT_NE(pair.rb().put_bytes[1], 0u);
    pair.eb().abilities().exposer->revoke(transfer.key);
    std::fill(transfer.memory.begin(), transfer.memory.end(), std::byte{0x55});
    pair.rb().put_bytes[1] = 0;
    ASSERT_TRUE(pair.run([&] { return pair.ra().completed.size() == 1; }));
    pair.ra().completed.clear();
    ASSERT_NO_FATAL_FAILURE(expect_put_works(pair));
    EXPECT_EQ(pair.rb().put_bytes[1], 0u);
    EXPECT_TRUE(std::all_of(transfer.memory.begin(), transfer.memory.end(),
                            [](std::byte b) { return b == std::byte{0x55}; }));
  }
}

TEST(TcpCancel, CancelInsideAFrameOnTheMessageStreamStopsAccess) {
  Pair pair;
  ASSERT_NO_FATAL_FAILURE(expect_no_bulk_streams(pair));
  for (int i = 0; i < 3; ++i) {
    Transfer transfer(pair, kOverMessages);
    fill_the_stream(pair);
    pair.ea().abilities().puts->cancel(transfer.bulk);
    const std::vector<std::byte> original = transfer.data;
    std::fill(transfer.data.begin(), transfer.data.end(), std::byte{0x55});
    transfer.bulk = {};
    ASSERT_NO_FATAL_FAILURE(expect_put_works(pair));
    EXPECT_TRUE(pair.ra().completed.empty());
    EXPECT_LT(pair.rb().put_bytes[1], kOverMessages);
    EXPECT_NE(pair.rb().put_bytes[1], 0u);
    for (size_t at = 0; at < kOverMessages; ++at) {
      ASSERT_TRUE(transfer.memory[at] == original[at] || transfer.memory[at] == std::byte{0xee});
    }
    pair.eb().abilities().exposer->revoke(transfer.key);
    pair.rb().put_bytes[1] = 0;
  }
}

// Destroys one side in the middle of a put. Stores the time until the other side notices in
// |*took_ns|.
void destroy_in_the_middle_of_a_put(bool sender_goes, uint64_t* took_ns) {
  Pair pair(kSmallBuffers);
  Transfer transfer(pair);
  ASSERT_TRUE(transfer.run_to(pair, kBig / 2));
  (sender_goes ? pair.a : pair.b).endpoints.clear();
  Recorder& left = sender_goes ? pair.rb() : pair.ra();
  *took_ns =
      test::fastest_ns(1, [&] { ASSERT_TRUE(pair.run([&] { return left.failures == 1; })); });
  EXPECT_THAT(std::string(left.failure.text()), HasSubstr("tcp 127.0.0.1:"));
  pair.idle();
  // After on_failed every call reports it and nothing is touched.
  Endpoint& endpoint = sender_goes ? pair.eb() : pair.ea();
  EXPECT_EQ(endpoint.send(make_header(1), {}), Code::kPeerLost);
  EXPECT_EQ(endpoint.abilities().puts->put(transfer.bulk), Code::kPeerLost);
  EXPECT_EQ(endpoint.abilities().exposer->expose({}, Access::kPutTarget, 1).status().code(),
            Code::kPeerLost);
  endpoint.abilities().puts->cancel(transfer.bulk);
  endpoint.abilities().exposer->revoke(transfer.key);
  EXPECT_TRUE(endpoint.flushed());
  EXPECT_TRUE(left.completed.empty());
}

TEST(TcpClose, PeerNoticesDestructionDuringAPut) {
  for (const bool sender_goes : {true, false}) {
    uint64_t fastest = UINT64_MAX;
    for (int round = 0; round < 4; ++round) {
      uint64_t took_ns = UINT64_MAX;
      ASSERT_NO_FATAL_FAILURE(destroy_in_the_middle_of_a_put(sender_goes, &took_ns));
      fastest = std::min(fastest, took_ns);
    }
    EXPECT_LT(fastest, 500'000'000u);
  }
}

TEST(TcpClose, DataSentBeforeTheCloseIsReceived) {
  Pair pair;
  ASSERT_NO_FATAL_FAILURE(expect_put_works(pair));
  Transfer transfer(pair, 300000);
  std::vector<std::byte> bytes = pattern(3000, 1);
  const iovec whole = piece(bytes);
  // The kernel accepts all the data while the receiver does nothing.
  for (int i = 0; i < 100000 && !pair.ea().flushed(); ++i) pair.a.step();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(pair.ea().send(make_header(1), {{&whole, 1}, 0, bytes.size()}), Code::kOk);
  }
  ASSERT_TRUE(pair.ea().flushed());
  pair.a.endpoints.clear();
  ASSERT_TRUE(pair.run([&] { return pair.rb().failures == 1; }));
  EXPECT_EQ(pair.rb().messages.size(), 20u);
  EXPECT_EQ(transfer.memory, transfer.data);
  EXPECT_EQ(pair.rb().put_bytes[1], transfer.data.size());
  EXPECT_THAT(std::string(pair.rb().failure.text()), HasSubstr("connection closed by peer"));
}

TEST(TcpClose, SendToAClosedPeerFailsOnce) {
  Pair pair;
  pair.b.endpoints.clear();
  int sent = 0;
  Code code = Code::kOk;
  while ((code = pair.ea().send(make_header(1), {})) == Code::kOk) ASSERT_LT(++sent, 100);
  EXPECT_EQ(code, Code::kPeerLost);
  EXPECT_EQ(pair.ra().failures, 0);  // never from inside send
  ASSERT_TRUE(pair.run([&] { return pair.ra().failures == 1; }));
}

TEST(TcpClose, EndpointMayBeDestroyedInAnyUpcall) {
  // Both sides send and put. The endpoint is destroyed at a random moment, inside an upcall of the
  // other side.
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    Pair pair("TCP_SOCKET_BUFFER=64K;TCP_CHUNK=100K;TCP_STREAMS=2");
    Transfer transfer(pair);
    std::vector<std::byte> bytes = pattern(20000, 1);
    const iovec whole = piece(bytes);
    const size_t last = random() % 60;
    bool gone = false;
    // An upcall on b's endpoint may destroy a's endpoints, like any others.
    pair.rb().message_hook = [&] {
      if (pair.rb().messages.size() <= last || gone) return;
      gone = true;
      pair.a.endpoints.clear();
    };
    for (int i = 0; i < 100000 && pair.rb().failures == 0; ++i) {
      if (!gone)
        (void)(pair.ea().send(make_header(1), {{&whole, 1}, 0, bytes.size()}) == Code::kOk);
      if (pair.rb().failures == 0) {
        (void)(pair.eb().send(make_header(1), {{&whole, 1}, 0, bytes.size()}) == Code::kOk);
      }
      pair.b.step();
      if (!gone) pair.a.step();
    }
    EXPECT_EQ(pair.rb().failures, 1);
  }
}

// --- a peer that proves itself and then misbehaves -------------------------------------------

class RawPeer final : public ConnectHandler {
 public:
  RawPeer(Node& node, uint8_t index, const tcp::ConnectionId& id, int rank = 0) : node_(node) {
    Result<ListeningHost> target = tcp::decode_contact(node.transport->contact());
    if (!target.ok()) std::abort();
    Hello hello;
    hello.role = Role::kTcp;
    hello.identity = make_credentials().identity;
    hello.source = rank;
    hello.destination = node.environment.rank;
    hello.extra = tcp::encode_stream_name({.connection = id, .index = index});
    connector_ = Connector::create(poller_, target->addresses, make_credentials().secret,
                                   std::move(hello), now_ns() + 10'000'000'000, *this);
    const uint64_t deadline = now_ns() + 10'000'000'000;
    while (!socket.valid() && now_ns() < deadline) {
      poller_.poll();
      connector_->expire(now_ns());
      node.step();
    }
    if (!socket.valid()) std::abort();
  }
  void on_connect(Result<StreamSocket> connected) override {
    if (connected.ok()) socket = std::move(connected).value().take_fd();
  }
  void write(const void* data, size_t size) {
    for (const char* at = static_cast<const char*>(data); size > 0;) {
      const ssize_t sent = ::send(socket.get(), at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      node_.step();
      if (sent < 0 && errno != EAGAIN) return;
      if (sent <= 0) continue;
      at += sent;
      size -= static_cast<size_t>(sent);
    }
  }
  void write(const tcp::HeadBytes& head) { write(head.data(), head.size()); }
  // Returns whether the node has closed this socket.
  bool closed() {
    std::array<char, 256> sink;
    ssize_t n;
    while ((n = ::recv(socket.get(), sink.data(), sink.size(), MSG_DONTWAIT)) > 0) {
    }
    return n == 0 || errno != EAGAIN;
  }
  UniqueFd socket;

 private:
  Node& node_;
  Poller poller_ = make_poller();
  std::unique_ptr<Connector> connector_;
};

struct Victim {
  Victim() : node(1, 2), memory(1000, std::byte{0xee}) {
    id.fill(std::byte{3});
    messages = std::make_unique<RawPeer>(node, 0, id);
    if (!Pair::run_nodes({&node}, [&] { return node.endpoints.size() == 1; })) std::abort();
    const iovec target = piece(memory);
    key = node.to(0).abilities().exposer->expose({&target, 1}, Access::kPutTarget, 1).value();
  }
  bool fails() {
    return Pair::run_nodes(
        {&node}, [&] { return node.from(0).failures == 1; }, 5'000'000'000);
  }
  std::string text() { return std::string(node.from(0).failure.text()); }
  bool untouched() const {
    return std::all_of(memory.begin(), memory.end(),
                       [](std::byte b) { return b == std::byte{0xee}; });
  }
  void put_head(RawPeer& peer, const tcp::PutTarget& target, uint32_t length) {
    tcp::HeadBytes head;
    tcp::encode_put_head(head, target, length);
    peer.write(head);
  }
  tcp::PutTarget target(uint64_t offset) const { return tcp::put_target(key, offset); }

  Node node;
  tcp::ConnectionId id{};
  std::vector<std::byte> memory;
  RemoteKey key;
  std::unique_ptr<RawPeer> messages;
};

TEST(TcpHostile, ImpossibleHeadersFailTheConnection) {
  std::vector<tcp::HeadBytes> heads(8);
  tcp::encode_message_head(heads[0], {}, tcp::kMaxMessageBytes + 1);
  heads[1].fill(std::byte{0xff});
  heads[2].fill(std::byte{0});
  tcp::encode_message_head(heads[3], {}, 0);
  heads[3][1] = std::byte{1};
  tcp::encode_streams_head(heads[4], {.kind = tcp::StreamsNote::Kind::kWanted, .count = 1});
  tcp::encode_streams_head(heads[5], {.kind = tcp::StreamsNote::Kind::kUnavailable, .count = 200});
  tcp::encode_streams_head(heads[6], {.kind = tcp::StreamsNote::Kind::kUnavailable});
  heads[6][30] = std::byte{1};
  tcp::encode_put_head(heads[7], {}, 0);
  for (const tcp::HeadBytes& head : heads) {
    Victim victim;
    victim.messages->write(head);
    ASSERT_TRUE(victim.fails());
    EXPECT_THAT(victim.text(), HasSubstr("protocol error"));
    EXPECT_TRUE(victim.messages->closed());
  }
}

// Each side gets a frame that only the other side may send.
TEST(TcpHostile, StreamsFrameFromTheWrongSideIsRefused) {
  using Kind = tcp::StreamsNote::Kind;
  Pair pair;
  auto& opens = static_cast<tcp::TcpEndpoint&>(pair.ea());
  auto& asks = static_cast<tcp::TcpEndpoint&>(pair.eb());
  EXPECT_NE(opens.on_streams_frame({.kind = Kind::kUnavailable}), nullptr);
  EXPECT_NE(asks.on_streams_frame({.kind = Kind::kWanted, .count = 1}), nullptr);
  EXPECT_EQ(opens.on_streams_frame({.kind = Kind::kWanted, .count = 1}), nullptr);
  EXPECT_EQ(asks.on_streams_frame({.kind = Kind::kUnavailable}), nullptr);
}

// Puts over the message stream come in fragments, with messages between them. Frames without a
// meaning there are refused.
TEST(TcpHostile, ImpossiblePutsFailTheConnection) {
  {
    Victim victim;
    victim.put_head(*victim.messages, victim.target(0), tcp::kMaxFragmentBytes + 1);
    ASSERT_TRUE(victim.fails());
    EXPECT_THAT(victim.text(), HasSubstr("too long"));
  }
  for (size_t at = 32; at < tcp::kHeadBytes; ++at) {
    Victim victim;
    RawPeer bulk(victim.node, 1, victim.id);
    tcp::HeadBytes head;
    tcp::encode_put_head(head, victim.target(0), 10);
    head[at] = std::byte{0x40};
    bulk.write(head);
    ASSERT_TRUE(victim.fails()) << at;
    EXPECT_THAT(victim.text(), HasSubstr("malformed put")) << at;
  }
}

TEST(TcpHostile, UnauthorizedPutsFailTheConnection) {
  const auto expect_failure = [](const char* text, auto&& change, uint32_t length) {
    Victim victim;
    RawPeer bulk(victim.node, 1, victim.id);
    tcp::PutTarget target = victim.target(0);
    change(target);
    victim.put_head(bulk, target, length);
    const std::vector<std::byte> data(length, std::byte{1});
    bulk.write(data.data(), data.size());
    ASSERT_TRUE(victim.fails()) << text;
    EXPECT_THAT(victim.text(), HasSubstr(text));
    EXPECT_TRUE(victim.untouched());
  };
  const auto keep = [](tcp::PutTarget&) {};
  expect_failure(
      "never exposed", [](tcp::PutTarget& t) { t.nonce ^= 1; }, 10);
  expect_failure(
      "never exposed", [](tcp::PutTarget& t) { t.slot += 1; }, 10);
  expect_failure(
      "never exposed", [](tcp::PutTarget& t) { t.generation += 1; }, 10);
  expect_failure(
      "never exposed", [](tcp::PutTarget& t) { t.generation = 0; }, 10);
  expect_failure(
      "outside", [](tcp::PutTarget& t) { t.offset = 991; }, 10);
  expect_failure(
      "outside", [](tcp::PutTarget& t) { t.offset = UINT64_MAX; }, 10);
  expect_failure(
      "outside", [](tcp::PutTarget& t) { t.offset = UINT64_MAX - 8; }, 10);
  expect_failure("outside", keep, 1001);
  expect_failure("too long", keep, tcp::kMaxPutBytes + 1);
}

TEST(TcpHostile, MessageOnABulkStreamFailsTheConnection) {
  Victim victim;
  RawPeer bulk(victim.node, 1, victim.id);
  tcp::HeadBytes head;
  tcp::encode_message_head(head, {}, 4);
  bulk.write(head);
  ASSERT_TRUE(victim.fails());
  EXPECT_THAT(victim.text(), HasSubstr("message on a bulk stream"));
}

TEST(TcpHostile, PutToARevokedTargetIsDroppedSilently) {
  Victim victim;
  RawPeer bulk(victim.node, 1, victim.id);
  victim.node.to(0).abilities().exposer->revoke(victim.key);
  const std::vector<std::byte> data(500, std::byte{1});
  victim.put_head(bulk, victim.target(0), 500);
  bulk.write(data.data(), data.size());
  // The old token does not reach the slot in its next life either.
  std::vector<std::byte> other(1000, std::byte{0xee});
  const iovec target = piece(other);
  const RemoteKey key =
      victim.node.to(0).abilities().exposer->expose({&target, 1}, Access::kPutTarget, 2).value();
  victim.put_head(bulk, victim.target(0), 500);
  bulk.write(data.data(), data.size());
  victim.put_head(bulk, tcp::put_target(key, 5), 500);
  bulk.write(data.data(), data.size());
  ASSERT_TRUE(
      Pair::run_nodes({&victim.node}, [&] { return victim.node.from(0).put_bytes[2] == 500; }));
  EXPECT_EQ(victim.node.from(0).put_bytes.count(1), 0u);
  EXPECT_TRUE(victim.untouched());
  EXPECT_EQ(other[4], std::byte{0xee});
  EXPECT_EQ(other[5], std::byte{1});
}

TEST(TcpHostile, CloseInsideAFrameFailsTheConnection) {
  for (const size_t bytes : {1u, 39u, 40u, 41u, 100u}) {
    Victim victim;
    tcp::HeadBytes head;
    tcp::encode_message_head(head, {}, 1000);
    std::vector<std::byte> frame(head.begin(), head.end());
    frame.resize(bytes);
    victim.messages->write(frame.data(), frame.size());
    victim.messages->socket.reset();
    ASSERT_TRUE(victim.fails());
    EXPECT_THAT(victim.text(), HasSubstr("in the middle of a frame"));
    EXPECT_TRUE(victim.node.from(0).messages.empty());
  }
}

TEST(TcpHostile, FramesSentByteByByteArriveIntact) {
  Victim victim;
  RawPeer bulk(victim.node, 1, victim.id);
  tcp::HeadBytes head;
  tcp::encode_message_head(head, make_header(42), 5);
  for (int i = 0; i < 3; ++i) {
    for (const std::byte& byte : head) victim.messages->write(&byte, 1);
    for (const char* at = "hello"; *at != 0; ++at) victim.messages->write(at, 1);
    tcp::encode_put_head(head, victim.target(static_cast<uint64_t>(i)), 3);
    for (const std::byte& byte : head) bulk.write(&byte, 1);
    for (const char* at = "abc"; *at != 0; ++at) bulk.write(at, 1);
    tcp::encode_message_head(head, make_header(42), 5);
  }
  ASSERT_TRUE(Pair::run_nodes({&victim.node}, [&] {
    return victim.node.from(0).messages.size() == 3 && victim.node.from(0).put_bytes[1] == 9;
  }));
  EXPECT_EQ(std::memcmp(victim.memory.data(), "aaabc", 5), 0);
  EXPECT_EQ(victim.node.from(0).messages[2].number, 42u);
}

TEST(TcpHostile, DuplicateStreamsAreRefusedAndUnknownOnesAreBounded) {
  Victim victim;
  RawPeer again(victim.node, 0, victim.id);
  RawPeer bulk(victim.node, 2, victim.id);
  RawPeer twice(victim.node, 2, victim.id);
  // Streams whose connection does not exist (yet) are kept, up to a limit.
  tcp::ConnectionId unknown{};
  RawPeer stranger(victim.node, 1, unknown);
  for (int i = 0; i < 100; ++i) victim.node.step();
  EXPECT_TRUE(again.closed());
  EXPECT_FALSE(bulk.closed());
  EXPECT_TRUE(twice.closed());
  EXPECT_FALSE(stranger.closed());
  std::vector<std::unique_ptr<RawPeer>> more;
  for (int i = 0; i < 16; ++i) more.push_back(std::make_unique<RawPeer>(victim.node, 1, unknown));
  for (int i = 0; i < 100; ++i) victim.node.step();
  EXPECT_TRUE(stranger.closed());
  EXPECT_FALSE(more.back()->closed());
  EXPECT_EQ(victim.node.from(0).failures, 0);
  EXPECT_EQ(victim.node.endpoints.size(), 1u);
}

// Every byte of the connection's name is checked, and so is the sender.
TEST(TcpHostile, StreamOfAnotherConnectionCarriesNoPuts) {
  Node node(2, 3);
  tcp::ConnectionId id{};
  id.fill(std::byte{3});
  RawPeer messages(node, 0, id);
  ASSERT_TRUE(Pair::run_nodes({&node}, [&] { return node.endpoints.size() == 1; }));
  std::vector<std::byte> memory(10);
  const iovec target = piece(memory);
  const RemoteKey key =
      node.to(0).abilities().exposer->expose({&target, 1}, Access::kPutTarget, 1).value();
  std::vector<std::unique_ptr<RawPeer>> others;
  others.push_back(std::make_unique<RawPeer>(node, 1, id, 1));
  for (size_t i = 0; i < id.size() - 1; ++i) {
    tcp::ConnectionId other = id;
    other[i] ^= std::byte{0x10};
    others.push_back(std::make_unique<RawPeer>(node, 1, other));
  }
  tcp::ConnectionId last = id;
  last.back() ^= std::byte{1};
  const auto put = [&](RawPeer& peer) {
    tcp::HeadBytes head;
    tcp::encode_put_head(head, tcp::put_target(key, 2), 5);
    peer.write(head);
    peer.write("hello", 5);
    for (int i = 0; i < 20; ++i) node.step();
  };
  for (const auto& other : others) put(*other);
  others.clear();
  RawPeer other(node, 1, last);
  put(other);
  EXPECT_EQ(node.from(0).put_bytes[1], 0u);
  EXPECT_EQ(memory, std::vector<std::byte>(10));
  EXPECT_EQ(node.from(0).failures, 0);
  RawPeer own(node, 1, id);
  put(own);
  EXPECT_TRUE(Pair::run_nodes({&node}, [&] { return node.from(0).put_bytes[1] == 5; }));
}

// The wait for it lasts as long as a proof may take.
TEST(TcpHostile, OrphanStreamIsClosedAfterTheHandshakeTimeout) {
  Node node(1, 2);
  tcp::ConnectionId id{};
  RawPeer bulk(node, 1, id);
  for (int i = 0; i < 20; ++i) node.step();
  EXPECT_FALSE(bulk.closed());
  node.now += kHandshakeTimeoutNs / 2;
  (void)node.transport->progress();
  EXPECT_FALSE(bulk.closed());
  node.now += kHandshakeTimeoutNs / 2 + 1'000'000'000;
  (void)node.transport->progress();
  EXPECT_TRUE(bulk.closed());
}

// The proof of a bulk stream may overtake that of its connection.
TEST(TcpHostile, BulkStreamMayArriveBeforeItsConnection) {
  Node node(1, 2);
  tcp::ConnectionId id{};
  id.fill(std::byte{5});
  RawPeer bulk(node, 3, id);
  for (int i = 0; i < 100; ++i) node.step();
  RawPeer messages(node, 0, id);
  ASSERT_TRUE(Pair::run_nodes({&node}, [&] { return node.endpoints.size() == 1; }));
  std::vector<std::byte> memory(10);
  const iovec target = piece(memory);
  const RemoteKey key =
      node.to(0).abilities().exposer->expose({&target, 1}, Access::kPutTarget, 1).value();
  tcp::HeadBytes head;
  tcp::encode_put_head(head, tcp::put_target(key, 2), 5);
  bulk.write(head);
  bulk.write("hello", 5);
  ASSERT_TRUE(Pair::run_nodes({&node}, [&] { return node.from(0).put_bytes[1] == 5; }));
  EXPECT_EQ(std::memcmp(memory.data() + 2, "hello", 5), 0);
}

// One of two streams ends while the other, silent, stays open: the wait for it is bounded.
TEST(TcpHostile, HalfClosedConnectionFailsInBoundedTime) {
  Victim victim;
  RawPeer bulk(victim.node, 1, victim.id);
  for (int i = 0; i < 100; ++i) victim.node.step();
  bulk.socket.reset();
  const uint64_t start = now_ns();
  while (victim.node.from(0).failures == 0 && now_ns() - start < 60'000'000'000) {
    victim.node.step_or_sleep(kForever / 4);
  }
  EXPECT_EQ(victim.node.from(0).failures, 1);
  EXPECT_LT(now_ns() - start, 30'000'000'000u);
}

// Messages on the other streams are still delivered after one stream has ended.
TEST(TcpHostile, MessageAfterTheEndOfABulkStreamIsDelivered) {
  Victim victim;
  RawPeer bulk(victim.node, 1, victim.id);
  for (int i = 0; i < 100; ++i) victim.node.step();
  bulk.socket.reset();
  const uint64_t start = now_ns();
  while (now_ns() - start < 50'000'000) victim.node.step();
  EXPECT_EQ(victim.node.to(0).send(make_header(1), {}), Code::kPeerLost);
  tcp::HeadBytes head;
  tcp::encode_message_head(head, make_header(42), 0);
  victim.messages->write(head);
  victim.messages->socket.reset();
  ASSERT_TRUE(victim.fails());
  ASSERT_EQ(victim.node.from(0).messages.size(), 1u);
  EXPECT_EQ(victim.node.from(0).messages[0].number, 42u);
}

TEST(TcpStreamCount, StreamIsAddedIfWindowOrLossesLimitTheRate) {
  tcp::StreamCount count;
  EXPECT_FALSE(count.due(1000));
  EXPECT_TRUE(count.due(tcp::StreamCount::kReviewBytes));
  EXPECT_FALSE(count.due(1000));
  EXPECT_FALSE(count.review({.busy_us = 1000, .limited_us = 100, .round_trip_us = 5000}));
  EXPECT_TRUE(count.review({.busy_us = 2000, .limited_us = 400, .round_trip_us = 5000}));
  EXPECT_FALSE(count.review({.busy_us = 3000, .limited_us = 400, .round_trip_us = 5000}));
  EXPECT_TRUE(
      count.review({.busy_us = 4000, .limited_us = 400, .retransmits = 1, .round_trip_us = 5000}));
  EXPECT_FALSE(
      count.review({.busy_us = 5000, .limited_us = 400, .retransmits = 2, .round_trip_us = 50}));
}

}  // namespace
}  // namespace hetcomm::test
