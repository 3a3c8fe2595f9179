// TLS on connections (TlsContext, TlsSession, and Acceptor and Connector over them):
//  * a pair with good certificates communicates over TLS 1.3, for any fragmentation; any fault ends
//    the connection on both sides with a text that names it: another authority, an expired
//    certificate, another name, no certificate, one side without TLS, an older TLS, garbage;
//  * nothing hangs: silence after any part of the handshake meets a time limit, and an end at any
//    byte is reported as an end;
//  * send() consumes bytes permanently: after it would have blocked, other bytes may come next;
//  * buffered() reports bytes that were read from the kernel but not yet received;
//  * an announced end is an end, a cut or a changed byte is a failure; no changed data is
//    delivered;
//  * errors in the files are reported with the variable's name, and no pass phrase is requested.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "src/capi/variables.h"
#include "src/net/acceptor.h"
#include "src/net/connector.h"
#include "src/net/handshake.h"
#include "src/net/key.h"
#include "src/net/listening_socket.h"
#include "src/system/clock.h"
#include "tests/support/certificates.h"

namespace hetcomm {
namespace {

using test::Certificates;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using Step = TlsSession::Step;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kMillisecond = 1'000'000;

Result<std::shared_ptr<const TlsContext>> make_context(const std::string& settings, Log& log) {
  Result<Config> config = Config::load(kVariables, nullptr, settings, log);
  if (!config.ok()) return config.status();
  return TlsContext::create(config.value(), log);
}

std::shared_ptr<const TlsContext> good_context(const std::string& settings) {
  Log log;
  auto context = make_context(settings, log);
  EXPECT_TRUE(context.ok()) << context.status().text();
  return context.ok() ? context.value() : nullptr;
}

std::string text_of(const Status& status) { return std::string(status.text()); }

struct Sockets {
  explicit Sockets(int buffer = 0) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    left.reset(fds[0]);
    right.reset(fds[1]);
    if (buffer == 0) return;
    for (const int fd : fds) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
  }
  UniqueFd left, right;
};

bool over(Step step) { return step == Step::kDone || step == Step::kFailed; }

// Two sessions on a connected socket pair.
struct Linked {
  explicit Linked(const std::string& settings, int buffer = 0)
      : Linked(settings, settings, buffer) {}
  Linked(const std::string& left_settings, const std::string& right_settings, int buffer = 0)
      : sockets(buffer) {
    left_context = good_context(left_settings);
    right_context = good_context(right_settings);
    left = left_context->connect(sockets.left.get());
    right = right_context->accept(sockets.right.get());
    for (int i = 0; i < 1000 && !(over(left_step) && over(right_step)); ++i) {
      if (!over(left_step)) left_step = left->shake_hands();
      if (!over(right_step)) right_step = right->shake_hands();
      if (left_step == Step::kFailed) sockets.left.reset();
      if (right_step == Step::kFailed) sockets.right.reset();
    }
  }
  bool good() const { return left_step == Step::kDone && right_step == Step::kDone; }
  // Returns the reason that the connecting side learns after only the other side refused the
  // handshake.
  std::string left_text() {
    std::array<char, 16> bytes;
    const iovec piece{bytes.data(), bytes.size()};
    if (left->error().ok()) {
      EXPECT_EQ(left->receive(&piece, 1), -1);
    }
    return text_of(left->error());
  }

  Sockets sockets;
  std::shared_ptr<const TlsContext> left_context, right_context;
  std::unique_ptr<TlsSession> left, right;
  Step left_step = Step::kWantRead;
  Step right_step = Step::kWantRead;
};

ssize_t send_text(TlsSession& session, std::string text) {
  const iovec piece{text.data(), text.size()};
  return session.send(&piece, 1);
}

// Returns up to |most| bytes, or "<errno>" for a failure.
std::string receive_text(TlsSession& session, size_t most = 1000) {
  std::string text(most, '\0');
  const iovec piece{text.data(), text.size()};
  const ssize_t got = session.receive(&piece, 1);
  if (got < 0) return "<" + std::to_string(errno) + ">";
  text.resize(static_cast<size_t>(got));
  return text;
}
std::string failure(int error) { return "<" + std::to_string(error) + ">"; }

// --- certificates ------------------------------------------------------------------------------

TEST(TlsTest, PeersWithValidCertificatesCommunicate) {
  Certificates files;
  Linked link(files.settings(files.issue({.name = "a"})), files.settings(files.issue({})));
  ASSERT_TRUE(link.good()) << link.left->error().text() << link.right->error().text();
  EXPECT_THAT(link.left->describe(), HasSubstr("TLSv1.3"));
  EXPECT_EQ(send_text(*link.left, "hello"), 5);
  EXPECT_EQ(receive_text(*link.right), "hello");
  EXPECT_EQ(send_text(*link.right, "hello yourself"), 14);
  EXPECT_EQ(receive_text(*link.left), "hello yourself");
  EXPECT_EQ(receive_text(*link.left), failure(EAGAIN));
  EXPECT_FALSE(link.left->buffered());
}

class TlsAuthorityTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Names, TlsAuthorityTest,
                         testing::Values("another authority", "hetcomm test authority"));

