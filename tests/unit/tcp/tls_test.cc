// tcp over TLS, in addition to the conformance suites for every transport:
//  * no part of a message or put is readable on the wire;
//  * no rank sleeps on data held inside TLS, and no such data is lost: messages and puts of any
//    size complete although only events wake the ranks;
//  * after a cancelled put or a revoked target, no memory is accessed in the middle of a frame,
//    though a record with those bytes may wait in the sender;
//  * if a third party cuts a connection, or changes one of its bytes, the connection breaks on both
//    sides and delivers nothing wrong;
//  * a rank without TLS can neither accept nor connect, and learns the reason.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/net/listening_socket.h"
#include "tests/support/certificates.h"
#include "tests/unit/tcp/fixture.h"
#include "transports/tcp/wire.h"

namespace hetcomm::test {
namespace {

using testing::HasSubstr;

const std::string& settings() {
  static const Certificates files;
  static const std::string text = files.settings();
  return text;
}

ExtentView whole(const iovec& piece) { return {{&piece, 1}, 0, piece.iov_len}; }

// A put of |data| into the other rank's |memory|.
struct Put {
  Put(Pair& pair, size_t size, uint64_t seed, uint64_t cookie)
      : data(pattern(size, seed)), memory(size), from(piece(data)), to(piece(memory)) {
    auto exposed = pair.eb().abilities().exposer->expose({&to, 1}, Access::kPutTarget, cookie);
    EXPECT_TRUE(exposed.ok());
    key = exposed.value();
    bulk.local = whole(from);
    bulk.key = key;
  }
  Put(const Put&) = delete;
  Put& operator=(const Put&) = delete;
  std::vector<std::byte> data, memory;
  iovec from, to;
  RemoteKey key;
  Bulk bulk;
};

TEST(TcpTls, ConnectionIsReportedAsProtected) {
  Pair pair(settings());
  EXPECT_THAT(pair.ea().describe(), HasSubstr("TLS"));
  EXPECT_TRUE(pair.ea().capabilities().protected_in_transit);
  Pair plain;
  EXPECT_FALSE(plain.ea().capabilities().protected_in_transit);
}

// Both ranks sleep whenever they may, and for a long time, so a missed wake-up fails the test.
TEST(TcpTls, NoRankSleepsOnPendingData) {
  constexpr uint64_t kLong = 5'000'000'000;
  for (const char* more : {"", "TCP_SOCKET_BUFFER=64K;TCP_STREAMS=2", "TCP_CHUNK=512"}) {
    Pair pair(settings() + more);
    std::mt19937_64 random(5);
    for (uint64_t i = 0; i < 30; ++i) {
      const size_t size = 1 + random() % (i % 3 == 0 ? 65'536 : 700);
      Put put(pair, 1 + random() % 300'000, i, 100 + i);
      ASSERT_EQ(pair.ea().abilities().puts->put(put.bulk), Code::kOk);
      std::vector<std::byte> message = pattern(size, i);
      const iovec part = piece(message);
      Code code = Code::kWouldBlock;
      const uint64_t start = now_ns();
      const auto done = [&] {
        if (code == Code::kWouldBlock) code = pair.ea().send(make_header(i), whole(part));
        return code == Code::kOk && pair.rb().messages.size() == 1 &&
               pair.rb().put_bytes[100 + i] == put.data.size() && pair.ra().completed.size() == 1;
      };
      // Each rank runs in turn until it would sleep; only its descriptors wake a sleeping rank.
      while (!done() && now_ns() - start < kLong) {
        for (Node* node : {&pair.a, &pair.b}) {
          for (int idle = 0; idle < 3;) idle = node->step() > 0 ? 0 : idle + 1;
          const bool may_sleep = node->transport->prepare_sleep(Sleep::kLong);
          node->transport->finish_sleep();
          if (!may_sleep) continue;
          // Everything that it can do before the next event is done.
          node->now = now_ns();
          if (node->poller.poll() == 0) {
            EXPECT_EQ(node->transport->may_sleep_on(), true);
          }
        }
      }
      ASSERT_LT(now_ns() - start, kLong);
      EXPECT_TRUE(pair.rb().messages[0].payload == message);
      EXPECT_TRUE(put.memory == put.data);
      pair.rb().messages.clear();
      pair.ra().completed.clear();
      pair.eb().abilities().exposer->revoke(put.key);
    }
  }
}

// Several frames' bytes arrive in one record, and several records in one receive. A rank that only
// the poller wakes must still get all of them.
TEST(TcpTls, ManySmallMessagesReachASleeper) {
  Pair pair(settings());
  constexpr uint64_t kCount = 3000;
  std::vector<std::byte> message = pattern(300, 1);
  const iovec part = piece(message);
  uint64_t sent = 0;
  const uint64_t start = now_ns();
  while (pair.rb().messages.size() < kCount) {
    while (sent < kCount && pair.ea().send(make_header(sent), whole(part)) == Code::kOk) ++sent;
    pair.a.step();
    pair.b.step_or_sleep(1'000'000'000);
    ASSERT_LT(now_ns() - start, 10'000'000'000u);
  }
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(pair.rb().messages[i].number, i);
    ASSERT_TRUE(pair.rb().messages[i].payload == message);
  }
}

// One turn receives a bounded amount. If the kernel holds no more, no event announces the rest
// inside TLS, so the rank must know about it.
TEST(TcpTls, NoRankSleepsOnDataLeftInTheTlsBuffer) {
  constexpr uint64_t kTurnBytes = 2u << 20;
  std::vector<std::byte> message = pattern(300, 1);
  const iovec part = piece(message);
  for (const uint64_t behind : {2u, 5u, 10u, 15u, 20u, 30u}) {
    Pair pair(settings());
    const uint64_t total = kTurnBytes / (300 + tcp::kHeadBytes) + behind;
    uint64_t sent = 0;
    uint64_t received = 0;
    const auto fill = [&] {
      pair.a.step();
      while (sent < total && pair.ea().send(make_header(sent), whole(part)) == Code::kOk) ++sent;
    };
    // The sender sends as fast as the other side receives, so that its turn lasts.
    pair.rb().message_hook = [&] {
      if (++received % 32 == 0) fill();
    };
    fill();
    const uint64_t start = now_ns();
    while (received < total) {
      pair.b.now = now_ns();
      pair.b.poller.poll();
      const bool may_sleep = pair.b.transport->prepare_sleep(Sleep::kLong);
      pair.b.transport->finish_sleep();
      if (may_sleep) {
        pair.b.poller.wait(1'000'000);
      } else {
        pair.b.transport->progress();
      }
      fill();
      ASSERT_LT(now_ns() - start, 5'000'000'000u) << received << " of " << total;
    }
  }
}

TEST(TcpTls, CancelAndRevokeStopAccessAtAnyPoint) {
  std::mt19937_64 random(9);
  Pair pair(settings() + "TCP_SOCKET_BUFFER=64K;TCP_CHUNK=200K;TCP_STREAMS=2");
  for (uint64_t i = 0; i < 40; ++i) {
    Put put(pair, 1u << 20, i, i);
    ASSERT_EQ(pair.ea().abilities().puts->put(put.bulk), Code::kOk);
    const uint64_t steps = random() % 60;
    for (uint64_t step = 0; step < steps; ++step) {
      (random() % 2 == 0 ? pair.a : pair.b).step();
    }
    const std::vector<std::byte> original = put.data;
    const bool revokes = i % 2 == 0;
    size_t completions = 2;
    if (revokes) {
      pair.eb().abilities().exposer->revoke(put.key);
      std::fill(put.memory.begin(), put.memory.end(), std::byte{0x55});
    } else if (pair.ra().completed.empty()) {
      pair.ea().abilities().puts->cancel(put.bulk);
      completions = 1;
      std::fill(put.data.begin(), put.data.end(), std::byte{0xaa});
    }
    // The connection continues, with its frames in step.
    Put next(pair, 100'000, 1000 + i, 1000 + i);
    ASSERT_EQ(pair.ea().abilities().puts->put(next.bulk), Code::kOk);
    ASSERT_TRUE(pair.run([&] {
      return pair.rb().put_bytes[1000 + i] == next.data.size() &&
             pair.ra().completed.size() == completions;
    }));
    EXPECT_TRUE(next.memory == next.data);
    pair.idle(5'000'000);
    if (revokes) {
      EXPECT_TRUE(std::all_of(put.memory.begin(), put.memory.end(),
                              [](std::byte b) { return b == std::byte{0x55}; }));
    } else {
      // The received bytes are the original ones, not the later contents of the memory.
      for (size_t at = 0; at < put.memory.size(); ++at) {
        ASSERT_TRUE(put.memory[at] == original[at] || put.memory[at] == std::byte{0}) << at;
      }
      pair.eb().abilities().exposer->revoke(put.key);
    }
    pair.ra().completed.clear();
    pair.eb().abilities().exposer->revoke(next.key);
  }
  EXPECT_EQ(pair.ra().failures + pair.rb().failures, 0);
}

// Relays the bytes between two ranks and manipulates them.
class Interceptor {
 public:
  explicit Interceptor(const std::vector<std::byte>& contact)
      : target_(tcp::decode_contact(contact).value()) {
    listener_ = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 16).value();
    ListeningHost mine = target_;
    mine.addresses = {bound_address(listener_.get()).value()};
    contact_ = tcp::encode_contact(mine);
  }
  const std::vector<std::byte>& contact() const { return contact_; }

  void step() {
    UniqueFd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (near.valid()) {
      const Address& address = target_.addresses.front();
      UniqueFd far(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(::connect(far.get(), address.get(), address.length()), 0);
      links_.emplace_back(std::move(near), std::move(far));
    }
    for (auto& [left, right] : links_) {
      pass(left.get(), right.get());
      pass(right.get(), left.get());
    }
  }
  void change_a_byte() { change_ = true; }
  void cut() { links_.clear(); }
  const std::string& seen() const { return seen_; }

 private:
  void pass(int from, int to) {
    std::array<char, 65536> bytes;
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    const auto size = static_cast<size_t>(got);
    seen_.append(bytes.data(), size);
    if (change_ && size > 60) {
      bytes[size - 20] = static_cast<char>(bytes[size - 20] ^ 4);
      change_ = false;
    }
    EXPECT_EQ(::send(to, bytes.data(), size, MSG_NOSIGNAL), got);
  }

  ListeningHost target_;
  UniqueFd listener_;
  std::vector<std::byte> contact_;
  std::vector<std::pair<UniqueFd, UniqueFd>> links_;
  std::string seen_;
  bool change_ = false;
};

// Two ranks with an interceptor between them.
struct Intercepted {
  explicit Intercepted(const std::string& more)
      : a(0, 2, "INTERFACE=lo;FAMILY=ipv4;" + more),
        b(1, 2, "INTERFACE=lo;FAMILY=ipv4;" + more),
        between(b.transport->contact()) {
    a.transport->connect({.rank = 1}, between.contact());
    if (!run([&] { return !a.endpoints.empty() && !b.endpoints.empty(); })) std::abort();
  }
  template <typename Done>
  bool run(Done&& done) {
    const uint64_t deadline = now_ns() + 10'000'000'000;
    while (!done()) {
      a.step();
      between.step();
      b.step();
      if (now_ns() > deadline) return false;
    }
    return true;
  }
  Node a, b;
  Interceptor between;
};

TEST(TcpTls, WireContainsNoPlaintext) {
  constexpr std::string_view kText = "attack at dawn, attack at dawn";
  for (const bool protected_by_tls : {false, true}) {
    Intercepted job(protected_by_tls ? settings() : "");
    std::vector<std::byte> message(kText.size());
    std::memcpy(message.data(), kText.data(), kText.size());
    const iovec part = piece(message);
    ASSERT_EQ(job.a.to(1).send(make_header(1), whole(part)), Code::kOk);
    ASSERT_TRUE(job.run([&] { return job.b.from(0).messages.size() == 1; }));
    EXPECT_TRUE(job.b.from(0).messages[0].payload == message);
    EXPECT_EQ(job.between.seen().find(kText) == std::string::npos, protected_by_tls);
  }
}

TEST(TcpTls, ChangedByteBreaksTheConnectionAndIsNotDelivered) {
  Intercepted job(settings());
  std::vector<std::byte> message = pattern(3000, 1);
  const iovec part = piece(message);
  ASSERT_EQ(job.a.to(1).send(make_header(1), whole(part)), Code::kOk);
  ASSERT_TRUE(job.run([&] { return job.b.from(0).messages.size() == 1; }));
  job.between.change_a_byte();
  ASSERT_EQ(job.a.to(1).send(make_header(2), whole(part)), Code::kOk);
  ASSERT_TRUE(job.run([&] { return job.b.from(0).failures == 1 && job.a.from(1).failures == 1; }));
  EXPECT_EQ(job.b.from(0).messages.size(), 1u);
  EXPECT_THAT(std::string(job.b.from(0).failure.text()), HasSubstr("TLS"));
}

TEST(TcpTls, CutBreaksTheConnectionOnBothSides) {
  Intercepted job(settings());
  job.between.cut();
  ASSERT_TRUE(job.run([&] { return job.b.from(0).failures == 1 && job.a.from(1).failures == 1; }));
  for (const Status& why : {job.a.from(1).failure, job.b.from(0).failure}) {
    EXPECT_EQ(why.code(), Code::kPeerLost);
    EXPECT_THAT(std::string(why.text()), HasSubstr("cut off"));
  }
}

TEST(TcpTls, RankWithoutTlsCannotConnectToOneWithTls) {
  for (const bool first : {false, true}) {
    const std::string base = "INTERFACE=lo;FAMILY=ipv4;";
    Node a(0, 2, base + (first ? settings() : ""));
    Node b(1, 2, base + (first ? "" : settings()));
    a.transport->connect({.rank = 1}, b.transport->contact());
    ASSERT_TRUE(Pair::run_nodes(
        {&a, &b}, [&] { return a.outcomes == 1; }, 5'000'000'000));
    EXPECT_TRUE(a.endpoints.empty() && b.endpoints.empty());
    EXPECT_EQ(a.connect_error.code(), Code::kPermissionDenied);
    EXPECT_THAT(std::string(a.connect_error.text()), HasSubstr("HETCOMM_TLS"));
  }
}

}  // namespace
}  // namespace hetcomm::test
