// The tcp transport between well-behaved ranks:
//   - connections are established, once each, or the reason is reported; strangers and wrong ranks
//     get none;
//   - messages of every size arrive complete and in order, even if the peer does not read for a
//     long time;
//   - puts land in the right place, from and to memory in any pieces, over one and several streams;
//   - many connections coexist; all of this also holds if both sides sleep whenever they may.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/tcp/fixture.h"
#include "transports/tcp/wire.h"

namespace hetcomm::test {
namespace {

using ::testing::HasSubstr;

Code send_bytes(Endpoint& endpoint, uint64_t number, std::vector<std::byte>& bytes) {
  const iovec whole = piece(bytes);
  return endpoint.send(make_header(number), {{&whole, 1}, 0, bytes.size()});
}

// Cuts |bytes| into |count| pieces of uneven size, some of them empty.
std::vector<iovec> cut(std::vector<std::byte>& bytes, size_t count, std::mt19937_64& random) {
  std::vector<size_t> at = {0, bytes.size()};
  while (at.size() < count + 1) at.push_back(random() % (bytes.size() + 1));
  std::sort(at.begin(), at.end());
  std::vector<iovec> pieces;
  for (size_t i = 0; i + 1 < at.size(); ++i) {
    pieces.push_back({bytes.data() + at[i], at[i + 1] - at[i]});
  }
  return pieces;
}

TEST(TcpProbe, ProbeReportsTheInterfacesItFound) {
  Log log;
  const Status status = make_tcp_factory()->probe(make_config("INTERFACE=lo;FAMILY=ipv4", log));
  EXPECT_TRUE(status.ok());
  EXPECT_THAT(std::string(status.text()), HasSubstr("lo 127.0.0.1"));
  EXPECT_FALSE(make_tcp_factory()->probe(make_config("INTERFACE=none0", log)).ok());
}

TEST(TcpDescriptor, TruncatedContactIsRefusedAndRandomBytesDoNotCrash) {
  Node node(0, 2);
  const std::vector<std::byte> good = node.transport->contact();
  EXPECT_LE(good.size(), 1024u);
  EXPECT_TRUE(node.transport->reach(good).ok());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(node.transport->reach({good.data(), size}).ok()) << size;
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bad = good;
    bad[random() % bad.size()] = static_cast<std::byte>(random());
    if (i % 2 == 0) bad.resize(random() % 200, static_cast<std::byte>(random()));
    (void)node.transport->reach(bad).ok();
  }
}

TEST(TcpDescriptor, LoopbackOfAnotherHostIsUnreachable) {
  Node node(0, 2);
  Result<ListeningHost> contact = tcp::decode_contact(node.transport->contact());
  ASSERT_TRUE(contact.ok());
  contact->id[0] ^= std::byte{1};
  const Status status = node.transport->reach(tcp::encode_contact(*contact));
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(std::string(status.text()), HasSubstr("loopback of another host"));
  contact->addresses.push_back(Address::parse_numeric("192.0.2.77", 99).value());
  EXPECT_TRUE(node.transport->reach(tcp::encode_contact(*contact)).ok());
}

TEST(TcpDescriptor, PeerWithoutACommonFamilyIsUnreachable) {
  Node four(0, 2, "INTERFACE=lo;FAMILY=ipv4");
  Node six(1, 2, "INTERFACE=lo;FAMILY=ipv6");
  const Status status = four.transport->reach(six.transport->contact());
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(std::string(status.text()), HasSubstr("family not in use"));
}

TEST(TcpConnect, ConnectsWithEveryInterfaceAndFamilySetting) {
  for (const char* settings : {"INTERFACE=lo;FAMILY=ipv4", "INTERFACE=lo;FAMILY=ipv6",
                               "INTERFACE=lo", "FAMILY=any", "FAMILY=ipv4"}) {
    Pair pair("", settings);
    std::vector<std::byte> bytes = pattern(100, 1);
    EXPECT_EQ(send_bytes(pair.ea(), 1, bytes), Code::kOk);
    EXPECT_TRUE(pair.run([&] { return pair.rb().messages.size() == 1; })) << settings;
    EXPECT_EQ(pair.a.outcomes, 1);
  }
}

TEST(TcpConnect, FailureIsReportedAsynchronouslyAndOnce) {
  Node node(0, 2);
  std::vector<std::byte> gone;
  {
    Node other(1, 2);
    gone = other.transport->contact();
  }
  node.transport->connect({.rank = 1}, gone);
  EXPECT_EQ(node.outcomes, 0);
  EXPECT_TRUE(Pair::run_nodes({&node}, [&] { return node.outcomes == 1; }));
  EXPECT_EQ(node.connect_error.code(), Code::kPeerLost);
  EXPECT_THAT(std::string(node.connect_error.text()), HasSubstr("127.0.0.1"));

  node.transport->connect({.rank = 1}, pattern(10, 1));
  EXPECT_EQ(node.outcomes, 1);
  EXPECT_LE(node.transport->next_timer_ns(), now_ns());
  EXPECT_TRUE(Pair::run_nodes({&node}, [&] { return node.outcomes == 2; }));
  EXPECT_EQ(node.connect_error.code(), Code::kInvalidArgument);
}

TEST(TcpConnect, CancelledAttemptReportsNothing) {
  Node a(0, 2);
  Node b(1, 2);
  a.transport->connect({.rank = 1}, b.transport->contact());
  a.transport->cancel_connect({.rank = 1});
  for (int i = 0; i < 1000; ++i) {
    a.step();
    b.step();
  }
  EXPECT_EQ(a.outcomes, 0);
}

TEST(TcpConnect, WrongSecretAndWrongDirectionAreRefused) {
  Credentials wrong = make_credentials();
  wrong.secret = random_secret().value();
  Node a(0, 2, "INTERFACE=lo;FAMILY=ipv4", wrong);
  Node b(1, 2);
  b.log.set_sink([](void*, int32_t, const char*) {}, nullptr);
  a.transport->connect({.rank = 1}, b.transport->contact());
  EXPECT_TRUE(Pair::run_nodes({&a, &b}, [&] { return a.outcomes == 1; }));
  EXPECT_EQ(a.connect_error.code(), Code::kPermissionDenied);
  EXPECT_TRUE(b.endpoints.empty());

  // The higher rank must not connect: its connection is closed immediately.
  Node low(0, 2);
  Node high(1, 2);
  high.transport->connect({.rank = 0}, low.transport->contact());
  EXPECT_TRUE(Pair::run_nodes({&low, &high}, [&] {
    return high.outcomes == 1 && (!high.connect_error.ok() || high.from(0).failures == 1);
  }));
  EXPECT_TRUE(low.endpoints.empty());
}

TEST(TcpConnect, RefusedEndpointIsClosedOnTheOtherSide) {
  Node a(0, 2);
  Node b(1, 2);
  b.accepting = false;
  a.transport->connect({.rank = 1}, b.transport->contact());
  EXPECT_TRUE(
      Pair::run_nodes({&a, &b}, [&] { return !a.endpoints.empty() && a.from(1).failures == 1; }));
  EXPECT_THAT(std::string(a.from(1).failure.text()), HasSubstr("connection closed by peer"));
  EXPECT_THAT(std::string(a.from(1).failure.text()), HasSubstr("tcp 127.0.0.1:"));
}

TEST(TcpMessages, MessagesOfManySizesArriveInOrder) {
  Pair pair;
  std::vector<size_t> sizes = {0, 1, 7, 8, 511, 512, 513, 4096, 65535, 65536};
  std::mt19937_64 random(2);
  while (sizes.size() < 400) sizes.push_back(random() % 65537);
  size_t next[2] = {0, 0};
  EXPECT_TRUE(pair.run([&] {
    for (int side = 0; side < 2; ++side) {
      size_t& at = next[side];
      while (at < sizes.size()) {
        std::vector<std::byte> bytes = pattern(sizes[at], at);
        const Code code = send_bytes(side == 0 ? pair.ea() : pair.eb(), at, bytes);
        if (code == Code::kWouldBlock) break;
        EXPECT_EQ(code, Code::kOk);
        ++at;
      }
    }
    return pair.ra().messages.size() == sizes.size() && pair.rb().messages.size() == sizes.size();
  }));
  for (Recorder* recorder : {&pair.ra(), &pair.rb()}) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_EQ(recorder->messages[i].number, i);
      ASSERT_EQ(recorder->messages[i].payload, pattern(sizes[i], i));
    }
  }
}