TEST_P(TlsAuthorityTest, CertificateOfAnotherAuthorityIsRefusedOnEitherSide) {
  Certificates mine;
  Certificates other(GetParam());
  const std::string trusts_other = Certificates::settings(mine.standard(), other.authority_file());
  {
    Linked link(mine.settings(), trusts_other);  // the acceptor does not trust the initiator
    EXPECT_EQ(link.right_step, Step::kFailed);
    EXPECT_EQ(link.right->error().code(), Code::kPermissionDenied);
    EXPECT_THAT(text_of(link.right->error()), HasSubstr("the peer's certificate is refused"));
    EXPECT_THAT(link.left_text(), AnyOf(HasSubstr("refuses this process's certificate"),
                                        HasSubstr("perhaps it refuses")));
  }
  {
    Linked link(trusts_other, mine.settings());
    EXPECT_EQ(link.left_step, Step::kFailed);
    EXPECT_THAT(text_of(link.left->error()), HasSubstr("the peer's certificate is refused"));
    EXPECT_EQ(link.right_step, Step::kFailed);
    EXPECT_THAT(text_of(link.right->error()), HasSubstr("refuses this process's certificate"));
  }
}

TEST(TlsTest, ExpiredAndNotYetValidCertificatesAreRefused) {
  Certificates files;
  {
    Linked link(files.settings(), files.settings(files.issue({.valid_from_s = 3600})));
    EXPECT_EQ(link.left_step, Step::kFailed);
    EXPECT_THAT(text_of(link.left->error()), HasSubstr("not yet valid"));
  }
  // The certificate expires between loading and use.
  const std::string brief = files.settings(files.issue({.valid_to_s = 1}));
  const auto context = good_context(brief);
  usleep(2'100'000);
  Sockets sockets;
  const auto good = good_context(files.settings());
  for (const bool accepts : {false, true}) {
    Sockets pair;
    auto near = accepts ? context->accept(pair.left.get()) : context->connect(pair.left.get());
    auto far = accepts ? good->connect(pair.right.get()) : good->accept(pair.right.get());
    Step a = Step::kWantRead, b = Step::kWantRead;
    for (int i = 0; i < 100 && !(over(a) && over(b)); ++i) {
      if (!over(a)) a = near->shake_hands();
      if (!over(b)) b = far->shake_hands();
    }
    EXPECT_EQ(b, Step::kFailed);
    EXPECT_THAT(text_of(far->error()), HasSubstr("expired"));
    if (near->error().ok()) receive_text(*near);
    EXPECT_THAT(text_of(near->error()), HasSubstr("expired"));
  }
}

TEST(TlsTest, CertificateNameIsCheckedOnBothSidesIfConfigured) {
  Certificates files;
  const auto own = files.issue({.alternative_names = "DNS:node7.cluster,IP:10.1.2.3"});
  const std::string base = files.settings(own);
  for (const char* name : {"node7.cluster", "10.1.2.3", ""}) {
    EXPECT_TRUE(Linked(base + "TLS_SERVER_NAME=" + name).good()) << name;
  }
  for (const char* name : {"node8.cluster", "10.1.2.4", "cluster"}) {
    Linked left(base + "TLS_SERVER_NAME=" + name, base);
    EXPECT_EQ(left.left_step, Step::kFailed) << name;
    EXPECT_THAT(text_of(left.left->error()), HasSubstr("mismatch"));
    EXPECT_THAT(text_of(left.left->error()), HasSubstr(name));
    Linked right(base, base + "TLS_SERVER_NAME=" + name);
    EXPECT_EQ(right.right_step, Step::kFailed) << name;
    EXPECT_THAT(text_of(right.right->error()), HasSubstr("HETCOMM_TLS_SERVER_NAME"));
  }
}

