// Poller, Acceptor and Connector:
//  * no event reaches a removed watcher, even within the same dispatch;
//  * proved connections succeed over TCP (IPv4, IPv6) and local sockets, despite port scans,
//    garbage, silence, and more than kMaxPending strangers;
//  * without descriptors the acceptor neither spins nor fails, and resumes afterwards;
//  * a connector reports exactly once, tries every candidate, and names each candidate with its
//    error;
//  * both may be destroyed inside their own upcalls;
//  * a held acceptor judges no connection before it is opened, and then uses the settings of that
//    open call;
//  * a connector reports which other process answered at the expected address.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/capi/variables.h"
#include "src/net/acceptor.h"
#include "src/net/connector.h"
#include "src/net/handshake.h"
#include "src/net/key.h"
#include "src/net/listening_socket.h"
#include "src/net/socket_options.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

using testing::HasSubstr;
constexpr uint64_t kSecond = 1'000'000'000;

Secret secret_of(std::string_view text) { return secret_from(std::as_bytes(std::span(text))); }

class FunctionWatcher final : public Watcher {
 public:
  explicit FunctionWatcher(std::function<void()> function) : function_(std::move(function)) {}
  void on_events(uint32_t /*events*/) override { function_(); }

 private:
  std::function<void()> function_;
};