TEST(TcpMessages, PayloadInManyPiecesArrivesIntact) {
  Pair pair;
  std::mt19937_64 random(3);
  std::vector<std::byte> bytes = pattern(60000, 5);
  for (size_t count : {1u, 2u, 63u, 64u, 65u, 1000u}) {
    for (const size_t length : {300u, 30000u}) {
      const std::vector<iovec> pieces = cut(bytes, count, random);
      const size_t offset = random() % 20000;
      pair.rb().messages.clear();
      ASSERT_EQ(pair.ea().send(make_header(count), {pieces, offset, length}), Code::kOk);
      ASSERT_TRUE(pair.run([&] { return pair.rb().messages.size() == 1; }));
      const std::vector<std::byte> expected(
          bytes.begin() + static_cast<ptrdiff_t>(offset),
          bytes.begin() + static_cast<ptrdiff_t>(offset + length));
      ASSERT_EQ(pair.rb().messages[0].payload, expected);
    }
  }
  EXPECT_EQ(pair.ea().send(make_header(0), {{}, 0, 65537}), Code::kInvalidArgument);
}

TEST(TcpMessages, MessagesToAPeerThatDoesNotReadArriveLater) {
  Pair pair;
  std::vector<std::byte> bytes = pattern(50000, 9);
  uint64_t sent = 0;
  while (send_bytes(pair.ea(), sent, bytes) == Code::kOk) ASSERT_LT(++sent, 100000u);
  EXPECT_FALSE(pair.ea().flushed());
  EXPECT_EQ(send_bytes(pair.ea(), sent, bytes), Code::kWouldBlock);
  // The sender polls, then sleeps: there is nothing to do and nothing to report.
  for (int i = 0; i < 200; ++i) pair.a.step();
  EXPECT_TRUE(pair.a.transport->prepare_sleep(Sleep::kLong));
  pair.a.transport->finish_sleep();
  EXPECT_EQ(pair.ra().writable, 0);
  ASSERT_TRUE(pair.run([&] { return pair.rb().messages.size() == sent; }));
  ASSERT_TRUE(pair.run([&] { return pair.ra().writable == 1; }));
  EXPECT_TRUE(pair.ea().flushed());
  pair.idle();
  EXPECT_EQ(pair.ra().writable, 1);
  for (uint64_t i = 0; i < sent; ++i) {
    ASSERT_EQ(pair.rb().messages[i].number, i);
    ASSERT_EQ(pair.rb().messages[i].payload, bytes);
  }
}