// A peer written directly against OpenSSL, to do things that a TlsSession never does.
class RawPeer {
 public:
  RawPeer(int fd, bool accepts, const std::function<void(SSL_CTX*)>& prepare)
      : context_(SSL_CTX_new(TLS_method())) {
    prepare(context_);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd);
    if (accepts) {
      SSL_set_accept_state(ssl_);
    } else {
      SSL_set_connect_state(ssl_);
    }
  }
  ~RawPeer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  bool shake(TlsSession& other) {
    Step step = Step::kWantRead;
    for (int i = 0; i < 100; ++i) {
      if (!done_) done_ = SSL_do_handshake(ssl_) == 1;
      if (!over(step)) step = other.shake_hands();
      if (step == Step::kFailed) return false;
      if (done_ && step == Step::kDone) return true;
    }
    return false;
  }
  SSL* ssl() { return ssl_; }

 private:
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  bool done_ = false;
};

void use(SSL_CTX* context, const Certificates::Issued& own) {
  EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context, own.certificate.c_str()), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context, own.key.c_str(), SSL_FILETYPE_PEM), 1);
}

TEST(TlsTest, PeerWithoutACertificateIsRefused) {
  Certificates files;
  const auto context = good_context(files.settings());
  Sockets sockets;
  auto session = context->accept(sockets.left.get());
  RawPeer raw(sockets.right.get(), false, [](SSL_CTX*) {});
  EXPECT_FALSE(raw.shake(*session));
  EXPECT_EQ(session->error().code(), Code::kPermissionDenied);
  EXPECT_THAT(text_of(session->error()), HasSubstr("shows no certificate"));
}

TEST(TlsTest, OlderTlsVersionsAreRefused) {
  Certificates files;
  const auto context = good_context(files.settings());
  for (const bool accepts : {false, true}) {
    Sockets sockets;
    auto session =
        accepts ? context->accept(sockets.left.get()) : context->connect(sockets.left.get());
    RawPeer raw(sockets.right.get(), !accepts, [&](SSL_CTX* raw_context) {
      use(raw_context, files.standard());
      SSL_CTX_set_max_proto_version(raw_context, TLS1_2_VERSION);
    });
    EXPECT_FALSE(raw.shake(*session));
    EXPECT_FALSE(session->established());
    EXPECT_THAT(text_of(session->error()), HasSubstr("protocol"));
  }
}