TEST(PollerTest, RemoveInsideDispatchDropsPendingEvents) {
  Poller poller = Poller::create().value();
  int a[2], b[2];
  ASSERT_EQ(pipe2(a, O_CLOEXEC | O_NONBLOCK), 0);
  ASSERT_EQ(pipe2(b, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd owners[] = {UniqueFd(a[0]), UniqueFd(a[1]), UniqueFd(b[0]), UniqueFd(b[1])};
  int calls = 0;
  std::unique_ptr<FunctionWatcher> first, second;
  // The first upcall destroys both.
  const auto destroy_both = [&] {
    ++calls;
    poller.remove(a[0], *first);
    poller.remove(b[0], *second);
  };
  first = std::make_unique<FunctionWatcher>(destroy_both);
  second = std::make_unique<FunctionWatcher>(destroy_both);
  ASSERT_TRUE(poller.add(a[0], EPOLLIN, *first).ok());
  ASSERT_TRUE(poller.add(b[0], EPOLLIN, *second).ok());
  ASSERT_EQ(write(a[1], "x", 1), 1);
  ASSERT_EQ(write(b[1], "x", 1), 1);
  EXPECT_EQ(poller.poll(), 1);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(poller.poll(), 0);
}

TEST(PollerTest, WaitEndsAtItsTimeoutOrOnAnEvent) {
  Poller poller = Poller::create().value();
  const uint64_t start = now_ns();
  poller.wait(20'000'000);
  EXPECT_GE(now_ns() - start, 15'000'000u);
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd owners[] = {UniqueFd(fds[0]), UniqueFd(fds[1])};
  FunctionWatcher watcher([] {});
  ASSERT_TRUE(poller.add(fds[0], EPOLLIN, watcher).ok());
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  poller.wait(kForever);
  EXPECT_EQ(poller.poll(), 1);
}

class SocketTest : public testing::Test, public AcceptHandler, public ConnectHandler {
 protected:
  SocketTest() { log_.set_sink(collect, this); }

  void listen(const Address& address, std::string_view secret = "s", bool held = false) {
    Acceptor::Options options;
    options.held = held;
    options.credentials = {.identity = identity_of("job", "world", 0), .secret = secret_of(secret)};
    options.rank = 1;
    auto acceptor = Acceptor::create(poller_, log_, address, options, *this);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status().text();
    acceptor_ = std::move(acceptor).value();
  }
  void listen_on_loopback() { listen(Address::parse_numeric("127.0.0.1", 0).value()); }

  void connect(std::vector<Address> candidates, uint64_t timeout = 5 * kSecond,
               std::string_view secret = "s") {
    Hello hello;
    hello.identity = identity_of("job", "world", 0);
    hello.source = 4;
    hello.destination = 1;
    connectors_.push_back(Connector::create(poller_, std::move(candidates), secret_of(secret),
                                            hello, now_ns() + timeout, *this));
  }

  bool run_until(const std::function<bool()>& condition, uint64_t timeout = 10 * kSecond) {
    const uint64_t deadline = now_ns() + timeout;
    while (!condition()) {
      const uint64_t now = now_ns();
      if (now > deadline) return false;
      uint64_t timer = now + 20'000'000;
      if (acceptor_) {
        acceptor_->expire(now);
        if (acceptor_) timer = std::min(timer, acceptor_->next_timer_ns());
      }
      for (auto& connector : connectors_) {
        if (connector) connector->expire(now);
        if (connector) timer = std::min(timer, connector->next_timer_ns());
      }
      if (timer > now && !condition()) poller_.wait(timer - now);
      poller_.poll();
      ++turns_;
    }
    return true;
  }

  void on_accept(StreamSocket socket, const Hello& peer) override {
    EXPECT_EQ(peer.source, 4);
    accepted_.push_back(std::move(socket));
    if (destroy_in_upcall_) acceptor_.reset();
  }
  void on_connect(Result<StreamSocket> socket) override {
    ++reports_;
    if (socket.ok()) {
      connected_.push_back(std::move(socket).value());
    } else {
      failure_ = socket.status();
    }
    if (destroy_in_upcall_) connectors_.back().reset();
  }

  static void collect(void* self, int32_t /*level*/, const char* line) {
    static_cast<SocketTest*>(self)->lines_.emplace_back(line);
  }

  UniqueFd raw_connection() {
    UniqueFd fd(::socket(acceptor_->address().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), acceptor_->address().get(), acceptor_->address().length()), 0);
    return fd;
  }

  Poller poller_ = Poller::create().value();
  Log log_;
  std::vector<std::string> lines_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<std::unique_ptr<Connector>> connectors_;
  std::vector<StreamSocket> accepted_;
  std::vector<StreamSocket> connected_;
  Status failure_;
  int reports_ = 0;
  int turns_ = 0;
  bool destroy_in_upcall_ = false;
};

TEST_F(SocketTest, ConnectsOverEveryFamily) {
  const Address addresses[] = {Address::parse_numeric("127.0.0.1", 0).value(),
                               Address::parse_numeric("::1", 0).value(),
                               Address::local("hetcomm-test-" + std::to_string(getpid()))};
  size_t expected = 0;
  for (const Address& address : addresses) {
    listen(address);
    connect({acceptor_->address()});
    ++expected;
    ASSERT_TRUE(run_until([&] { return accepted_.size() == expected && reports_ >= 1; }))
        << address.to_string() << ": " << failure_.text();
    ASSERT_TRUE(run_until([&] { return connected_.size() == expected; })) << failure_.text();
    ASSERT_EQ(::send(connected_.back().get(), "hi", 2, 0), 2);
    pollfd ready{.fd = accepted_.back().get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, 5000), 1);
    EXPECT_TRUE(set_keepalive(accepted_.back().get(), 10 * kSecond).ok());
    EXPECT_TRUE(set_keepalive(accepted_.back().get(), 1).ok());
    EXPECT_TRUE(set_keepalive(accepted_.back().get(), kForever).ok());
  }
  EXPECT_EQ(reports_, 3);
}

Credentials in_mesh(std::byte mesh, std::vector<uint64_t> incarnations) {
  Credentials credentials{.identity = identity_of("job", "world", 0), .secret = secret_of("s")};
  credentials.identity.instance.fill(mesh);
  credentials.incarnations = std::make_shared<const std::vector<uint64_t>>(std::move(incarnations));
  return credentials;
}

TEST_F(SocketTest, HeldAcceptorUsesTheCredentialsGivenToOpen) {
  listen(Address::parse_numeric("127.0.0.1", 0).value(), "s", true);
  const Credentials mesh = in_mesh(std::byte{1}, {0, 50, 0, 0, 80});
  connectors_.push_back(Connector::create(poller_, {acceptor_->address()}, secret_of("s"),
                                          make_hello(mesh, Role::kTcp, 4, 1),
                                          now_ns() + 20 * kSecond, *this));
  EXPECT_FALSE(run_until([&] { return reports_ > 0 || !accepted_.empty(); }, kSecond / 20));
  ASSERT_TRUE(acceptor_->open(mesh).ok());
  EXPECT_TRUE(run_until([&] { return accepted_.size() == 1 && connected_.size() == 1; }))
      << failure_.text();
}