TEST(TcpMessages, SendInsideAnUpcallArrives) {
  Pair pair;
  std::vector<std::byte> bytes = pattern(64, 1);
  // The upcalls alone drive a thousand round trips.
  pair.rb().message_hook = [&] {
    EXPECT_EQ(send_bytes(pair.eb(), pair.rb().messages.size(), bytes), Code::kOk);
  };
  pair.ra().message_hook = [&] {
    if (pair.ra().messages.size() < 1000) {
      EXPECT_EQ(send_bytes(pair.ea(), 0, bytes), Code::kOk);
    }
  };
  EXPECT_EQ(send_bytes(pair.ea(), 0, bytes), Code::kOk);
  EXPECT_TRUE(pair.run([&] { return pair.ra().messages.size() == 1000; }));
}

// Puts |bytes|, cut in |from_pieces|, to memory cut in |to_pieces|, both at odd offsets.
void put_and_check(Pair& pair, bool from_a, size_t size, size_t from_pieces, size_t to_pieces,
                   uint64_t seed) {
  std::mt19937_64 random(seed);
  Endpoint& source = from_a ? pair.ea() : pair.eb();
  Endpoint& target = from_a ? pair.eb() : pair.ea();
  Recorder& source_log = from_a ? pair.ra() : pair.rb();
  Recorder& target_log = from_a ? pair.rb() : pair.ra();
  const size_t local_offset = random() % 100;
  const size_t remote_offset = random() % 100;
  std::vector<std::byte> data = pattern(size + local_offset + 50, seed);
  std::vector<std::byte> memory(size + remote_offset + 50, std::byte{0xee});
  const std::vector<iovec> from = cut(data, from_pieces, random);
  const std::vector<iovec> to = cut(memory, to_pieces, random);
  Result<RemoteKey> key = target.abilities().exposer->expose(to, Access::kPutTarget, seed);
  ASSERT_TRUE(key.ok());
  Bulk bulk{.local = {from, local_offset, size}, .key = *key, .remote_offset = remote_offset};
  ASSERT_EQ(source.abilities().puts->put(bulk), Code::kOk);
  EXPECT_TRUE(source_log.completed.empty());
  ASSERT_TRUE(pair.run([&] {
    return source_log.completed.size() == 1 && target_log.put_bytes[seed] == size;
  })) << size;
  EXPECT_EQ(source_log.completed[0], &bulk);
  source_log.completed.clear();
  target.abilities().exposer->revoke(*key);
  std::vector<std::byte> expected(memory.size(), std::byte{0xee});
  std::copy_n(data.begin() + static_cast<ptrdiff_t>(local_offset), size,
              expected.begin() + static_cast<ptrdiff_t>(remote_offset));
  ASSERT_EQ(memory, expected);
}