// TLS 1.3 has no renegotiation. Its replacement, a key update, happens inside the connection.
TEST(TlsTest, KeyUpdateWorksWithoutRenegotiation) {
  Certificates files;
  const auto context = good_context(files.settings());
  Sockets sockets;
  auto session = context->accept(sockets.left.get());
  RawPeer raw(sockets.right.get(), false,
              [&](SSL_CTX* raw_context) { use(raw_context, files.standard()); });
  ASSERT_TRUE(raw.shake(*session));
  EXPECT_EQ(SSL_version(raw.ssl()), TLS1_3_VERSION);
  EXPECT_EQ(SSL_renegotiate(raw.ssl()), 0);
  ERR_clear_error();
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(SSL_key_update(raw.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_EQ(SSL_write(raw.ssl(), "old and new", 11), 11);
    EXPECT_EQ(receive_text(*session), "old and new");
    EXPECT_EQ(send_text(*session, "keys"), 4);
    char bytes[16];
    ASSERT_EQ(SSL_read(raw.ssl(), bytes, sizeof(bytes)), 4);
  }
}

// --- data --------------------------------------------------------------------------------------

std::vector<char> random_bytes(size_t size, std::mt19937_64& random) {
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// The sockets are so small that a record needs several turns. Pieces have any size, and after a
// refusal other bytes are offered than before: only accepted bytes count.
TEST(TlsTest, LargeTransfersPassThroughTinySockets) {
  Certificates files;
  for (const bool ahead : {false, true}) {
    Linked link(files.settings(), ahead ? 1 : 4096);
    ASSERT_TRUE(link.good());
    if (ahead) link.right->read_ahead();
    std::mt19937_64 random(ahead ? 3 : 4);
    constexpr size_t kTotal = 3u << 20;
    std::vector<char> sent, received;
    int refused = 0;
    const auto more = [&] { return sent.size() < kTotal || received.size() < sent.size(); };
    for (int idle = 0; more() && idle < 1000; ++idle) {
      if (sent.size() < kTotal) {
        std::vector<std::vector<char>> data;
        std::vector<iovec> pieces;
        const size_t count = 1 + random() % 5;
        for (size_t i = 0; i < count; ++i) {
          const size_t most = random() % 4 == 0 ? 70'000 : 300;
          data.push_back(random_bytes(1 + random() % most, random));
          pieces.push_back({data.back().data(), data.back().size()});
        }
        const ssize_t accepted = link.left->send(pieces.data(), pieces.size());
        if (accepted < 0) {
          ASSERT_EQ(errno, EAGAIN);
          ++refused;
        }
        auto left = static_cast<size_t>(std::max<ssize_t>(accepted, 0));
        for (const auto& piece : data) {
          const size_t taken = std::min(left, piece.size());
          sent.insert(sent.end(), piece.begin(), piece.begin() + static_cast<ptrdiff_t>(taken));
          left -= taken;
        }
        // The caller's memory is overwritten.
        for (auto& piece : data) std::fill(piece.begin(), piece.end(), 'x');
      } else {
        (void)link.left->flush();
      }
      std::array<std::vector<char>, 3> places;
      std::array<iovec, 3> pieces;
      for (size_t i = 0; i < places.size(); ++i) {
        places[i].resize(1 + random() % 20'000);
        pieces[i] = {places[i].data(), places[i].size()};
      }
      const ssize_t got = link.right->receive(pieces.data(), pieces.size());
      if (got < 0) {
        ASSERT_EQ(errno, EAGAIN);
        ASSERT_FALSE(link.right->buffered());
        continue;
      }
      ASSERT_GT(got, 0);
      idle = 0;
      auto left = static_cast<size_t>(got);
      for (const auto& place : places) {
        const size_t taken = std::min(left, place.size());
        received.insert(received.end(), place.begin(),
                        place.begin() + static_cast<ptrdiff_t>(taken));
        left -= taken;
      }
    }
    EXPECT_GT(refused, 10);
    EXPECT_EQ(sent.size(), received.size());
    EXPECT_TRUE(sent == received);
  }
}

// A sleep must not miss data that poll() does not report.
TEST(TlsTest, BufferedReportsBytesReadButNotReceived) {
  Certificates files;
  for (const bool ahead : {false, true}) {
    Linked link(files.settings());
    ASSERT_TRUE(link.good());
    if (ahead) link.right->read_ahead();
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(send_text(*link.left, "0123456789"), 10);
    }
    std::string all;
    while (all.size() < 30) {
      const std::string text = receive_text(*link.right, 4);
      ASSERT_FALSE(text.empty() || text[0] == '<') << text;
      all += text;
      if (all.size() == 30) break;
      pollfd readable{.fd = link.sockets.right.get(), .events = POLLIN, .revents = 0};
      ASSERT_TRUE(::poll(&readable, 1, 0) == 1 || link.right->buffered()) << all.size();
    }
    EXPECT_EQ(receive_text(*link.right), failure(EAGAIN));
    EXPECT_FALSE(link.right->buffered());
  }
}

// A partial record does not prevent sleep.
TEST(TlsTest, BufferedIgnoresAPartialRecord) {
  Certificates files;
  Linked link(files.settings());
  ASSERT_TRUE(link.good());
  Sockets other;
  // The record is relayed in two halves through a second pair of sockets.
  ASSERT_EQ(dup2(other.left.get(), link.sockets.left.get()), link.sockets.left.get());
  ASSERT_EQ(send_text(*link.left, std::string(100, 'a')), 100);
  std::array<char, 1000> record;
  const ssize_t size = ::recv(other.right.get(), record.data(), record.size(), MSG_DONTWAIT);
  ASSERT_GT(size, 100);
  link.right->read_ahead();
  UniqueFd writer(dup(link.sockets.right.get()));
  Sockets feed;
  ASSERT_EQ(dup2(feed.right.get(), link.sockets.right.get()), link.sockets.right.get());
  ASSERT_EQ(::send(feed.left.get(), record.data(), 60, 0), 60);
  EXPECT_EQ(receive_text(*link.right), failure(EAGAIN));
  EXPECT_FALSE(link.right->buffered());
  ASSERT_EQ(::send(feed.left.get(), record.data() + 60, static_cast<size_t>(size) - 60, 0),
            size - 60);
  EXPECT_EQ(receive_text(*link.right), std::string(100, 'a'));
  // The next record has one bit changed and is not delivered.
  ASSERT_EQ(send_text(*link.left, "tampered with"), 13);
  const ssize_t next = ::recv(other.right.get(), record.data(), record.size(), MSG_DONTWAIT);
  ASSERT_GT(next, 13);
  record[10] = static_cast<char>(record[10] ^ 1);
  ASSERT_EQ(::send(feed.left.get(), record.data(), static_cast<size_t>(next), 0), next);
  EXPECT_EQ(receive_text(*link.right), failure(EPROTO));
  EXPECT_THAT(text_of(link.right->error()), HasSubstr("TLS"));
  EXPECT_TRUE(link.right->buffered()) << "the end has to be taken";
}

TEST(TlsTest, OnlyAnAnnouncedEndIsClean) {
  Certificates files;
  for (const bool ahead : {false, true}) {
    {
      Linked link(files.settings());
      ASSERT_TRUE(link.good());
      if (ahead) link.right->read_ahead();
      ASSERT_EQ(send_text(*link.left, "last"), 4);
      link.left->say_goodbye();
      link.left->say_goodbye();  // the second call has no effect
      link.sockets.left.reset();
      EXPECT_EQ(receive_text(*link.right), "last");
      EXPECT_EQ(receive_text(*link.right), "");
      EXPECT_EQ(receive_text(*link.right), "");
    }
    Linked link(files.settings());
    ASSERT_TRUE(link.good());
    if (ahead) link.right->read_ahead();
    ASSERT_EQ(send_text(*link.left, "last"), 4);
    link.sockets.left.reset();
    EXPECT_EQ(receive_text(*link.right), "last");
    EXPECT_EQ(receive_text(*link.right), failure(ECONNABORTED));
    EXPECT_THAT(text_of(link.right->error()), HasSubstr("cut off"));
  }
}

// --- handshakes that end badly -----------------------------------------------------------------

// Relays a handshake's bytes, |step| at a time, until |limit| bytes from the initiator have passed.
// Returns how many passed.
size_t relay(const std::shared_ptr<const TlsContext>& context, size_t step, size_t limit,
             std::unique_ptr<TlsSession>& left, std::unique_ptr<TlsSession>& right, Sockets& near,
             Sockets& far) {
  left = context->connect(near.left.get());
  right = context->accept(far.right.get());
  Step a = Step::kWantRead, b = Step::kWantRead;
  size_t passed = 0;
  const auto pass = [&](int from, int to, size_t most) -> size_t {
    std::vector<char> bytes(std::min({step, most, size_t{65536}}));
    if (bytes.empty()) return 0;
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return 0;
    EXPECT_EQ(::send(to, bytes.data(), static_cast<size_t>(got), MSG_NOSIGNAL), got);
    return static_cast<size_t>(got);
  };
  for (int i = 0; i < 100'000 && !(over(a) && over(b)); ++i) {
    if (!over(a)) a = left->shake_hands();
    if (!over(b)) b = right->shake_hands();
    const size_t there = pass(near.right.get(), far.left.get(), limit - passed);
    const size_t back = pass(far.left.get(), near.right.get(), SIZE_MAX);
    passed += there;
    if (there + back == 0 && passed == limit) break;
  }
  return passed;
}

TEST(TlsTest, HandshakeWorksByteByByteAndReportsCuts) {
  Certificates files;
  const auto context = good_context(files.settings());
  std::unique_ptr<TlsSession> left, right;
  size_t whole = 0;
  {
    Sockets near, far;
    whole = relay(context, 1, SIZE_MAX, left, right, near, far);
    EXPECT_TRUE(left->established() && right->established());
    left.reset();
    right.reset();
  }
  ASSERT_GT(whole, 500u);
  for (size_t limit = 0; limit < whole; limit += limit < 20 ? 1 : 23) {
    Sockets near, far;
    relay(context, SIZE_MAX, limit, left, right, near, far);
    EXPECT_FALSE(right->established()) << limit;
    EXPECT_TRUE(right->error().ok()) << "waits, up to its owner's time limit";
    // Then the peer closes its end.
    far.left.reset();
    near.right.reset();
    EXPECT_EQ(right->shake_hands(), Step::kFailed) << limit;
    EXPECT_EQ(right->error().code(), Code::kPeerLost) << right->error().text();
    if (!left->established()) {
      EXPECT_EQ(left->shake_hands(), Step::kFailed) << limit;
    }
    left.reset();
    right.reset();
  }
}

// --- Acceptor and Connector --------------------------------------------------------------------

class TlsSocketTest : public testing::Test, public AcceptHandler, public ConnectHandler {
 protected:
  TlsSocketTest() {
    log_.set_sink(collect, this);
    log_.set_level(LogLevel::kDebug);
  }

  void listen(std::shared_ptr<const TlsContext> tls) {
    Acceptor::Options options;
    options.credentials = {.identity = identity_of("job", "world", 0), .secret = secret()};
    options.rank = 1;
    options.tls = std::move(tls);
    auto acceptor = Acceptor::create(poller_, log_, Address::parse_numeric("127.0.0.1", 0).value(),
                                     options, *this);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status().text();
    acceptor_ = std::move(acceptor).value();
  }
  void connect(std::shared_ptr<const TlsContext> tls, uint64_t timeout = 5 * kSecond) {
    connect_to(acceptor_->address(), std::move(tls), timeout);
  }
  void connect_to(const Address& address, std::shared_ptr<const TlsContext> tls,
                  uint64_t timeout = 5 * kSecond) {
    Hello hello;
    hello.identity = identity_of("job", "world", 0);
    hello.source = 4;
    hello.destination = 1;
    connected_ = {};
    failure_ = {};
    reported_ = false;
    connector_ = Connector::create(poller_, {address}, secret(), hello, now_ns() + timeout, *this,
                                   std::move(tls));
  }
  static Secret secret() {
    return secret_from(std::as_bytes(std::span(std::string_view("secret"))));
  }

  bool run_until(const std::function<bool()>& condition, uint64_t timeout = 10 * kSecond) {
    const uint64_t deadline = now_ns() + timeout;
    while (!condition()) {
      const uint64_t now = now_ns();
      if (now > deadline) return false;
      if (acceptor_) acceptor_->expire(now);
      if (connector_) connector_->expire(now);
      poller_.wait(kMillisecond);
      poller_.poll();
    }
    return true;
  }

  void on_accept(StreamSocket socket, const Hello&) override {
    ++accepts_;
    accepted_ = std::move(socket);
  }
  void on_connect(Result<StreamSocket> socket) override {
    reported_ = true;
    if (socket.ok()) {
      connected_ = std::move(socket).value();
    } else {
      failure_ = socket.status();
    }
  }
  static void collect(void* self, int32_t /*level*/, const char* line) {
    static_cast<TlsSocketTest*>(self)->lines_ += std::string(line) + "\n";
  }
  UniqueFd raw_connection() {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), acceptor_->address().get(), acceptor_->address().length()), 0);
    return fd;
  }
  void expect_good_pair(const std::shared_ptr<const TlsContext>& tls) {
    const int before = accepts_;
    connect(tls);
    ASSERT_TRUE(run_until([&] { return reported_ && accepts_ > before; })) << lines_;
    ASSERT_TRUE(connected_.valid()) << failure_.text();
  }

  Log log_;
  std::string lines_;
  Poller poller_ = Poller::create().value();
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Connector> connector_;
  StreamSocket accepted_, connected_;
  Status failure_;
  int accepts_ = 0;
  bool reported_ = false;
  Certificates files_;
};