TEST_F(SocketTest, ConnectorIdentifiesTheOtherProcessThatAnswered) {
  listen(Address::parse_numeric("127.0.0.1", 0).value(), "s", true);
  ASSERT_TRUE(acceptor_->open(in_mesh(std::byte{2}, {0, 51, 0, 0, 81})).ok());
  const Hello hello = make_hello(in_mesh(std::byte{1}, {0, 50, 0, 0, 80}), Role::kTcp, 4, 1);
  connectors_.push_back(Connector::create(poller_, {acceptor_->address()}, secret_of("s"), hello,
                                          now_ns() + 5 * kSecond, *this));
  ASSERT_TRUE(run_until([&] { return reports_ == 1; }));
  EXPECT_EQ(failure_.code(), Code::kPermissionDenied);
  ASSERT_TRUE(connectors_.back()->other_process().has_value());
  EXPECT_EQ(connectors_.back()->other_process()->incarnation, 51u);
  EXPECT_EQ(connectors_.back()->other_process()->address.port(), acceptor_->address().port());

  // A refusal by the expected process does not indicate another process.
  connectors_.push_back(
      Connector::create(poller_, {acceptor_->address()}, secret_of("s"),
                        make_hello(in_mesh(std::byte{2}, {0, 51, 0, 0, 81}), Role::kShm, 4, 1),
                        now_ns() + 5 * kSecond, *this));
  ASSERT_TRUE(run_until([&] { return reports_ == 2; }));
  EXPECT_EQ(failure_.code(), Code::kPermissionDenied);
  EXPECT_FALSE(connectors_.back()->other_process().has_value());
}

TEST_F(SocketTest, WildcardIpv6AddressAcceptsIpv4) {
  listen(Address::parse_numeric("::", 0).value());
  const uint16_t port = acceptor_->address().port();
  connect({Address::parse_numeric("127.0.0.1", port).value()});
  connect({Address::parse_numeric("::1", port).value()});
  EXPECT_TRUE(run_until([&] { return accepted_.size() == 2 && connected_.size() == 2; }));
}

TEST_F(SocketTest, KeepaliveSettingsFitTheTimeout) {
  listen_on_loopback();
  const UniqueFd fd = raw_connection();
  for (const uint64_t seconds : {2u, 3u, 5u, 10u, 60u}) {
    ASSERT_TRUE(set_keepalive(fd.get(), seconds * kSecond).ok());
    int idle = 0, interval = 0, count = 0, user = 0;
    socklen_t length = sizeof(int);
    getsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, &length);
    getsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, &length);
    getsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, &count, &length);
    getsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user, &length);
    EXPECT_GE(count, 1);
    EXPECT_LE(static_cast<uint64_t>(idle + interval * count), seconds);
    EXPECT_LE(user, (idle + interval * count) * 1000);
    EXPECT_GT(user, (idle + interval * (count - 1)) * 1000);
  }
}

TEST_F(SocketTest, WrongSecretFailsOnBothSides) {
  listen_on_loopback();
  connect({acceptor_->address()}, 5 * kSecond, "other");
  ASSERT_TRUE(run_until([&] { return reports_ == 1 && !lines_.empty(); }));
  EXPECT_EQ(failure_.code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(failure_.text()), HasSubstr("job secret"));
  EXPECT_THAT(lines_.back(), HasSubstr("has another job secret"));
  EXPECT_TRUE(accepted_.empty());
}