void put_everything(const std::string& settings, size_t largest) {
  Pair pair(settings);
  uint64_t seed = 1;
  for (const size_t size :
       {size_t{1}, size_t{39}, size_t{40}, size_t{41}, size_t{4096}, size_t{100000}, largest}) {
    for (const size_t pieces : {1u, 2u, 7u, 100u, 3000u}) {
      put_and_check(pair, seed % 2 == 0, size, pieces, 1, seed);
      ++seed;
      put_and_check(pair, seed % 2 == 0, size, 3, pieces, seed);
      ++seed;
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(TcpPut, PutsInRandomPiecesArrive) { put_everything("", 5u << 20); }
TEST(TcpPut, PutsThroughTinyBuffersArrive) {
  put_everything("TCP_SOCKET_BUFFER=16K;TCP_CHUNK=3K", 300000);
}
TEST(TcpPut, PutsOverFourStreamsArrive) { put_everything("TCP_STREAMS=4;TCP_CHUNK=10K", 5u << 20); }
TEST(TcpPut, PutsOverFourStreamsWithTinyBuffersArrive) {
  put_everything("TCP_STREAMS=4;TCP_SOCKET_BUFFER=16K;TCP_CHUNK=1000", 300000);
}

TEST(TcpPut, EmptyPutCompletes) {
  Pair pair;
  Bulk bulk;
  ASSERT_EQ(pair.ea().abilities().puts->put(bulk), Code::kOk);
  EXPECT_TRUE(pair.run([&] { return pair.ra().completed.size() == 1; }));
}

TEST(TcpPut, GetIsNotOffered) {
  Pair pair;
  EXPECT_FALSE(pair.ea().capabilities().get);
  EXPECT_EQ(pair.ea().abilities().gets, nullptr);
  EXPECT_EQ(pair.ea().abilities().exposer->expose({}, Access::kGetSource, 0).status().code(),
            Code::kUnsupported);
}

TEST(TcpPut, PutsAndMessagesMixInBothDirections) {
  for (const char* settings : {"TCP_STREAMS=1", "TCP_STREAMS=3;TCP_CHUNK=7K"}) {
    Pair pair(settings);
    constexpr size_t kBulks = 200;
    constexpr size_t kSize = 70001;
    Recorder* log[2] = {&pair.ra(), &pair.rb()};
    Endpoint* end[2] = {&pair.ea(), &pair.eb()};
    std::vector<std::byte> data[2] = {pattern(kSize * kBulks, 1), pattern(kSize * kBulks, 2)};
    std::vector<std::byte> memory[2];
    std::vector<Bulk> bulks[2];
    iovec local[2];
    for (size_t side : {0u, 1u}) {
      memory[side].resize(kSize * kBulks);
      local[side] = piece(data[side]);
    }
    for (size_t side : {0u, 1u}) {
      const iovec target = piece(memory[1 - side]);
      Result<RemoteKey> key =
          end[1 - side]->abilities().exposer->expose({&target, 1}, Access::kPutTarget, 1);
      ASSERT_TRUE(key.ok());
      bulks[side].resize(kBulks);
      for (size_t i = 0; i < kBulks; ++i) {
        Bulk& bulk = bulks[side][i];
        bulk.local = {{&local[side], 1}, i * kSize, kSize};
        bulk.key = *key;
        bulk.remote_offset = i * kSize;
        bulk.high_priority = i % 5 == 0;
        ASSERT_EQ(end[side]->abilities().puts->put(bulk), Code::kOk);
      }
    }
    std::vector<std::byte> bytes = pattern(1000, 3);
    size_t sent = 0;
    ASSERT_TRUE(pair.run([&] {
      if (sent < 500 && send_bytes(pair.ea(), sent, bytes) == Code::kOk) ++sent;
      return log[0]->completed.size() == kBulks && log[1]->completed.size() == kBulks &&
             log[0]->put_bytes[1] == kSize * kBulks && log[1]->put_bytes[1] == kSize * kBulks &&
             log[1]->messages.size() == 500;
    }));
    EXPECT_EQ(memory[0], data[1]);
    EXPECT_EQ(memory[1], data[0]);
    EXPECT_TRUE(pair.ea().flushed());
  }
}

TEST(TcpPut, HighPriorityPutOvertakesALargeOne) {
  Pair pair("TCP_SOCKET_BUFFER=64K;TCP_CHUNK=16K");
  std::vector<std::byte> data = pattern(32u << 20, 1);
  std::vector<std::byte> memory(data.size());
  const iovec local = piece(data);
  const iovec target = piece(memory);
  Result<RemoteKey> key =
      pair.eb().abilities().exposer->expose({&target, 1}, Access::kPutTarget, 1);
  ASSERT_TRUE(key.ok());
  Bulk big{.local = {{&local, 1}, 0, data.size()}, .key = *key};
  Bulk small{.local = {{&local, 1}, 0, 1000}, .key = *key, .high_priority = true};
  ASSERT_EQ(pair.ea().abilities().puts->put(big), Code::kOk);
  ASSERT_TRUE(pair.run([&] { return pair.rb().put_bytes[1] > 0; }));
  ASSERT_EQ(pair.ea().abilities().puts->put(small), Code::kOk);
  ASSERT_TRUE(pair.run([&] { return !pair.ra().completed.empty(); }));
  EXPECT_EQ(pair.ra().completed[0], &small);
  ASSERT_TRUE(pair.run([&] { return pair.ra().completed.size() == 2; }));
}

// No descriptors are left for bulk streams, so puts use the message stream.
TEST(TcpPut, PutsUseTheMessageStreamIfDescriptorsRunOut) {
  Pair pair;
  pair.a.log.set_level(LogLevel::kError);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (uint64_t seed = 1; seed < 7; ++seed) {
    put_and_check(pair, seed % 2 == 0, 400000, 10, 10, seed);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(pair.ea().describe(), HasSubstr("over the message stream"));
  EXPECT_THAT(pair.eb().describe(), HasSubstr("over the message stream"));

  // Puts that are always pending do not starve messages.
  std::vector<std::byte> data = pattern(32u << 20, 1);
  std::vector<std::byte> memory(data.size());
  const iovec local = piece(data);
  const iovec target = piece(memory);
  Result<RemoteKey> key =
      pair.eb().abilities().exposer->expose({&target, 1}, Access::kPutTarget, 99);
  ASSERT_TRUE(key.ok());
  Bulk bulk{.local = {{&local, 1}, 0, data.size()}, .key = *key};
  ASSERT_EQ(pair.ea().abilities().puts->put(bulk), Code::kOk);
  std::vector<std::byte> bytes = pattern(1000, 3);
  uint64_t sent = 0;
  ASSERT_TRUE(pair.run([&] {
    if (sent < 4 && send_bytes(pair.ea(), sent, bytes) == Code::kOk) ++sent;
    return pair.rb().messages.size() == 4;
  }));
  EXPECT_LT(pair.rb().put_bytes[99], data.size());
  ASSERT_TRUE(pair.run([&] { return pair.rb().put_bytes[99] == data.size(); }));
  EXPECT_EQ(memory, data);
}

TEST(TcpMany, TwoHundredConnectionsCoexist) {
  constexpr int kPeers = 200;
  constexpr int kHub = 200;
  Node hub(kHub, kPeers + 1);
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < kPeers; ++i) {
    nodes.push_back(std::make_unique<Node>(i, kPeers + 1));
    nodes.back()->transport->connect({.rank = kHub}, hub.transport->contact());
  }
  const auto step_all = [&](auto&& done) {
    const uint64_t deadline = now_ns() + 30'000'000'000;
    while (!done()) {
      hub.step();
      for (auto& node : nodes) node->step();
      if (now_ns() > deadline) return false;
    }
    return true;
  };
  ASSERT_TRUE(step_all([&] { return hub.endpoints.size() == kPeers; }));
  ASSERT_TRUE(step_all([&] {
    return std::all_of(nodes.begin(), nodes.end(), [](auto& n) { return n->outcomes == 1; });
  }));
  // Each peer sends to the hub, which answers from its upcall.
  for (auto& [peer, recorder] : hub.recorders) {
    recorder->message_hook = [&hub, rank = peer] {
      std::vector<std::byte> bytes = pattern(10, 1);
      EXPECT_EQ(send_bytes(hub.to(rank), 1, bytes), Code::kOk);
    };
  }
  for (int round = 0; round < 5; ++round) {
    for (auto& node : nodes) {
      std::vector<std::byte> bytes = pattern(500, 1);
      ASSERT_EQ(send_bytes(node->to(kHub), 0, bytes), Code::kOk);
    }
    ASSERT_TRUE(step_all([&] {
      return std::all_of(nodes.begin(), nodes.end(), [&](auto& n) {
        return n->from(kHub).messages.size() == static_cast<size_t>(round) + 1;
      });
    }));
  }
  // An upcall of one peer destroys all others, during any iteration of the hub.
  hub.from(7).message_hook = [&] {
    for (int i = 0; i < kPeers; ++i) {
      if (i != 7) hub.endpoints.erase(i);
    }
  };
  for (auto& node : nodes) {
    std::vector<std::byte> bytes = pattern(500, 1);
    ASSERT_EQ(send_bytes(node->to(kHub), 0, bytes), Code::kOk);
  }
  ASSERT_TRUE(step_all([&] { return hub.endpoints.size() == 1; }));
  ASSERT_TRUE(step_all([&] {
    int failed = 0;
    for (auto& node : nodes) failed += node->from(kHub).failures;
    return failed == kPeers - 1;
  }));
}

// Two threads sleep whenever the transport lets them: a lost wake-up would show as a hang.
TEST(TcpSleep, SleepingThreadsMissNoWakeUp) {
  Node a(0, 2, "INTERFACE=lo;FAMILY=ipv4;TCP_SOCKET_BUFFER=64K");
  Node b(1, 2, "INTERFACE=lo;FAMILY=ipv4;TCP_SOCKET_BUFFER=64K");
  const std::vector<std::byte> contact = b.transport->contact();
  constexpr size_t kMessages = 3000;
  constexpr size_t kSize = 16u << 20;
  std::atomic<int> finished{0};
  std::vector<std::byte> memory[2] = {std::vector<std::byte>(kSize), std::vector<std::byte>(kSize)};
  const auto work = [&](Node& node, size_t side) {
    const int peer = node.environment.rank == 0 ? 1 : 0;
    if (peer == 1) node.transport->connect({.rank = 1}, contact);
    while (node.endpoints.empty()) node.step_or_sleep(kForever / 4);
    Endpoint& endpoint = node.to(peer);
    Recorder& recorder = node.from(peer);
    const iovec target = piece(memory[side]);
    Result<RemoteKey> key =
        endpoint.abilities().exposer->expose({&target, 1}, Access::kPutTarget, 5);
    // The first message carries the key; its payload returns as the data to put.
    std::vector<std::byte> first(sizeof(RemoteKey));
    std::memcpy(first.data(), &*key, sizeof(RemoteKey));
    if (send_bytes(endpoint, 0, first) != Code::kOk) std::abort();
    while (recorder.messages.empty()) node.step_or_sleep(kForever / 4);
    std::vector<std::byte> data = pattern(kSize, side);
    const iovec local = piece(data);
    Bulk bulk{.local = {{&local, 1}, 0, kSize}};
    std::memcpy(&bulk.key, recorder.messages[0].payload.data(), sizeof(RemoteKey));
    if (endpoint.abilities().puts->put(bulk) != Code::kOk) std::abort();
    size_t sent = 1;
    while (recorder.messages.size() < kMessages || recorder.completed.empty() ||
           recorder.put_bytes[5] < kSize || sent < kMessages || !endpoint.flushed()) {
      // The ranks run in lock step, so that each side often only waits.
      std::vector<std::byte> bytes = pattern(sent % 3000, sent);
      if (sent < kMessages && sent <= recorder.messages.size() &&
          send_bytes(endpoint, sent, bytes) == Code::kOk) {
        ++sent;
        continue;
      }
      node.step_or_sleep(kForever / 4);
    }
    ++finished;
    while (finished < 2 && recorder.failures == 0) node.step_or_sleep();
  };
  std::thread other([&] { work(b, 1); });
  work(a, 0);
  other.join();
  EXPECT_EQ(memory[0], pattern(kSize, 1));
  EXPECT_EQ(memory[1], pattern(kSize, 0));
  for (size_t i = 1; i < kMessages; ++i) {
    ASSERT_EQ(b.from(0).messages[i].number, i);
    ASSERT_EQ(b.from(0).messages[i].payload, pattern(i % 3000, i));
  }
}

}  // namespace
}  // namespace hetcomm::test