TEST_F(TlsSocketTest, ConnectionIsAuthenticatedAndEncrypted) {
  const auto tls = good_context(files_.settings());
  listen(tls);
  expect_good_pair(tls);
  ASSERT_NE(accepted_.tls(), nullptr);
  ASSERT_EQ(connected_.send("plain text", 10), 10);
  // The data is not readable on the wire.
  std::array<char, 200> wire;
  ASSERT_TRUE(run_until([&] {
    return ::recv(accepted_.get(), wire.data(), wire.size(), MSG_PEEK | MSG_DONTWAIT) > 10;
  }));
  EXPECT_EQ(wire[0], 23);  // application data
  const ssize_t size = ::recv(accepted_.get(), wire.data(), wire.size(), MSG_PEEK | MSG_DONTWAIT);
  EXPECT_EQ(std::string(wire.data(), static_cast<size_t>(size)).find("plain"), std::string::npos);
  char text[16];
  EXPECT_EQ(accepted_.receive(text, sizeof(text)), 10);
}

TEST_F(TlsSocketTest, TlsMismatchIsReportedOnBothSides) {
  const auto tls = good_context(files_.settings());
  listen(tls);
  connect(nullptr);
  ASSERT_TRUE(run_until(
      [&] { return reported_ && lines_.find("rejected a connection from") != std::string::npos; },
      3 * kSecond));
  EXPECT_EQ(failure_.code(), Code::kPermissionDenied);
  EXPECT_THAT(text_of(failure_), HasSubstr("TLS"));
  EXPECT_THAT(lines_, HasSubstr("the peer has no TLS"));
  EXPECT_EQ(accepts_, 0);
  lines_.clear();
  listen(nullptr);
  connect(tls);
  ASSERT_TRUE(run_until(
      [&] { return reported_ && lines_.find("rejected a connection from") != std::string::npos; },
      3 * kSecond));
  EXPECT_EQ(failure_.code(), Code::kPermissionDenied);
  EXPECT_THAT(text_of(failure_), HasSubstr("the peer has no TLS"));
  EXPECT_THAT(lines_, HasSubstr("takes TLS only"));
  EXPECT_EQ(accepts_, 0);
}