TEST_F(SocketTest, EveryCandidateIsTriedAndItsErrorReported) {
  listen_on_loopback();
  UniqueFd closed = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 1).value();
  const Address refused = bound_address(closed.get()).value();
  closed.reset();
  const Address nobody = Address::local("hetcomm-test-nobody");
  connect({refused, nobody, acceptor_->address()});
  ASSERT_TRUE(run_until([&] { return connected_.size() == 1; }));
  connect({refused, nobody});
  ASSERT_TRUE(run_until([&] { return reports_ == 2; }));
  EXPECT_EQ(failure_.code(), Code::kPeerLost);
  EXPECT_THAT(std::string(failure_.text()), HasSubstr(refused.to_string() + ": connect: "));
  EXPECT_THAT(std::string(failure_.text()), HasSubstr("local:hetcomm-test-nobody: "));
  EXPECT_THAT(std::string(failure_.text()), HasSubstr("rank 1 cannot be reached"));
}

TEST_F(SocketTest, SilentCandidateTakesOnlyItsShareOfTheTime) {
  const UniqueFd silent = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 8).value();
  listen_on_loopback();
  connect({bound_address(silent.get()).value(), acceptor_->address()}, 2 * kSecond);
  ASSERT_TRUE(run_until([&] { return connected_.size() == 1; }, 3 * kSecond));
  connect({bound_address(silent.get()).value()}, kSecond / 5);
  ASSERT_TRUE(run_until([&] { return reports_ == 2; }));
  EXPECT_THAT(std::string(failure_.text()),
              HasSubstr("accepted the connection, but did not answer in time"));
}

// Candidates that fail immediately leave their time shares to later candidates.
TEST_F(SocketTest, LastCandidateGetsTheRemainingTime) {
  const UniqueFd silent = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 8).value();
  const Address nobody = Address::local("hetcomm-test-nobody");
  const uint64_t start = now_ns();
  connect({nobody, nobody, nobody, bound_address(silent.get()).value()}, 1000 * kSecond);
  // The first attempts have failed inside create().
  EXPECT_GE(connectors_.back()->next_timer_ns(), start + 999 * kSecond);
  connect({bound_address(silent.get()).value(), nobody, nobody, nobody}, 1000 * kSecond);
  EXPECT_LE(connectors_.back()->next_timer_ns(), now_ns() + 250 * kSecond);
}

TEST_F(SocketTest, ConnectorListsTheAddressesThatRefused) {
  std::vector<Address> closed;
  std::vector<UniqueFd> owners;
  for (int i = 0; i < 2; ++i) {
    owners.push_back(listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 1).value());
    closed.push_back(bound_address(owners.back().get()).value());
  }
  owners.clear();
  const UniqueFd silent = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 8).value();
  connect({closed[0], bound_address(silent.get()).value(), closed[1]}, kSecond / 2);
  ASSERT_TRUE(run_until([&] { return reports_ == 1; }));
  std::vector<std::string> refused;
  for (const Address& address : connectors_.back()->refused()) {
    refused.push_back(address.to_string());
  }
  EXPECT_THAT(refused, testing::ElementsAre(closed[0].to_string(), closed[1].to_string()));
  EXPECT_EQ(failure_.code(), Code::kPeerLost);
}

// A refusal by a process is more informative than an address without a listener.
TEST_F(SocketTest, MostInformativeOfSeveralFailuresIsReported) {
  listen_on_loopback();
  const Address nobody = Address::local("hetcomm-test-nobody");
  connect({nobody, acceptor_->address()}, 5 * kSecond, "other");
  connect({acceptor_->address(), nobody}, 5 * kSecond, "other");
  for (int reports = 1; reports <= 2; ++reports) {
    ASSERT_TRUE(run_until([&] { return reports_ >= reports; }));
    EXPECT_EQ(failure_.code(), Code::kPermissionDenied) << failure_.text();
  }
}

