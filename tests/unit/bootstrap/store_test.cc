// The store:
//  * a gather gives every rank all values, or gives every rank the same reason: which rank is
//    missing, is present twice, or disagrees on the number of ranks;
//  * a client finds the store among foreign services, silent or talking, and when the store starts
//    late, but never a store with another secret or from another job;
//  * garbage, oversized frames and protocol violations cost only the connection that sent them;
//  * if the key is public, sessions are bounded in number and time, and honest clients are still
//    admitted;
//  * no client hangs when it closes, and replies in flight arrive;
//  * all of this also works over TLS, and a store with TLS then accepts nothing else;
//  * a process may have several connections, and receives a reply that was lost with a broken one;
//  * a client that does not read its reply occupies its session for a bounded time only;
//  * a put that is refused for lack of space leaves the old value and its space unchanged;
//  * the remaining ranks agree on the lost ones.
#include "src/bootstrap/store.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/bytes.h"
#include "src/bootstrap/exchange_names.h"
#include "src/bootstrap/last_replies.h"
#include "src/bootstrap/store_finder.h"
#include "src/bootstrap/store_session.h"
#include "src/bootstrap/store_table.h"
#include "src/capi/variables.h"
#include "src/net/key.h"
#include "src/net/listening_socket.h"
#include "src/net/poller.h"
#include "src/system/clock.h"
#include "tests/support/certificates.h"
#include "tests/support/fastest.h"