TEST_F(TlsSocketTest, RefusedCertificateIsReportedOnBothSides) {
  Certificates other;
  const auto tls = good_context(files_.settings());
  listen(tls);
  connect(good_context(Certificates::settings(other.standard(), files_.authority_file())));
  ASSERT_TRUE(run_until(
      [&] { return reported_ && lines_.find("rejected a connection from") != std::string::npos; },
      3 * kSecond));
  EXPECT_THAT(lines_, HasSubstr("the peer's certificate is refused"));
  EXPECT_THAT(text_of(failure_), AnyOf(HasSubstr("refuses this process's certificate"),
                                       HasSubstr("perhaps it refuses")));
  EXPECT_THAT(text_of(acceptor_->last_rejection()), HasSubstr("certificate"));
  EXPECT_EQ(accepts_, 0);
  expect_good_pair(tls);
}

// Good certificates do not replace the secret.
TEST_F(TlsSocketTest, WrongSecretIsRefusedDespiteAValidCertificate) {
  const auto tls = good_context(files_.settings());
  listen(tls);
  Hello hello;
  hello.identity = identity_of("job", "world", 0);
  hello.source = 4;
  hello.destination = 1;
  connector_ = Connector::create(poller_, {acceptor_->address()}, Secret{}, hello,
                                 now_ns() + 5 * kSecond, *this, tls);
  ASSERT_TRUE(run_until([&] { return reported_; }));
  EXPECT_EQ(failure_.code(), Code::kPermissionDenied);
  EXPECT_THAT(text_of(failure_), HasSubstr("job secret"));
  EXPECT_EQ(accepts_, 0);
}