// A young connection is not evicted, so peers in a burst wait instead of evicting each other.
TEST_F(SocketTest, NewConnectionsAreNotEvictedAndFreedSlotsAreUsedAtOnce) {
  listen_on_loopback();
  std::vector<UniqueFd> strangers;
  for (size_t i = 0; i < kMaxPending; ++i) strangers.push_back(raw_connection());
  acceptor_->on_events(EPOLLIN);
  acceptor_->on_events(EPOLLIN);
  const uint64_t begin = now_ns();
  connect({acceptor_->address()}, 20 * kSecond);
  acceptor_->on_events(EPOLLIN);  // no room: it pauses until the oldest is old enough
  EXPECT_GT(acceptor_->next_timer_ns(), begin);
  EXPECT_LE(acceptor_->next_timer_ns(), now_ns() + kMinPendingNs);
  for (const UniqueFd& stranger : strangers) {
    pollfd ended{.fd = stranger.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&ended, 1, 0), 0);
  }
  // One connection closes: its place is reused before the pause ends.
  strangers.pop_back();
  for (int i = 0; i < 100 && acceptor_->next_timer_ns() <= now_ns() + kMinPendingNs; ++i) {
    poller_.wait(1'000'000);
    poller_.poll();
  }
  EXPECT_GT(acceptor_->next_timer_ns(), now_ns() + kMinPendingNs);  // the timer of a handshake
  EXPECT_TRUE(run_until([&] { return connected_.size() == 1 && accepted_.size() == 1; }));
}

// A busy acceptor reads late, but data that a peer has sent by then counts.
TEST_F(SocketTest, PeerWithUnreadDataIsNotEvicted) {
  listen_on_loopback();
  for (size_t i = 0; i < kMaxPending; ++i) connect({acceptor_->address()}, 20 * kSecond);
  poller_.wait(kSecond);
  usleep(20'000);
  // The connectors send their hellos, but the acceptor's events are not delivered.
  acceptor_->on_events(EPOLLIN);
  acceptor_->on_events(EPOLLIN);
  for (auto& connector : connectors_) connector->on_events(EPOLLOUT);
  usleep(2 * kMinPendingNs / 1000);
  connect({acceptor_->address()}, 20 * kSecond);
  acceptor_->on_events(EPOLLIN);
  EXPECT_TRUE(run_until([&] { return accepted_.size() == kMaxPending + 1; }, 20 * kSecond))
      << accepted_.size() << failure_.text();
  EXPECT_THAT(lines_, testing::IsEmpty());
}

TEST_F(SocketTest, EmptyCandidateListFailsAsynchronously) {
  connect({});
  EXPECT_EQ(reports_, 0);
  EXPECT_TRUE(run_until([&] { return reports_ == 1; }));
  EXPECT_THAT(std::string(failure_.text()), HasSubstr("no address"));
  EXPECT_FALSE(run_until([&] { return reports_ > 1; }, kSecond / 10));
}

TEST_F(SocketTest, AcceptorAndConnectorMayBeDestroyedInUpcalls) {
  destroy_in_upcall_ = true;
  listen_on_loopback();
  connect({acceptor_->address()});
  ASSERT_TRUE(run_until([&] { return reports_ == 1 && accepted_.size() == 1; }));
  EXPECT_EQ(acceptor_, nullptr);
  connect({Address::local("hetcomm-test-nobody")});
  ASSERT_TRUE(run_until([&] { return reports_ == 2; }));
}

TEST_F(SocketTest, DestroyingAConnectorCancelsIt) {
  listen_on_loopback();
  connect({acceptor_->address()});
  connectors_.clear();
  EXPECT_FALSE(run_until([&] { return reports_ > 0 || !accepted_.empty(); }, kSecond / 5));
}

TEST_F(SocketTest, PortScansAndGarbageDoNotBlockAPeer) {
  listen_on_loopback();
  log_.set_level(LogLevel::kDebug);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 50; ++i) {
    UniqueFd fd = raw_connection();
    if (i % 2 == 0) {
      ASSERT_EQ(::send(fd.get(), "\x16\x03\x01 garbage", 11, 0), 11);
      strangers.push_back(std::move(fd));
    }
  }
  connect({acceptor_->address()});
  ASSERT_TRUE(run_until([&] { return connected_.size() == 1 && lines_.size() >= 51; }));
  const auto count = [&](const char* what) {
    return std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) {
      return line.find(what) != std::string::npos;
    });
  };
  EXPECT_EQ(count("not a hetcomm peer"), 26);  // 25 at debug, 1 at warn
  EXPECT_EQ(count("without a word"), 25);
  EXPECT_EQ(count("rejected 1 connection"), 1);
}