namespace hetcomm {
namespace {

using testing::HasSubstr;
using Values = std::vector<std::vector<std::byte>>;
constexpr uint64_t kSecond = 1'000'000'000;

uint64_t in(uint64_t seconds) { return now_ns() + seconds * kSecond; }

Credentials credentials_of(std::string_view secret, std::string_view job = "job") {
  return {.identity = identity_of(job, "store", 0),
          .secret = secret_from(std::as_bytes(std::span(secret)))};
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void send_request(StreamSocket& socket, const StoreRequest& request) {
  const std::vector<std::byte> frame = encode_request(request);
  EXPECT_EQ(::send(socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(frame.size()));
}

void send_gather(StreamSocket& socket, int rank, int size, std::vector<std::byte> value) {
  send_request(socket, {.operation = StoreOperation::kGather,
                        .number = 1,
                        .rank = rank,
                        .size = size,
                        .timeout_ns = 30 * kSecond,
                        .ranks = size,
                        .key = "world",
                        .value = std::move(value)});
}

// Waits for the next event on |socket|. Returns 1 for data, 0 for the end, and -1 if nothing
// arrives within some seconds.
int next_of(StreamSocket& socket) {
  pollfd polled{.fd = socket.get(), .events = POLLIN, .revents = 0};
  if (::poll(&polled, 1, 20'000) != 1) return -1;
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0 ? 1 : 0;
}

Address loopback(uint16_t port = 0) { return Address::parse_numeric("127.0.0.1", port).value(); }

class StoreTest : public testing::Test {
 protected:
  StoreTest() { log_.set_level(LogLevel::kError); }

  void start(const Address& address = loopback()) {
    std::vector<Address> hosts = {address};
    hosts.insert(hosts.end(), more_hosts_.begin(), more_hosts_.end());
    Secret::Bytes bytes;
    bytes.fill(std::byte{7});
    const Secret key(bytes);
    auto server = StoreServer::start(log_, {.credentials = credentials_of("s"),
                                            .job_key = key,
                                            .hosts = hosts,
                                            .ports = {address.port()},
                                            .bounds = bounds_,
                                            .tls = tls_,
                                            .ranks = ranks_});
    ASSERT_TRUE(server.ok()) << server.status().text();
    server_ = std::move(server).value();
    addresses_.clear();
    for (const Address& host : hosts) {
      addresses_.push_back(host.with_port(server_->address().port()));
    }
  }

  StoreClient::Options options(int rank, std::string_view secret = "s",
                               std::string_view job = "job") {
    return {.credentials = credentials_of(secret, job),
            .rank = rank,
            .addresses = addresses_,
            .quiet_ns = quiet_ns_,
            .tls = tls_};
  }

  // Gathers over two ranks, rank 0 by |other|. Returns the connection of rank 1, to which its reply
  // has come.
  StreamSocket gather_without_reading(const StoreClient::Options& made, StoreClient& other) {
    Result<FoundStore> found = find_store(log_, made, in(10));
    EXPECT_TRUE(found.ok()) << found.status().text();
    if (!found.ok()) return {};
    send_gather(found->socket, 1, 2, bytes_of("1"));
    EXPECT_TRUE(other.gather("world", 2, bytes_of("0"), in(30)).ok());
    EXPECT_EQ(next_of(found->socket), 1);
    return std::move(found->socket);
  }

  // Returns the options for a process with |ticket|.
  StoreClient::Options options_with(std::byte ticket, int rank) {
    StoreClient::Options made = options(rank);
    made.ticket.emplace();
    made.ticket->fill(ticket);
    return made;
  }

  // Runs |body| for each rank on its own thread.
  void run_ranks(int count, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

  Log log_;
  std::unique_ptr<StoreServer> server_;
  std::vector<Address> more_hosts_;  // additional addresses that start() listens on
  std::vector<Address> addresses_;
  std::shared_ptr<const TlsContext> tls_;
  std::optional<StoreServer::Bounds> bounds_;
  uint64_t quiet_ns_ = kForever;
  int ranks_ = 0;
};

class TlsStoreTest : public StoreTest {
 protected:
  TlsStoreTest() {
    auto config = Config::load(kVariables, nullptr, files_.settings(), log_);
    EXPECT_TRUE(config.ok());
    auto tls = TlsContext::create(config.value(), log_);
    EXPECT_TRUE(tls.ok()) << tls.status().text();
    tls_ = tls.value();
  }
  test::Certificates files_;
};

// Each value needs several records, and each reply many more than a socket accepts at once.
TEST_F(TlsStoreTest, RanksGatherSmallAndLargeValuesOverTls) {
  start();
  run_ranks(24, [&](int rank) {
    StoreClient client(log_, options(rank));
    for (const size_t length : {size_t{0}, size_t{100}, kMaxStoreValue}) {
      const std::vector<std::byte> mine(length, static_cast<std::byte>(rank));
      auto values = client.gather(fmt::format("scope {}", length), 24, mine, in(30));
      ASSERT_TRUE(values.ok()) << values.status().text();
      for (size_t from = 0; from < 24; ++from) {
        EXPECT_EQ((*values)[from], std::vector<std::byte>(length, static_cast<std::byte>(from)));
      }
    }
    auto key = client.job_key(in(10));
    ASSERT_TRUE(key.ok()) << key.status().text();
  });
}

TEST_F(TlsStoreTest, ClientWithoutTlsIsRefused) {
  start();
  StoreClient::Options plain = options(1);
  plain.tls = nullptr;
  StoreClient client(log_, plain);
  const Status status = client.connect(in(1));
  EXPECT_EQ(status.code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(status.text()), HasSubstr("TLS"));
  StoreClient good(log_, options(1));
  EXPECT_TRUE(good.connect(in(10)).ok());
}

TEST_F(TlsStoreTest, StoreWithoutTlsIsNotUsed) {
  const auto tls = std::exchange(tls_, nullptr);
  start();
  tls_ = tls;
  StoreClient client(log_, options(1));
  const Status status = client.connect(in(1));
  EXPECT_EQ(status.code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(status.text()), HasSubstr("has no TLS"));
}

TEST_F(TlsStoreTest, ClosingTheStoreFailsAWaitingGet) {
  start();
  std::atomic<bool> connected = false;
  std::thread waiter([&] {
    StoreClient client(log_, options(1));
    EXPECT_TRUE(client.connect(in(20)).ok());
    connected = true;
    const auto value = client.get("nothing", in(30));
    EXPECT_FALSE(value.ok());
    EXPECT_THAT(std::string(value.status().text()), HasSubstr("clos"));
  });
  while (!connected) usleep(1000);
  usleep(100'000);
  const uint64_t before = now_ns();
  server_.reset();
  waiter.join();
  EXPECT_LT(now_ns() - before, 15 * kSecond);
}

TEST_F(StoreTest, SixtyFourRanksGatherSmallAndLargeValues) {
  start();
  run_ranks(64, [&](int rank) {
    StoreClient client(log_, options(rank));
    for (const size_t length : {size_t{0}, size_t{100}, kMaxStoreValue}) {
      const std::vector<std::byte> mine(length, static_cast<std::byte>(rank));
      auto values = client.gather(fmt::format("scope {}", length), 64, mine, in(30));
      ASSERT_TRUE(values.ok()) << values.status().text();
      for (size_t other = 0; other < 64; ++other) {
        EXPECT_EQ(values.value()[other],
                  std::vector<std::byte>(length, static_cast<std::byte>(other)));
      }
    }
  });
}

TEST_F(StoreTest, EveryRankReportsTheMissingRanks) {
  start();
  run_ranks(7, [&](int rank) {
    if (rank == 3) return;
    StoreClient client(log_, options(rank));
    const auto values = client.gather("world", 12, {}, now_ns() + kSecond);
    ASSERT_FALSE(values.ok());
    EXPECT_EQ(values.status().code(), Code::kBootstrapFailed);
    EXPECT_THAT(std::string(values.status().text()), HasSubstr("ranks 3, 7-11 of 12 did not join"));
  });
  // A late rank immediately receives the same error.
  StoreClient late(log_, options(3));
  const uint64_t before = now_ns();
  const auto values = late.gather("world", 12, {}, in(30));
  ASSERT_FALSE(values.ok());
  EXPECT_THAT(std::string(values.status().text()), HasSubstr("ranks 3, 7-11 of 12 did not join"));
  EXPECT_LT(now_ns() - before, 15 * kSecond);
}

// The store waits slightly less than the client, which may have spent time before.
TEST_F(StoreTest, ErrorStatesTheTimeLimitThatWasSet) {
  start();
  StoreClient client(log_, options(0));
  client.set_time_limit(3 * kSecond);
  const auto values = client.gather("world", 2, {}, now_ns() + kSecond / 4);
  ASSERT_FALSE(values.ok());
  EXPECT_THAT(std::string(values.status().text()),
              HasSubstr("rank 1 of 2 did not join within 3 s"));
}

TEST_F(StoreTest, TwoProcessesWithTheSameRankBothFail) {
  start();
  run_ranks(3, [&](int thread) {
    StoreClient client(log_, options(thread == 0 ? 0 : 1));
    const auto values = client.gather("world", 3, {}, in(30));
    ASSERT_FALSE(values.ok());
    EXPECT_THAT(std::string(values.status().text()),
                HasSubstr("two processes say that they are rank 1"));
  });
}

TEST_F(StoreTest, ProcessThatJoinsACompletedGatherIsRefused) {
  start();
  run_ranks(2, [&](int rank) {
    StoreClient client(log_, options(rank));
    EXPECT_TRUE(client.gather("world", 2, {}, in(30)).ok());
  });
  StoreClient twin(log_, options(1));
  const auto values = twin.gather("world", 2, {}, in(30));
  ASSERT_FALSE(values.ok());
  EXPECT_THAT(std::string(values.status().text()), HasSubstr("have already joined"));
}

// Each process has a ticket. The store remembers the tickets of ranks that it has fully served.
TEST_F(StoreTest, NewProcessOfAServedRankSkipsTheOldStore) {
  ranks_ = 2;
  start();
  const std::vector<Address> old = addresses_;
  run_ranks(2, [&](int rank) {
    StoreClient client(log_, options_with(std::byte{1}, rank));
    EXPECT_TRUE(client.gather("world", 2, {}, in(30)).ok());
  });
  // The same process connects again.
  StoreClient again(log_, options_with(std::byte{1}, 1));
  EXPECT_TRUE(again.job_key(in(10)).ok());
  // The job's next start has its store on another port.
  const std::unique_ptr<StoreServer> old_store = std::move(server_);
  start();
  addresses_.insert(addresses_.begin(), old.begin(), old.end());
  run_ranks(2, [&](int rank) {
    StoreClient client(log_, options_with(std::byte{2}, rank));
    const auto values = client.gather("world", 2, {}, in(30));
    EXPECT_TRUE(values.ok()) << values.status().text();
  });
  addresses_ = old;
  StoreClient late(log_, options_with(std::byte{3}, 1));
  const Status refused = late.connect(now_ns() + 5 * kSecond);
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(refused.text()),
              HasSubstr("another process has already joined as rank 1"));
}

TEST_F(StoreTest, DifferentNumbersOfRanksAreRefused) {
  start();
  run_ranks(2, [&](int rank) {
    StoreClient client(log_, options(rank));
    const auto values = client.gather("world", 3 + rank, {}, in(30));
    ASSERT_FALSE(values.ok());
    EXPECT_THAT(std::string(values.status().text()), HasSubstr("ranks, others say"));
  });
}

TEST_F(StoreTest, RestartedProcessReplacesItsPredecessor) {
  start();
  std::thread dying([&] {
    Result<FoundStore> socket = find_store(log_, options(1), in(10));
    ASSERT_TRUE(socket.ok());
    send_gather(socket->socket, 1, 2, bytes_of("old"));
    usleep(100'000);
  });
  dying.join();
  usleep(100'000);
  run_ranks(2, [&](int rank) {
    StoreClient client(log_, options(rank));
    const auto values = client.gather("world", 2, bytes_of("new"), in(30));
    ASSERT_TRUE(values.ok()) << values.status().text();
    EXPECT_EQ(values.value()[1], bytes_of("new"));
  });
}

TEST_F(StoreTest, GetWaitsForAPutAndTheJobKeyIsShared) {
  start();
  StoreClient writer(log_, options(0));
  StoreClient reader(log_, options(1));
  std::thread waiting([&] {
    const auto value = reader.get("key", in(30));
    ASSERT_TRUE(value.ok()) << value.status().text();
    EXPECT_EQ(value.value(), bytes_of("value"));
  });
  usleep(50'000);
  EXPECT_TRUE(writer.put("key", bytes_of("value"), in(5)).ok());
  waiting.join();
  EXPECT_TRUE(writer.put("key", bytes_of("newer"), in(5)).ok());
  EXPECT_EQ(reader.get("key", in(5)).value(), bytes_of("newer"));
  const auto missing = reader.get("nothing", now_ns() + kSecond / 5);
  EXPECT_EQ(missing.status().code(), Code::kTimedOut);
  EXPECT_THAT(std::string(missing.status().text()), HasSubstr("'nothing'"));
  EXPECT_EQ(writer.job_key(in(5)).value(), reader.job_key(in(5)).value());
  EXPECT_EQ(writer.job_key(in(5))->bytes()[0], std::byte{7});
}

TEST_F(StoreTest, ClientRefusesOversizedArguments) {
  start();
  StoreClient client(log_, options(0));
  const std::vector<std::byte> large(kMaxStoreValue + 1);
  EXPECT_EQ(client.put("key", large, in(5)).code(), Code::kInvalidArgument);
  EXPECT_EQ(client.put(std::string(kMaxStoreKey + 1, 'x'), {}, in(5)).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(client.gather("s", 1, large, in(5)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(client.gather("s", 0, {}, in(5)).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(
      client.put(std::string(kMaxStoreKey, 'x'), ConstByteSpan(large).first(kMaxStoreValue), in(5))
          .ok());
}

TEST_F(StoreTest, GarbageDoesNotAffectOtherConnections) {
  start();
  StoreClient good(log_, options(0));
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Result<FoundStore> socket = find_store(log_, options(1), in(10));
    ASSERT_TRUE(socket.ok()) << socket.status().text();
    std::vector<std::byte> bytes(1 + random() % 5000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (round % 3 == 0) {  // a valid length before the garbage
      bytes[1 % bytes.size()] = bytes[2 % bytes.size()] = bytes[3 % bytes.size()] = {};
    }
    ASSERT_GT(::send(socket->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  }
  EXPECT_TRUE(good.put("key", bytes_of("x"), in(5)).ok());
}

TEST_F(StoreTest, OversizedFrameAndPipeliningCloseTheConnection) {
  start();
  const std::vector<std::byte> waiting = encode_request({.operation = StoreOperation::kGet,
                                                         .timeout_ns = 60 * kSecond,
                                                         .key = "nothing",
                                                         .value = {}});
  std::vector<std::byte> twice = waiting;
  twice.insert(twice.end(), waiting.begin(), waiting.end());
  ByteWriter oversized;
  oversized.write(static_cast<uint32_t>(kMaxRequestBytes + 1));
  for (const std::vector<std::byte>& bytes : {twice, oversized.take()}) {
    Result<FoundStore> socket = find_store(log_, options(1), in(10));
    ASSERT_TRUE(socket.ok());
    ASSERT_GT(::send(socket->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    Poller poller = Poller::create().value();
    class Nothing final : public Watcher {
      void on_events(uint32_t /*events*/) override {}
    } watcher;
    ASSERT_TRUE(poller.add(socket->socket.get(), EPOLLIN, watcher).ok());
    poller.wait(5 * kSecond);
    char byte = 0;
    const ssize_t got = ::recv(socket->socket.get(), &byte, 1, MSG_DONTWAIT);
    EXPECT_TRUE(got == 0 || (got < 0 && errno == ECONNRESET)) << got;
  }
}

TEST_F(StoreTest, ClientFindsAServerThatStartsLate) {
  UniqueFd reserved = listen_on(loopback(), 1).value();
  const Address address = bound_address(reserved.get()).value();
  reserved.reset();
  addresses_ = {address};
  StoreClient client(log_, options(0));
  std::thread late([&] {
    usleep(700'000);
    start(address);
  });
  const Status status = client.put("key", {}, in(20));
  EXPECT_TRUE(status.ok()) << status.text();
  late.join();
}

// Accepts connections and sends |greeting| on each.
class ForeignService {
 public:
  explicit ForeignService(std::string greeting)
      : listener_(listen_on(loopback(), 64).value()), thread_([this, greeting] {
          while (!stop_) {
            UniqueFd fd(::accept(listener_.get(), nullptr, nullptr));
            if (!fd.valid()) {
              usleep(1000);
              continue;
            }
            if (!greeting.empty()) ::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
            clients_.push_back(std::move(fd));
          }
        }) {}
  ~ForeignService() {
    stop_ = true;
    thread_.join();
  }
  Address address() const { return bound_address(listener_.get()).value(); }

 private:
  UniqueFd listener_;
  std::atomic<bool> stop_ = false;
  std::vector<UniqueFd> clients_;
  std::thread thread_;
};

TEST_F(StoreTest, ForeignServicesAreSkipped) {
  ForeignService silent("");
  ForeignService talking("SSH-2.0-nothing\r\n");
  start();
  addresses_.insert(addresses_.begin(), {silent.address(), talking.address()});
  const uint64_t fastest = test::fastest_ns(4, [&] {
    StoreClient client(log_, options(0));
    EXPECT_TRUE(client.put("key", {}, in(20)).ok());
  });
  EXPECT_LT(fastest, kSecond);
  addresses_.pop_back();
  StoreClient lost(log_, options(0));
  const Status status = lost.put("key", {}, now_ns() + 2 * kSecond);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.text()),
              HasSubstr(talking.address().to_string() + ": the other side is not a hetcomm peer"));
  EXPECT_THAT(std::string(status.text()),
              HasSubstr(silent.address().to_string() +
                        ": the peer accepted the connection, but did not answer in time"));
}

TEST_F(StoreTest, ClientOfAnotherSecretOrJobIsRefused) {
  start();
  StoreClient other_secret(log_, options(0, "other"));
  const Status denied = other_secret.put("key", {}, now_ns() + kSecond / 2);
  EXPECT_EQ(denied.code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(denied.text()), HasSubstr("job secret"));
  StoreClient other_job(log_, options(0, "s", "another"));
  const Status foreign = other_job.put("key", {}, now_ns() + kSecond / 2);
  EXPECT_EQ(foreign.code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(foreign.text()), HasSubstr("another job"));
}

TEST_F(StoreTest, ClosingTheStoreEndsWaitingRequests) {
  start();
  std::thread closing([&] {
    usleep(300'000);
    server_.reset();
  });
  run_ranks(4, [&](int rank) {
    StoreClient client(log_, options(rank));
    const auto values = client.gather("world", 5, {}, in(30));
    ASSERT_FALSE(values.ok());
    EXPECT_THAT(std::string(values.status().text()), HasSubstr("closed the job's store"));
  });
  closing.join();
}

TEST_F(StoreTest, RepliesInFlightArriveAfterClosing) {
  start();
  run_ranks(32, [&](int rank) {
    StoreClient client(log_, options(rank));
    const std::vector<std::byte> mine(kMaxStoreValue, static_cast<std::byte>(rank));
    const auto values = client.gather("world", 32, mine, in(30));
    EXPECT_TRUE(values.ok()) << values.status().text();
    if (rank == 0) server_.reset();
  });
}

TEST_F(StoreTest, StoreOfARestartedRankZeroIsRecognizedAsNew) {
  start();
  StoreClient client(log_, options(0));
  EXPECT_TRUE(client.put("key", {}, in(5)).ok());
  const Address address = server_->address();
  server_.reset();
  EXPECT_FALSE(client.put("key", {}, in(1)).ok());
  start(address);
  const Status status = client.put("key", {}, in(5));
  EXPECT_EQ(status.code(), Code::kBootstrapFailed);
  EXPECT_THAT(std::string(status.text()), HasSubstr("did rank 0 start again?"));
}

// A rank's connection may break while its request waits, before the store notices.
TEST_F(StoreTest, ResentRequestIsNotMistakenForADuplicateRank) {
  ranks_ = 2;
  start();
  const StoreClient::Options made = options_with(std::byte{1}, 1);
  Result<FoundStore> first = find_store(log_, made, in(10));
  ASSERT_TRUE(first.ok());
  send_gather(first->socket, 1, 2, bytes_of("1"));
  usleep(100'000);
  std::thread other([&] {
    usleep(200'000);
    StoreClient client(log_, options(0));
    const auto values = client.gather("world", 2, bytes_of("0"), in(30));
    EXPECT_TRUE(values.ok()) << values.status().text();
  });
  StoreClient again(log_, made);
  const auto values = again.gather("world", 2, bytes_of("1"), in(30));
  EXPECT_TRUE(values.ok()) << values.status().text();
  other.join();
}

// A process that tries two addresses temporarily has two connections, and may use either.
TEST_F(StoreTest, ProcessMayUseEitherOfItsConnections) {
  ranks_ = 2;
  start();
  for (const bool uses_first : {true, false}) {
    const auto ticket = uses_first ? std::byte{1} : std::byte{2};
    Result<FoundStore> first = find_store(log_, options_with(ticket, 1), in(10));
    Result<FoundStore> second = find_store(log_, options_with(ticket, 1), in(10));
    ASSERT_TRUE(first.ok() && second.ok());
    StreamSocket& used = uses_first ? first->socket : second->socket;
    send_request(used, {.operation = StoreOperation::kJobKey, .key = "", .value = {}});
    EXPECT_EQ(next_of(used), 1);
  }
}

// The replaced connections no longer occupy sessions.
TEST_F(StoreTest, RequestClosesOlderConnectionsOfItsProcess) {
  ranks_ = 2;
  start();
  std::vector<StreamSocket> older;
  for (int i = 0; i < 3; ++i) {
    Result<FoundStore> each = find_store(log_, options_with(std::byte{1}, 1), in(10));
    ASSERT_TRUE(each.ok());
    older.push_back(std::move(each->socket));
  }
  Result<FoundStore> other = find_store(log_, options_with(std::byte{2}, 1), in(10));
  ASSERT_TRUE(other.ok());
  StoreClient client(log_, options_with(std::byte{1}, 1));
  ASSERT_TRUE(client.job_key(in(10)).ok());
  for (StreamSocket& socket : older) EXPECT_EQ(next_of(socket), 0);
  // Another process is not affected.
  send_request(other->socket, {.operation = StoreOperation::kJobKey, .key = "", .value = {}});
  EXPECT_EQ(next_of(other->socket), 1);
}

// MASTER_ADDR is a name with two addresses, both of them rank 0's.
TEST_F(StoreTest, RanksConnectByEitherOfTwoAddresses) {
  constexpr int kRanks = 8;
  more_hosts_ = {Address::parse_numeric("::1", 0).value()};
  ranks_ = kRanks;
  start();
  for (int job = 0; job < 10 && !HasFailure(); ++job) {
    run_ranks(kRanks, [&](int rank) {
      StoreClient client(log_, options_with(std::byte{1}, rank));
      for (int round = 0; round < 5; ++round) {
        const auto values =
            client.gather(fmt::format("scope {} {}", job, round), kRanks, {}, in(30));
        ASSERT_TRUE(values.ok()) << values.status().text();
      }
    });
  }
}

// The rank's connection breaks after the store has sent the reply, but before the rank has read it.
TEST_F(StoreTest, LostReplyIsSentAgain) {
  ranks_ = 2;
  start();
  const StoreClient::Options made = options_with(std::byte{1}, 1);
  StoreClient other(log_, options_with(std::byte{2}, 0));
  StreamSocket broken = gather_without_reading(made, other);
  broken.reset();
  for (int i = 0; i < 2; ++i) {
    StoreClient again(log_, made);
    const auto values = again.gather("world", 2, bytes_of("1"), in(30));
    ASSERT_TRUE(values.ok()) << values.status().text();
    EXPECT_EQ(values.value(), (Values{bytes_of("0"), bytes_of("1")}));
  }
  // A rank that has read the reply and asks again receives an error.
  const auto twice = other.gather("world", 2, bytes_of("0"), in(30));
  EXPECT_THAT(std::string(twice.status().text()), HasSubstr("have already joined"));
  // Another member index in the group does not belong to this rank.
  StoreClient again(log_, made);
  const auto other_place = again.gather("world", 0, Members::all(2), {}, in(30));
  EXPECT_THAT(std::string(other_place.status().text()), HasSubstr("have already joined"));
  // That request was different, so the rank must have read the reply.
  const auto late = again.gather("world", 2, bytes_of("1"), in(30));
  EXPECT_THAT(std::string(late.status().text()), HasSubstr("have already joined"));
}

// A rank that stores a value has read the reply before that.
TEST_F(StoreTest, ReplyIsForgottenOnceItsRankStoresAValue) {
  ranks_ = 2;
  start();
  const StoreClient::Options made = options_with(std::byte{1}, 1);
  StoreClient other(log_, options_with(std::byte{2}, 0));
  StreamSocket first = gather_without_reading(made, other);
  send_request(first, {.operation = StoreOperation::kPut,
                       .number = 2,
                       .rank = 1,
                       .key = "key",
                       .value = bytes_of("2")});
  ASSERT_TRUE(other.get("key", in(30)).ok());
  StoreClient again(log_, made);
  const auto late = again.gather("world", 2, bytes_of("1"), in(30));
  EXPECT_THAT(std::string(late.status().text()), HasSubstr("have already joined"));
}

// Relays bytes between a store and one client at a time. The first connection is closed once
// |limit| bytes from the store have passed.
class BreakingProxy {
 public:
  BreakingProxy(const Address& store, size_t limit)
      : store_(store), limit_(limit), listener_(listen_on(loopback(), 64).value()), thread_([this] {
          while (!stop_) {
            const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
            if (client.valid()) {
              serve(client.get());
            } else {
              usleep(1000);
            }
          }
        }) {}
  ~BreakingProxy() {
    stop_ = true;
    thread_.join();
  }
  Address address() const { return bound_address(listener_.get()).value(); }
  int connections() const { return connections_; }

 private:
  void serve(int client) {
    size_t left = connections_++ == 0 ? limit_ : SIZE_MAX;
    const UniqueFd store(::socket(store_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(store.get(), store_.get(), store_.length()), 0);
    std::array<char, 4096> chunk;
    while (!stop_ && left > 0) {
      pollfd polled[] = {{.fd = client, .events = POLLIN, .revents = 0},
                         {.fd = store.get(), .events = POLLIN, .revents = 0}};
      if (::poll(polled, 2, 10) <= 0) continue;
      const bool down = polled[1].revents != 0;
      const ssize_t got = ::recv(polled[down ? 1 : 0].fd, chunk.data(),
                                 down ? std::min(left, chunk.size()) : chunk.size(), 0);
      if (got <= 0) return;
      EXPECT_EQ(
          ::send(polled[down ? 0 : 1].fd, chunk.data(), static_cast<size_t>(got), MSG_NOSIGNAL),
          got);
      if (down) left -= static_cast<size_t>(got);
    }
  }

  const Address store_;
  const size_t limit_;
  UniqueFd listener_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> connections_ = 0;
  std::thread thread_;
};

// The limit covers 92 bytes of proof, 24 of greeting, and part of the reply.
TEST_F(StoreTest, TruncatedReplyIsRequestedAgain) {
  ranks_ = 1;
  start();
  BreakingProxy proxy(server_->address(), 92 + 24 + 20'000);
  addresses_ = {proxy.address()};
  const std::vector<std::byte> mine(kMaxStoreValue, std::byte{3});
  StoreClient client(log_, options_with(std::byte{1}, 0));
  const auto values = client.gather("world", 1, mine, in(30));
  ASSERT_TRUE(values.ok()) << values.status().text();
  EXPECT_EQ(values.value(), Values{mine});
  EXPECT_EQ(proxy.connections(), 2);
}

// Another job's store occupies the port, and ends before this job's store starts.
TEST_F(StoreTest, StoreIsFoundAfterAnEarlierStoreWithAnotherSecretEnds) {
  start();
  const Address address = server_->address();
  std::thread late([&] {
    usleep(1'500'000);
    server_.reset();
    usleep(6'500'000);
    auto server = StoreServer::start(
        log_, {.credentials = credentials_of("t"), .hosts = {address}, .ports = {address.port()}});
    ASSERT_TRUE(server.ok()) << server.status().text();
    server_ = std::move(server).value();
  });
  const Result<FoundStore> found = find_store(log_, options(1, "t"), in(30));
  EXPECT_TRUE(found.ok()) << found.status().text();
  late.join();
}

TEST_F(StoreTest, ClientConnectsOverIpv6) {
  start(Address::parse_numeric("::1", 0).value());
  StoreClient client(log_, options(0));
  EXPECT_TRUE(client.put("key", {}, in(5)).ok());
}

class OpenStoreTest : public StoreTest {
 protected:
  OpenStoreTest() { bounds_ = {.sessions = 4, .quiet_ns = 2 * kSecond, .wait_ns = 3 * kSecond}; }

  // Opens connections one by one that prove the key and then stay silent.
  std::vector<StreamSocket> strangers(int count) {
    std::vector<StreamSocket> sockets;
    for (int i = 0; i < count; ++i) {
      Result<FoundStore> socket = find_store(log_, options(1), in(10));
      EXPECT_TRUE(socket.ok()) << socket.status().text();
      if (socket.ok()) sockets.push_back(std::move(socket->socket));
    }
    return sockets;
  }

  static bool ends_within(StreamSocket& socket, uint64_t time_ns) {
    pollfd polled{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (::poll(&polled, 1, static_cast<int>(time_ns / 1'000'000)) != 1) return false;
    char byte = 0;
    return socket.receive(&byte, 1) <= 0;
  }
};

TEST_F(OpenStoreTest, IdleSessionsEndAndNewClientsAreAdmitted) {
  start();
  std::vector<StreamSocket> held = strangers(4);
  for (StreamSocket& socket : held) EXPECT_TRUE(ends_within(socket, 6 * kSecond));
  StoreClient client(log_, options(0));
  EXPECT_TRUE(client.job_key(in(10)).ok());
}

TEST_F(OpenStoreTest, LongestIdleSessionIsEvictedAtTheLimit) {
  bounds_->quiet_ns = kForever;
  start();
  std::vector<StreamSocket> held = strangers(20);
  size_t open = 0;
  for (StreamSocket& socket : held) open += ends_within(socket, 20'000'000) ? 0u : 1u;
  EXPECT_LE(open, 4u);
  StoreClient client(log_, options(0));
  Result<Secret> key = client.job_key(in(1));
  // Young sessions are not evicted, so an honest client may have to retry.
  for (const uint64_t end = in(10); !key.ok() && now_ns() < end; key = client.job_key(in(5))) {
    usleep(50'000);
  }
  EXPECT_TRUE(key.ok()) << key.status().text();
}

// The ranks lose their connections while they compute, and reconnect when needed.
TEST_F(OpenStoreTest, IdleClientReconnectsWhenNeeded) {
  bounds_->quiet_ns = kSecond / 10;
  quiet_ns_ = kSecond / 20;
  start();
  StoreClient client(log_, options(0));
  EXPECT_TRUE(client.connect(in(10)).ok());
  for (int i = 0; i < 2; ++i) {
    usleep(1'500'000);  // the store has checked for idle sessions
    const auto values = client.gather(fmt::format("scope {}", i), 1, {}, in(10));
    EXPECT_TRUE(values.ok()) << values.status().text();
  }
}

// The store ends an idle connection just as the client begins to use it.
TEST_F(OpenStoreTest, RequestOnAClosingConnectionIsSentAgain) {
  bounds_->quiet_ns = kSecond;
  quiet_ns_ = kForever;
  start();
  StoreClient client(log_, options(0));
  EXPECT_TRUE(client.connect(in(10)).ok());
  for (int i = 0; i < 20; ++i) {
    usleep(90'000 + 30'000 * static_cast<useconds_t>(i % 7));
    const auto values = client.gather(fmt::format("scope {}", i), 1, {}, in(10));
    EXPECT_TRUE(values.ok()) << values.status().text();
    if (i % 2 == 0) usleep(900'000);
  }
}

// All ranks of a job reconnect simultaneously after an idle period longer than the store allows.
// Each tries two addresses, so there are temporarily more connections than sessions in the store.
TEST_F(OpenStoreTest, AllRanksReconnectSimultaneouslyAfterAnIdlePeriod) {
  constexpr int kRanks = 300;
  bounds_ = {.sessions = kRanks + 64, .quiet_ns = 2 * kSecond};
  ranks_ = kRanks;
  quiet_ns_ = kSecond / 2;
  more_hosts_ = {Address::parse_numeric("::1", 0).value()};
  start();
  run_ranks(kRanks, [&](int rank) {
    StoreClient client(log_, options_with(std::byte{1}, rank));
    for (int round = 0; round < 2; ++round) {
      const auto values = client.gather(fmt::format("scope {}", round), kRanks, {}, in(40));
      EXPECT_TRUE(values.ok()) << values.status().text();
      if (round == 0) usleep(3'500'000);
    }
  });
}

// Unrelated clients evict an idle client, which reconnects.
TEST_F(OpenStoreTest, EvictedClientReconnects) {
  bounds_->quiet_ns = kForever;
  quiet_ns_ = 100 * kSecond;
  start();
  StoreClient client(log_, options(0));
  EXPECT_TRUE(client.connect(in(10)).ok());
  usleep(1'100'000);  // now the client is idle enough to be evicted
  std::vector<StreamSocket> held = strangers(4);
  usleep(1'100'000);  // and now the unrelated clients are
  const Result<Secret> key = client.job_key(in(10));
  EXPECT_TRUE(key.ok()) << key.status().text();
}

TEST_F(OpenStoreTest, WaitsAreBoundedAndPutsAreRefused) {
  bounds_->wait_ns = kSecond;
  start();
  StoreClient client(log_, options(0));
  EXPECT_EQ(client.put("key", {}, in(10)).code(), Code::kPermissionDenied);
  EXPECT_EQ(client.get("key", in(10)).status().code(), Code::kPermissionDenied);
  const auto values = client.gather("world", 2, {}, in(30));
  ASSERT_FALSE(values.ok());
  EXPECT_THAT(std::string(values.status().text()), HasSubstr("did not join within 1 s"));
}

// The store owes the client a reply.
TEST_F(OpenStoreTest, WaitingClientIsNotTreatedAsIdle) {
  bounds_->quiet_ns = kSecond / 10;
  bounds_->wait_ns = kForever;
  start();
  std::thread waiting([&] {
    StoreClient client(log_, options(0));
    const auto values = client.gather("world", 2, {}, in(30));
    EXPECT_TRUE(values.ok()) << values.status().text();
  });
  usleep(2'200'000);  // the store has checked for idle sessions twice
  StoreClient client(log_, options(1));
  const auto values = client.gather("world", 2, {}, in(30));
  EXPECT_TRUE(values.ok()) << values.status().text();
  waiting.join();
}

TEST_F(StoreTest, StoreListensOnAllHostsAtOnePort) {
  const Address second = Address::parse_numeric("127.0.0.2", 0).value();
  const UniqueFd taken = listen_on(second, 1).value();
  const uint16_t port = bound_address(taken.get())->port();
  const Secret key{};
  auto server = StoreServer::start(log_, {.credentials = credentials_of("s"),
                                          .job_key = key,
                                          .hosts = {loopback(), second},
                                          .ports = {port, 0},
                                          .bounds = {},
                                          .tls = {}});
  ASSERT_TRUE(server.ok()) << server.status().text();
  EXPECT_NE(server.value()->address().port(), port);
  for (const Address& host : {loopback(), second}) {
    addresses_ = {host.with_port(server.value()->address().port())};
    StoreClient client(log_, options(0));
    EXPECT_TRUE(client.put("key", {}, in(5)).ok());
  }
}

// The store holds 256 MiB.
TEST_F(StoreTest, FullStoreRefusesAnOverwriteAndKeepsTheValue) {
  start();
  StoreClient client(log_, options(0));
  const std::vector<std::byte> first = bytes_of("the first value");
  ASSERT_TRUE(client.put("key", first, in(30)).ok());
  const std::vector<std::byte> large(kMaxStoreValue, std::byte{1});
  Status status;
  int kept = 0;
  for (; status.ok() && kept < 5000; ++kept) {
    status = client.put(fmt::format("filling {}", kept), large, in(30));
  }
  EXPECT_EQ(status.code(), Code::kOutOfResources);
  EXPECT_GT(kept, 4000);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.put("key", large, in(30)).code(), Code::kOutOfResources);
    EXPECT_TRUE(client.connected());
    EXPECT_EQ(client.get("key", in(30)).value(), first);
  }
  // A value that needs no additional space is accepted, and visible to other clients.
  const std::vector<std::byte> second = bytes_of("the other value");
  EXPECT_TRUE(client.put("key", second, in(30)).ok());
  StoreClient other(log_, options(1));
  EXPECT_EQ(other.get("key", in(30)).value(), second);
  EXPECT_EQ(other.get("filling 0", in(30)).value(), large);
}

class NoOwner final : public StoreSession::Owner {
 public:
  bool on_request(ClientId /*client*/, const std::string& /*name*/,
                  ConstByteSpan /*body*/) override {
    return true;
  }
  void on_closed(ClientId /*client*/, std::string_view /*why*/) override {}
};

TEST(StoreSessionTest, IdleTimeStartsWhenTheLastByteOfAReplyIsSent) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  StreamSocket peer{UniqueFd(fds[0])};
  NoOwner owner;
  Poller poller = Poller::create().value();
  StoreSession session(owner, poller, 1, StreamSocket(UniqueFd(fds[1])));
  ASSERT_TRUE(session.watch().ok());
  send_request(peer, {.operation = StoreOperation::kJobKey, .key = "", .value = {}});
  poller.wait(5 * kSecond);
  poller.poll();
  EXPECT_EQ(session.quiet_since_ns(), kForever);  // the client is owed a reply
  session.send(encode_success(std::vector<std::byte>(8u << 20)));
  EXPECT_FALSE(session.flushed());
  const uint64_t since = session.quiet_since_ns();
  EXPECT_LE(since, now_ns());
  usleep(10'000);
  poller.poll();
  EXPECT_EQ(session.quiet_since_ns(), since);
  // The client resumes reading.
  std::vector<std::byte> bytes(1u << 20);
  while (peer.receive(bytes.data(), bytes.size()) > 0) {
  }
  poller.poll();
  EXPECT_GT(session.quiet_since_ns(), since);
  EXPECT_NE(session.quiet_since_ns(), kForever);
}

TEST(LastRepliesTest, ReplyIsFoundByItsRankAndRequest) {
  LastReplies replies(100);
  const Frame frame = encode_success(bytes_of("values"));
  replies.keep(1, bytes_of("world"), frame);
  EXPECT_EQ(replies.find(1, bytes_of("world")), frame);
  EXPECT_EQ(replies.find(2, bytes_of("world")), nullptr);
  EXPECT_EQ(replies.find(1, bytes_of("other")), nullptr);
  replies.keep(1, bytes_of("other"), frame);
  EXPECT_EQ(replies.find(1, bytes_of("world")), nullptr);
  EXPECT_EQ(replies.find(1, bytes_of("other")), frame);
  replies.forget(1);
  EXPECT_EQ(replies.find(1, bytes_of("other")), nullptr);
  replies.forget(1);
}

TEST(LastRepliesTest, SharedRepliesCountOnceAndTheirSumIsBounded) {
  LastReplies replies(100);
  const Frame large = encode_success(std::vector<std::byte>(60));
  for (int rank = 0; rank < 10; ++rank) replies.keep(rank, bytes_of("a"), large);
  EXPECT_EQ(replies.find(9, bytes_of("a")), large);
  const Frame other = encode_success(std::vector<std::byte>(60));
  for (int rank = 0; rank < 9; ++rank) {
    replies.keep(rank, bytes_of("b"), other);
    EXPECT_EQ(replies.find(rank, bytes_of("a")), nullptr);
    EXPECT_EQ(replies.find(rank, bytes_of("b")), nullptr);
  }
  // The last rank's arrival frees the space.
  replies.keep(9, bytes_of("b"), other);
  EXPECT_EQ(replies.find(9, bytes_of("b")), other);
}

class CountingSink final : public ReplySink {
 public:
  void on_exchanged(ClientId /*client*/) override {}
  void send_reply(ClientId client, const Frame& frame) override {
    ++count;
    last_client = client;
    Result<ConstByteSpan> reply = decode_reply(ConstByteSpan(*frame).subspan(kFrameHeaderBytes));
    last = reply.status();
    if (reply.ok()) last_value.assign(reply->begin(), reply->end());
  }
  int count = 0;
  ClientId last_client = 0;
  Status last;
  std::vector<std::byte> last_value;
};

// A table with one client that puts and gets, and other clients that wait.
class SmallTableTest : public testing::Test {
 protected:
  Code put(std::string key, std::string_view value) {
    EXPECT_TRUE(table_.handle(
        1, "a",
        {.operation = StoreOperation::kPut, .key = std::move(key), .value = bytes_of(value)}, 0));
    return sink_.last.code();
  }
  std::vector<std::byte> get(std::string key) {
    EXPECT_TRUE(table_.handle(1, "a", request_of(std::move(key)), 0));
    EXPECT_EQ(sink_.last_client, 1u);
    return sink_.last_value;
  }
  static StoreRequest request_of(std::string key) {
    return {
        .operation = StoreOperation::kGet, .timeout_ns = 10, .key = std::move(key), .value = {}};
  }

  CountingSink sink_;
  StoreTable table_{{}, sink_, {.keys = 2, .bytes = 20, .ended = 2}};
};

TEST_F(SmallTableTest, RefusedOverwriteInASmallTableChangesNothing) {
  EXPECT_EQ(put("a", "first"), Code::kOk);
  EXPECT_EQ(put("b", "12345678"), Code::kOk);  // 15 of 20 bytes, including the keys
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(put("a", "12345678901"), Code::kOutOfResources);
    EXPECT_EQ(get("a"), bytes_of("first"));
  }
  // The refusals neither freed nor used any space.
  EXPECT_EQ(put("a", "12345678901"), Code::kOutOfResources);
  EXPECT_EQ(put("a", "1234567890"), Code::kOk);
  EXPECT_EQ(get("a"), bytes_of("1234567890"));
  EXPECT_EQ(put("b", "123456789"), Code::kOutOfResources);
  EXPECT_EQ(get("b"), bytes_of("12345678"));
}

TEST_F(SmallTableTest, OverwriteThatFitsReplacesTheValueAndFreesItsSpace) {
  EXPECT_EQ(put("a", "123456789012345678"), Code::kOk);
  EXPECT_EQ(put("a", "1"), Code::kOk);
  EXPECT_EQ(get("a"), bytes_of("1"));
  EXPECT_EQ(put("b", "12345678901234567"), Code::kOk);
  EXPECT_EQ(put("a", "12"), Code::kOutOfResources);
  EXPECT_EQ(get("a"), bytes_of("1"));
}

TEST_F(SmallTableTest, RefusedValueIsNotDeliveredToAWaitingReader) {
  EXPECT_TRUE(table_.handle(7, "reader", request_of("a"), 0));
  EXPECT_EQ(put("a", "123456789012345678901"), Code::kOutOfResources);
  EXPECT_EQ(sink_.count, 1);  // only the refusal
  EXPECT_EQ(put("a", "kept"), Code::kOk);
  EXPECT_EQ(sink_.count, 3);
  EXPECT_EQ(sink_.last_client, 1u);
  table_.expire(kForever - 1);
  EXPECT_EQ(sink_.count, 3);  // the reader no longer waits
}

TEST(StoreTableTest, RefusesKeysAndValuesBeyondItsLimits) {
  CountingSink sink;
  StoreTable table({}, sink, {.keys = 2, .bytes = 100, .ended = 2});
  const auto put = [&](std::string key, size_t size) {
    EXPECT_TRUE(table.handle(1, "a",
                             {.operation = StoreOperation::kPut,
                              .key = std::move(key),
                              .value = std::vector<std::byte>(size)},
                             0));
    return sink.last.code();
  };
  EXPECT_EQ(put("a", 50), Code::kOk);
  EXPECT_EQ(put("b", 60), Code::kOutOfResources);
  EXPECT_EQ(put("a", 90), Code::kOk);
  EXPECT_EQ(put("a", 10), Code::kOk);
  EXPECT_EQ(put("b", 60), Code::kOk);
  EXPECT_EQ(put("c", 1), Code::kOutOfResources);
  EXPECT_TRUE(table.handle(
      2, "b", {.operation = StoreOperation::kGather, .rank = 0, .size = 2, .key = "s", .value = {}},
      0));
  EXPECT_EQ(sink.last.code(), Code::kOutOfResources);
}

StoreRequest gather_of(int rank, int size, std::string scope, size_t bytes = 0) {
  return {.operation = StoreOperation::kGather,
          .rank = rank,
          .size = size,
          .timeout_ns = 10,
          .ranks = size,
          .key = std::move(scope),
          .value = std::vector<std::byte>(bytes)};
}

TEST(StoreTableTest, CompletedGathersTakeNoSpace) {
  CountingSink sink;
  StoreTable table({}, sink, {.keys = 2, .bytes = 100, .ended = 2});
  for (int round = 0; round < 10; ++round) {
    const std::string scope = fmt::format("complete {}", round);
    EXPECT_TRUE(table.handle(1, "a", gather_of(0, 2, scope, 45), 0));
    EXPECT_TRUE(table.handle(2, "b", gather_of(1, 2, scope, 45), 0));
    EXPECT_EQ(sink.last.code(), Code::kOk) << round << sink.last.text();
    // One gather fails, and another gather's client disconnects.
    EXPECT_TRUE(table.handle(1, "a", gather_of(0, 2, fmt::format("late {}", round), 90), 0));
    table.expire(10);
    EXPECT_EQ(sink.last.code(), Code::kBootstrapFailed);
    EXPECT_TRUE(table.handle(3, "c", gather_of(0, 2, fmt::format("left {}", round), 90), 0));
    table.disconnect(3);
  }
}

TEST(StoreTableTest, LatestCompletedGathersAreRemembered) {
  CountingSink sink;
  StoreTable table({}, sink, {.keys = 10, .bytes = 100, .ended = 2});
  for (const char* scope : {"first", "second", "third"}) {
    EXPECT_TRUE(table.handle(1, "a", gather_of(0, 1, scope), 0));
    EXPECT_EQ(sink.last.code(), Code::kOk);
  }
  for (const char* scope : {"second", "third"}) {
    EXPECT_TRUE(table.handle(1, "a", gather_of(0, 1, scope), 0));
    EXPECT_EQ(sink.last.code(), Code::kBootstrapFailed) << scope;
    EXPECT_THAT(std::string(sink.last.text()), HasSubstr("already joined"));
  }
  EXPECT_TRUE(table.handle(1, "a", gather_of(0, 1, "first"), 0));
  EXPECT_EQ(sink.last.code(), Code::kOk);
}

TEST(StoreTableTest, RankMayRejoinAfterLeavingButNotWhileWaiting) {
  CountingSink sink;
  StoreTable table({}, sink);
  EXPECT_TRUE(table.handle(1, "a", gather_of(0, 3, "scope"), 0));
  EXPECT_TRUE(table.handle(2, "b", gather_of(1, 3, "scope"), 0));
  table.disconnect(1);
  EXPECT_TRUE(table.handle(3, "c", gather_of(0, 3, "scope"), 0));
  EXPECT_EQ(sink.count, 0);
  EXPECT_TRUE(table.handle(4, "d", gather_of(1, 3, "scope"), 0));
  EXPECT_EQ(sink.count, 3);
  EXPECT_THAT(std::string(sink.last.text()), HasSubstr("rank 1: b and d"));
}

TEST(StoreTableTest, ClientMayRetryAfterItsGetTimedOut) {
  CountingSink sink;
  StoreTable table({}, sink);
  const StoreRequest get{
      .operation = StoreOperation::kGet, .timeout_ns = 10, .key = "k", .value = {}};
  EXPECT_TRUE(table.handle(1, "a", get, 100));
  table.expire(110);
  EXPECT_EQ(sink.last.code(), Code::kTimedOut);
  EXPECT_TRUE(table.handle(1, "a", get, 120));
  EXPECT_EQ(sink.count, 1);
  EXPECT_TRUE(table.handle(
      2, "b", {.operation = StoreOperation::kPut, .key = "k", .value = bytes_of("v")}, 121));
  EXPECT_EQ(sink.count, 3);  // one reply to each
}

TEST(StoreTableTest, SecondRequestWhileWaitingIsRefused) {
  CountingSink sink;
  StoreTable table({}, sink);
  const StoreRequest get{
      .operation = StoreOperation::kGet, .timeout_ns = 10, .key = "k", .value = {}};
  EXPECT_TRUE(table.handle(1, "a", get, 100));
  EXPECT_FALSE(table.handle(1, "a", get, 100));
  EXPECT_EQ(table.next_timer_ns(), 110u);
  table.expire(109);
  EXPECT_EQ(sink.count, 0);
  table.expire(110);
  EXPECT_EQ(sink.count, 1);
  EXPECT_EQ(table.next_timer_ns(), kForever);
  table.disconnect(1);
}

TEST(StoreTableTest, MissingRanksAreReportedRepeatedlyAndAtTheDeadline) {
  constexpr uint64_t kUnit = StoreTable::kFirstReportNs;
  CountingSink sink;
  StoreTable table({}, sink);
  table.set_hint("; perhaps");
  EXPECT_TRUE(table.handle(1, "a",
                           {.operation = StoreOperation::kGather,
                            .rank = 0,
                            .size = 3,
                            .timeout_ns = 5 * kUnit,
                            .ranks = 3,
                            .key = "world",
                            .value = {}},
                           7));
  EXPECT_EQ(table.next_timer_ns(), kUnit + 7);
  EXPECT_TRUE(table.take_reports(kUnit + 6).empty());
  EXPECT_THAT(
      table.take_reports(kUnit + 7),
      testing::ElementsAre("still waiting for ranks 1-2 of 3 of 'world' after 10 s; perhaps"));
  EXPECT_EQ(table.next_timer_ns(), 2 * kUnit + 7);
  table.note_turned_away(2, "host", Status(Code::kPermissionDenied, "another secret"));
  EXPECT_THAT(
      table.take_reports(2 * kUnit + 7),
      testing::ElementsAre("still waiting for ranks 1-2 of 3 of 'world' after 20 s; host, which "
                           "says that it is rank 2, was turned away: another secret; perhaps"));
  EXPECT_EQ(table.next_timer_ns(), 4 * kUnit + 7);
  table.expire(5 * kUnit + 7);
  EXPECT_THAT(std::string(sink.last.text()), HasSubstr("ranks 1-2 of 3 did not join within 50 s"));
  EXPECT_THAT(std::string(sink.last.text()), HasSubstr("HETCOMM_BOOTSTRAP_TIMEOUT"));
  EXPECT_TRUE(table.take_reports(kForever).empty());
}

// Returns the answer to |rank| in a job of four. The rank asks in |scope| and reports |lost| as
// lost.
Result<std::vector<bool>> ask(SurvivorRounds& rounds, int rank, const std::vector<int>& lost,
                              bool last = false, const std::string& scope = "s") {
  std::vector<bool> ranks(4);
  for (const int other : lost) ranks[static_cast<size_t>(other)] = true;
  const auto left = rounds.ask({.operation = StoreOperation::kSurvivors,
                                .rank = rank,
                                .size = 4,
                                .timeout_ns = last ? uint64_t{0} : uint64_t{1},
                                .key = scope,
                                .value = encode_ranks(ranks)});
  if (!left.ok()) return left.status();
  return decode_ranks(left.value(), 4);
}

TEST(SurvivorRoundsTest, EveryRankGetsTheSameListOfLostRanks) {
  SurvivorRounds rounds;
  const std::vector<bool> open;
  const std::vector<bool> left = {true, false, true, false};
  EXPECT_EQ(ask(rounds, 0, {1}).value(), open);
  EXPECT_EQ(ask(rounds, 0, {1}).value(), open);
  EXPECT_EQ(ask(rounds, 2, {}).value(), open);
  EXPECT_EQ(ask(rounds, 3, {}).value(), (std::vector<bool>{true, false, true, true}));
  // In another round rank 3 takes part and is then lost.
  EXPECT_EQ(ask(rounds, 3, {}, false, "t").value(), open);
  EXPECT_EQ(ask(rounds, 2, {1, 3}, false, "t").value(), open);
  EXPECT_EQ(ask(rounds, 0, {}, false, "t").value(), left);
  // A loss that becomes known later does not change the result.
  EXPECT_EQ(ask(rounds, 2, {0, 1, 3}, true, "t").value(), left);
}

TEST(SurvivorRoundsTest, RankConsideredLostGetsAnError) {
  SurvivorRounds rounds;
  EXPECT_TRUE(ask(rounds, 0, {1}).value().empty());
  for (int i = 0; i < 2; ++i) {
    const Status status = ask(rounds, 1, {}).status();
    EXPECT_EQ(status.code(), Code::kBootstrapFailed);
    EXPECT_THAT(std::string(status.text()), HasSubstr("rank 1 was declared lost"));
  }
  EXPECT_TRUE(ask(rounds, 2, {}).value().empty());
  EXPECT_EQ(ask(rounds, 3, {}).value(), (std::vector<bool>{true, false, true, true}));
}

// A rank's claim about itself does not override the other ranks' knowledge.
TEST(SurvivorRoundsTest, RankCannotDeclareItselfLost) {
  SurvivorRounds rounds;
  EXPECT_TRUE(ask(rounds, 1, {1, 2}).value().empty());
  EXPECT_TRUE(ask(rounds, 0, {}).value().empty());
  EXPECT_EQ(ask(rounds, 3, {}).value(), (std::vector<bool>{true, true, false, true}));
}

TEST(SurvivorRoundsTest, FirstRankToGiveUpEndsTheRoundForAll) {
  SurvivorRounds rounds;
  EXPECT_TRUE(ask(rounds, 0, {1}).value().empty());
  for (const int rank : {2, 0, 3}) {
    const Status status = ask(rounds, rank, {}, rank == 2).status();
    EXPECT_EQ(status.code(), Code::kBootstrapFailed);
    EXPECT_THAT(std::string(status.text()), HasSubstr("not known to be lost: rank 3 of 4"));
  }
}

TEST(SurvivorRoundsTest, RankCountsMustAgreeAndOldRoundsAreDropped) {
  SurvivorRounds rounds;
  EXPECT_TRUE(ask(rounds, 0, {}).value().empty());
  const auto other = rounds.ask({.operation = StoreOperation::kSurvivors,
                                 .rank = 8,
                                 .size = 9,
                                 .key = "s",
                                 .value = std::vector<std::byte>(2)});
  EXPECT_THAT(std::string(other.status().text()), HasSubstr("the job has 9 ranks, others say 4"));
  for (size_t i = 0; i < SurvivorRounds::kRounds; ++i) {
    EXPECT_TRUE(ask(rounds, 1, {}, false, std::to_string(i)).value().empty());
  }
  EXPECT_TRUE(ask(rounds, 1, {2, 3}).value().empty());  // rank 0 is not known to have arrived
}

// A set whose size differs from the number of ranks is malformed.
TEST(StoreProtocolTest, InvalidSetsOfRanksAreRefused) {
  StoreRequest request{.operation = StoreOperation::kSurvivors,
                       .rank = 2,
                       .size = 9,
                       .key = "s",
                       .value = std::vector<std::byte>(2)};
  const auto decode = [&] {
    const std::vector<std::byte> frame = encode_request(request);
    return decode_request(ConstByteSpan(frame).subspan(kFrameHeaderBytes)).ok();
  };
  EXPECT_TRUE(decode());
  request.value.resize(1);
  EXPECT_FALSE(decode());
  request.value.resize(3);
  EXPECT_FALSE(decode());
  std::vector<bool> ranks(9);
  ranks[0] = ranks[7] = ranks[8] = true;
  EXPECT_EQ(decode_ranks(encode_ranks(ranks), 9), ranks);
}

TEST(StoreProtocolTest, InvalidRanksAndSizesAreRefused) {
  const auto decodes = [](int rank, int size) {
    const std::vector<std::byte> frame = encode_request(gather_of(rank, size, "s"));
    return decode_request(ConstByteSpan(frame).subspan(kFrameHeaderBytes)).ok();
  };
  EXPECT_TRUE(decodes(0, 1));
  EXPECT_TRUE(decodes(kMaxStoreRanks - 1, kMaxStoreRanks));
  EXPECT_FALSE(decodes(1, 1));
  EXPECT_FALSE(decodes(-1, 1));
  EXPECT_FALSE(decodes(0, 0));
  EXPECT_FALSE(decodes(0, -1));
  EXPECT_FALSE(decodes(0, kMaxStoreRanks + 1));
}

// Errors are listed by port range, starting with ports that answered and refused.
TEST(StoreFinderTest, ErrorSummarizesConsecutivePortsAsARange) {
  Log log;
  StoreClient::Options options;
  for (uint16_t port = 1; port <= 5; ++port) {  // ports without a listener
    options.addresses.push_back(Address::parse_numeric("127.0.0.1", port).value());
  }
  const Status status = find_store(log, options, now_ns() + kSecond / 5).status();
  EXPECT_THAT(std::string(status.text()), HasSubstr("127.0.0.1:1-5: "));
}

TEST(ScopeTest, RankListsAndScopeNamesAreAbbreviated) {
  EXPECT_EQ(format_ranks({3}, 12), "rank 3 of 12");
  EXPECT_EQ(format_ranks({3, 7, 8, 9}, 12), "ranks 3, 7-9 of 12");
  std::vector<int> even;
  for (int rank = 0; rank < 100; rank += 2) even.push_back(rank);
  EXPECT_THAT(format_ranks(even, 100), HasSubstr("28, 30 and 34 more of 100"));
  ScopeNames names;
  EXPECT_EQ(names.next("world"), "world");
  EXPECT_EQ(names.next("world"), "world#1");
  const std::string a = names.next(std::string(1000, 'a'));
  EXPECT_LT(a.size(), 200u);
  EXPECT_NE(a, names.next(std::string(999, 'a')));
}

}  // namespace
}  // namespace hetcomm