TEST_F(TlsSocketTest, GarbageAndSilenceDoNotBlockAGoodPeer) {
  const auto tls = good_context(files_.settings());
  listen(tls);
  // A genuine first message, to be damaged.
  std::vector<char> genuine(4096);
  {
    Sockets sockets;
    auto session = tls->connect(sockets.left.get());
    EXPECT_EQ(session->shake_hands(), Step::kWantRead);
    const ssize_t size = ::recv(sockets.right.get(), genuine.data(), genuine.size(), MSG_DONTWAIT);
    ASSERT_GT(size, 100);
    genuine.resize(static_cast<size_t>(size));
  }
  std::mt19937_64 random(11);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 200; ++i) {
    std::vector<char> bytes = i % 2 == 0 ? genuine : random_bytes(1 + random() % 600, random);
    for (uint64_t changes = random() % 4; i % 2 == 0 && changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (i % 3 == 0) bytes.resize(1 + random() % bytes.size());
    UniqueFd fd = raw_connection();
    (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 4 == 0) strangers.push_back(std::move(fd));
    poller_.poll();
  }
  expect_good_pair(tls);
  EXPECT_EQ(accepts_, 1);
  // A silent stranger is dropped when its time limit expires.
  acceptor_->expire(now_ns() + 2 * kHandshakeTimeoutNs);
  for (const UniqueFd& fd : strangers) {
    pollfd gone{.fd = fd.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&gone, 1, 1000), 1);
  }
  expect_good_pair(tls);
}

TEST_F(TlsSocketTest, SilenceDuringTheHandshakeTimesOut) {
  const auto tls = good_context(files_.settings());
  // One listener never sends anything, and another one stops halfway.
  UniqueFd listener = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 4).value();
  const Address address = bound_address(listener.get()).value();
  for (const bool speaks : {false, true}) {
    connect_to(address, tls, kSecond / 2);
    pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, 1000), 1);
    UniqueFd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    auto session = tls->accept(peer.get());
    if (speaks) {
      ASSERT_TRUE(run_until([&] {
        return session->shake_hands() == Step::kDone;  // and sends nothing after the handshake
      }));
    }
    ASSERT_TRUE(run_until([&] { return reported_; }, 3 * kSecond));
    EXPECT_THAT(text_of(failure_),
                HasSubstr("accepted the connection, but did not answer in time"));
  }
}