TEST_F(SocketTest, HalfOpenConnectionsExpire) {
  listen_on_loopback();
  const UniqueFd stranger = raw_connection();
  ASSERT_TRUE(run_until([&] { return acceptor_->next_timer_ns() != kForever; }));
  acceptor_->expire(now_ns() + kHandshakeTimeoutNs);
  EXPECT_EQ(acceptor_->next_timer_ns(), kForever);
  pollfd ready{.fd = stranger.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&ready, 1, 5000), 1);
}

TEST_F(SocketTest, PeerConnectsDespiteMoreStrangersThanSlots) {
  listen_on_loopback();
  std::vector<UniqueFd> strangers;
  for (size_t i = 0; i < kMaxPending + 50; ++i) strangers.push_back(raw_connection());
  connect({acceptor_->address()});
  EXPECT_TRUE(run_until([&] { return connected_.size() == 1 && accepted_.size() == 1; }))
      << failure_.text();
}

TEST_F(SocketTest, EveryPeerInABurstConnects) {
  listen_on_loopback();
  constexpr size_t kPeers = 3 * kMaxPending;
  for (size_t i = 0; i < kPeers; ++i) connect({acceptor_->address()}, 60 * kSecond);
  EXPECT_TRUE(run_until([&] { return connected_.size() == kPeers && accepted_.size() == kPeers; },
                        60 * kSecond))
      << failure_.text();
}

TEST_F(SocketTest, AcceptorResumesOnceDescriptorsAreAvailable) {
  listen_on_loopback();
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  connect({acceptor_->address()}, 20 * kSecond);
  // No further descriptor is available.
  const UniqueFd next(::dup(0));
  rlimit limit = old_limit;
  limit.rlim_cur = static_cast<rlim_t>(next.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  turns_ = 0;
  EXPECT_FALSE(run_until([&] { return !accepted_.empty(); }, kSecond / 2));
  EXPECT_LT(turns_, 200) << "it spins";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  EXPECT_TRUE(run_until([&] { return accepted_.size() == 1 && connected_.size() == 1; }));
  EXPECT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_.front(), HasSubstr("cannot accept connections"));
}

// Uses an acceptor that reports the peers that connect when descriptors are exhausted.
class ExhaustedSocketTest : public SocketTest {
 protected:
  ExhaustedSocketTest() {
    Acceptor::Options options;
    options.credentials = {.identity = identity_of("job", "world", 0), .secret = secret_of("s")};
    options.rank = 1;
    options.exhausted = Status(Code::kOutOfResources, "run `ulimit -n 4711`");
    acceptor_ = Acceptor::create(poller_, log_, Address::parse_numeric("127.0.0.1", 0).value(),
                                 options, *this)
                    .value();
  }
};

// A spare descriptor suffices to report the reason.
TEST_F(ExhaustedSocketTest, LongLackOfDescriptorsIsReportedToPeers) {
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  connect({acceptor_->address()}, 60 * kSecond);
  const UniqueFd next(::dup(0));
  rlimit limit = old_limit;
  limit.rlim_cur = static_cast<rlim_t>(next.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(run_until([&] { return reports_ == 1; }, 30 * kSecond));
  EXPECT_TRUE(acceptor_->exhausted());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  EXPECT_THAT(std::string(failure_.text()), HasSubstr("run `ulimit -n 4711`"));
  EXPECT_EQ(connectors_.front()->denial(), Denial::kEnded);
  // No peer waits any longer.
  EXPECT_TRUE(run_until([&] { return !acceptor_->exhausted(); }));
  connect({acceptor_->address()}, 20 * kSecond);
  EXPECT_TRUE(run_until([&] { return accepted_.size() == 1; }));
  EXPECT_FALSE(acceptor_->exhausted());
}

// The only peer that connected got the last descriptor, so no peer waits.
TEST_F(ExhaustedSocketTest, LackOfDescriptorsIsNotReportedIfNoPeerWaited) {
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  // Leaves |count| free descriptors.
  const auto leave = [&](int count) {
    std::vector<UniqueFd> next;
    for (int i = 0; i <= count; ++i) next.emplace_back(::dup(0));
    rlimit limit = old_limit;
    limit.rlim_cur = static_cast<rlim_t>(next.back().get());
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  };
  connect({acceptor_->address()}, 60 * kSecond);
  leave(1);
  EXPECT_TRUE(run_until([&] { return accepted_.size() == 1; }));
  (void)run_until([] { return false; }, kExhaustedLimitNs + kSecond / 2);
  EXPECT_THAT(lines_, testing::IsEmpty());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  const uint64_t begun_ns = now_ns();
  connect({acceptor_->address()}, 60 * kSecond);
  leave(0);
  (void)run_until([&] { return acceptor_->exhausted(); }, 30 * kSecond);
  const uint64_t took_ns = now_ns() - begun_ns;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  EXPECT_GE(took_ns, kExhaustedLimitNs);
}

TEST_F(SocketTest, ConnectWaitsUntilItsDeadlineIfALocalListenQueueIsFull) {
  const Address address = Address::local("hetcomm-test-full-" + std::to_string(getpid()));
  UniqueFd full = listen_on(address, 0).value();
  std::vector<UniqueFd> fillers;
  while (true) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), address.get(), address.length()) != 0) break;
    fillers.push_back(std::move(fd));
  }
  connect({address}, kSecond / 5);
  ASSERT_TRUE(run_until([&] { return reports_ == 1; }));
  EXPECT_THAT(std::string(failure_.text()), HasSubstr("the connection was not made in time"));
}

PortRange range_of(std::string_view ports) {
  Log log;
  return port_range(Config::load(kVariables, nullptr, fmt::format("PORTS={}", ports), log).value())
      .value();
}

// The range contains a port that the kernel has just handed out, and its neighbours.
TEST(ListenTest, PortsComeFromTheRangeUntilNoneIsFree) {
  const Address loopback = Address::parse_numeric("127.0.0.1", 0).value();
  const uint16_t first = bound_address(listen_on(loopback, 1)->get())->port();
  const PortRange range = range_of(fmt::format("{}-{}", first, first + 3));
  std::vector<UniqueFd> held;
  std::set<uint16_t> ports;
  Result<UniqueFd> next = listen_on(loopback, 1, range);
  for (; next.ok(); next = listen_on(loopback, 1, range)) {
    const uint16_t port = bound_address(next->get())->port();
    EXPECT_TRUE(port >= first && port <= first + 3) << port;
    EXPECT_TRUE(ports.insert(port).second);
    held.push_back(std::move(next).value());
    ASSERT_LE(held.size(), 4u);
  }
  EXPECT_GE(held.size(), 1u);
  EXPECT_EQ(next.status().code(), Code::kOutOfResources);
  EXPECT_THAT(std::string(next.status().text()),
              HasSubstr(fmt::format("HETCOMM_PORTS={}-{}", first, first + 3)));
  // An address with an explicit port is kept unchanged.
  EXPECT_FALSE(listen_on(loopback.with_port(*ports.begin()), 1, range).ok());
}

TEST(ListenTest, OnlyValidPortRangesParse) {
  EXPECT_EQ(range_of("").first, 0);
  EXPECT_EQ(range_of("7").first, 7);
  EXPECT_EQ(range_of("7").last, 7);
  EXPECT_EQ(range_of("20000-65535").last, 65535);
  Log log;
  for (const char* text : {"0", "0-7", "7-", "-7", "9-8", "1-65536", "a", "1-2-3", " 1"}) {
    const Config config =
        Config::load(kVariables, nullptr, fmt::format("PORTS={}", text), log).value();
    const Status status = port_range(config).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.text()), HasSubstr("HETCOMM_PORTS")) << text;
  }
}

TEST(ListenTest, PortInUseIsAnError) {
  const UniqueFd taken = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 1).value();
  const Address address = bound_address(taken.get()).value();
  const Result<UniqueFd> second = listen_on(address, 1);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().text()), HasSubstr(address.to_string()));
  EXPECT_FALSE(listen_on(Address::local(std::string(200, 'x')), 1).ok());
}

}  // namespace
}  // namespace hetcomm