// --- settings ----------------------------------------------------------------------------------

TEST(TlsSettingsTest, DisabledTlsHasNoContextAndErrorsNameMissingSettings) {
  Log log;
  const auto off = make_context("", log);
  ASSERT_TRUE(off.ok());
  EXPECT_EQ(off.value(), nullptr);
  const auto text = [&](const std::string& settings) {
    const auto context = make_context(settings, log);
    EXPECT_FALSE(context.ok()) << settings;
    return text_of(context.status());
  };
  EXPECT_THAT(text("REQUIRE_TLS=1"), HasSubstr("set HETCOMM_TLS=on"));
  EXPECT_THAT(text("TLS=on"), HasSubstr("HETCOMM_TLS_CERTIFICATE"));
  Certificates files;
  const auto own = files.standard();
  EXPECT_THAT(text("TLS=on;TLS_CERTIFICATE=" + own.certificate), HasSubstr("HETCOMM_TLS_KEY"));
  EXPECT_THAT(text("TLS=1;TLS_CERTIFICATE=" + own.certificate + ";TLS_KEY=" + own.key),
              HasSubstr("HETCOMM_TLS_CA"));
  EXPECT_THAT(text("TLS=perhaps"), HasSubstr("HETCOMM_TLS"));
}

TEST(TlsSettingsTest, ErrorsNameInvalidFiles) {
  Log log;
  Certificates files;
  const auto own = files.standard();
  const std::string ca = files.authority_file();
  const auto text = [&](const std::string& certificate, const std::string& key,
                        const std::string& authority) {
    const auto context = make_context(Certificates::settings({certificate, key}, authority), log);
    EXPECT_FALSE(context.ok());
    return text_of(context.status());
  };
  EXPECT_THAT(text(own.certificate, "/nowhere/at.all", ca),
              testing::AllOf(HasSubstr("HETCOMM_TLS_KEY"), HasSubstr("No such file")));
  EXPECT_THAT(text(own.certificate, "/", ca), HasSubstr("not a file"));
  EXPECT_THAT(text("/nowhere/at.all", own.key, ca), HasSubstr("HETCOMM_TLS_CERTIFICATE"));
  EXPECT_THAT(text(own.certificate, own.key, "/nowhere/at.all"), HasSubstr("HETCOMM_TLS_CA"));
  const std::string nonsense = files.file("nonsense", "-----BEGIN NONSENSE-----\nabc\n");
  EXPECT_THAT(text(own.certificate, nonsense, ca), HasSubstr("HETCOMM_TLS_KEY"));
  EXPECT_THAT(text(nonsense, own.key, ca), HasSubstr("HETCOMM_TLS_CERTIFICATE"));
  EXPECT_THAT(text(own.certificate, own.key, nonsense), HasSubstr("HETCOMM_TLS_CA"));
  EXPECT_THAT(text(own.certificate, files.issue({}).key, ca), HasSubstr("does not belong"));
  const auto locked = files.issue({.pass_phrase = "open sesame"});
  EXPECT_THAT(text(locked.certificate, locked.key, ca), HasSubstr("pass phrase"));
  const auto old = files.issue({.valid_from_s = -7200, .valid_to_s = -3600});
  EXPECT_THAT(text(old.certificate, old.key, ca), HasSubstr("expired"));
  ASSERT_EQ(chmod(own.key.c_str(), 0602), 0);
  EXPECT_THAT(text(own.certificate, own.key, ca), HasSubstr("every user may change it"));
}

// OpenSSL's error queue belongs to the whole thread. Errors that the application left in it must
// not be attributed to the connection.
TEST(TlsTest, StaleOpenSslErrorsAreNotAttributedToTheConnection) {
  Certificates files;
  Linked link(files.settings());
  ASSERT_TRUE(link.good());
  ERR_raise(ERR_LIB_USER, 1);
  EXPECT_EQ(receive_text(*link.right), failure(EAGAIN));
  ERR_raise(ERR_LIB_USER, 1);
  EXPECT_EQ(send_text(*link.left, "x"), 1);
  ERR_raise(ERR_LIB_USER, 1);
  EXPECT_EQ(receive_text(*link.right), "x");
  ERR_clear_error();
}

}  // namespace
}  // namespace hetcomm
