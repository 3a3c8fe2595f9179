// Silent connections of the tcp transport:
//   - the verdict on a path follows the table in transports/tcp/README.md, row by row;
//   - time without checks, and arriving data, do not count as silence;
//   - a path that is cut in either direction, or while idle, fails its connection within the
//     detection time, and nothing waits afterwards;
//   - a peer that does not read, or is stopped, keeps its connection indefinitely;
//   - connecting fails if no host is reached, and continues if a peer is computing;
//   - a peer's receipt() settles what the kernel alone cannot determine.
#include "transports/tcp/path.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/system/unique_fd.h"
#include "tests/support/certificates.h"
#include "tests/support/cut_sockets.h"
#include "tests/unit/tcp/fixture.h"
#include "transports/tcp/endpoint.h"

namespace hetcomm::test {
namespace {

using tcp::PathAccount;
using tcp::PathSample;
using tcp::PathVerdict;
using tcp::PathWatch;
using ::testing::HasSubstr;
using Waiting = PathSample::Waiting;
using Answer = PathSample::Answer;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kDetectionNs = 3 * kSecondNs;

// --- the table -------------------------------------------------------------------------------

enum class Silence : uint8_t { kShort, kLong, kTooLong };
constexpr std::array kWaiting{Waiting::kNothing, Waiting::kInFlight, Waiting::kWindowClosed};
constexpr std::array kSilence{Silence::kShort, Silence::kLong, Silence::kTooLong};
constexpr std::array<uint32_t, 3> kTries{0, 1, 2};
constexpr std::array kAnswers{Answer::kNone, Answer::kFull, Answer::kRoom};

// An empty field stands for every value.
struct Row {
  std::optional<Waiting> waiting;
  std::optional<Silence> silence;
  std::optional<uint32_t> tries;
  std::optional<Answer> answer;
  PathVerdict verdict;
};

const std::vector<Row>& rows() {
  using enum PathSample::Waiting;
  using enum Silence;
  using enum PathVerdict;
  static const std::vector<Row> all = {
      {kNothing, {}, {}, {}, kAlive},
      {kInFlight, kShort, {}, {}, kAlive},
      {kInFlight, kLong, {}, Answer::kNone, kUnsure},
      {kInFlight, kLong, {}, Answer::kRoom, kUnsure},
      {kInFlight, kLong, {}, Answer::kFull, kNotReading},
      {kInFlight, kTooLong, {}, Answer::kFull, kNotReading},
      {kInFlight, kTooLong, 0, Answer::kNone, kUnsure},
      {kInFlight, kTooLong, 0, Answer::kRoom, kUnsure},
      {kInFlight, kTooLong, 1, Answer::kNone, kUnsure},
      {kInFlight, kTooLong, 1, Answer::kRoom, kGone},
      {kInFlight, kTooLong, 2, Answer::kNone, kGone},
      {kInFlight, kTooLong, 2, Answer::kRoom, kGone},
      {kWindowClosed, kShort, {}, {}, kNotReading},
      {kWindowClosed, kLong, {}, Answer::kNone, kUnsure},
      {kWindowClosed, kLong, {}, Answer::kRoom, kUnsure},
      {kWindowClosed, kLong, {}, Answer::kFull, kNotReading},
      {kWindowClosed, kTooLong, {}, Answer::kFull, kNotReading},
      {kWindowClosed, kTooLong, 0, Answer::kNone, kUnsure},
      {kWindowClosed, kTooLong, 1, Answer::kNone, kUnsure},
      {kWindowClosed, kTooLong, 2, Answer::kNone, kGone},
      {kWindowClosed, kTooLong, {}, Answer::kRoom, kGone},
  };
  return all;
}

// Returns the shortest and the longest allowed time for |silence|.
std::array<uint64_t, 2> bounds(Silence silence) {
  switch (silence) {
    case Silence::kShort:
      return {0, kDetectionNs / 2 - 1};
    case Silence::kLong:
      return {kDetectionNs / 2, kDetectionNs / 4 * 3 - 1};
    case Silence::kTooLong:
      return {kDetectionNs / 4 * 3, 1000 * kDetectionNs};
  }
  return {};
}

TEST(TcpPath, EveryCaseGetsTheVerdictOfTheTable) {
  for (const Waiting waiting : kWaiting) {
    for (const Silence silence : kSilence) {
      for (const uint32_t tries : kTries) {
        for (const Answer answer : kAnswers) {
          std::vector<PathVerdict> expected;
          for (const Row& row : rows()) {
            if (row.waiting.value_or(waiting) == waiting &&
                row.silence.value_or(silence) == silence && row.tries.value_or(tries) == tries &&
                row.answer.value_or(answer) == answer) {
              expected.push_back(row.verdict);
            }
          }
          ASSERT_EQ(expected.size(), 1u) << "every case has one row";
          for (const uint64_t silent_ns : bounds(silence)) {
            for (const uint32_t more : {0u, 200u}) {
              const PathSample sample{waiting, silent_ns, tries == 2 ? tries + more : tries,
                                      answer};
              EXPECT_EQ(tcp::judge(sample, kDetectionNs), expected[0])
                  << "waiting " << int(waiting) << ", silent for " << silent_ns << ", tries "
                  << tries << ", answer " << int(answer);
            }
          }
        }
      }
    }
  }
}

// --- one stream over time --------------------------------------------------------------------

// A stream whose peer has gone silent, checked as often as it should be.
struct Observed {
  PathVerdict look(uint64_t after_ns = PathWatch::interval_ns(kDetectionNs)) {
    now_ns += after_ns;
    account.heard_ns += after_ns;
    return watch.look(account, now_ns, kDetectionNs);
  }
  // Records that the kernel has sent one more probe.
  void ask() {
    ++account.timeouts;
    ++account.retransmitted;
  }
  PathWatch watch;
  PathAccount account{.in_flight = true};
  uint64_t now_ns = 100 * kSecondNs;
};

TEST(TcpPath, SilenceCountsFromTheFirstCheck) {
  Observed path;
  path.account.heard_ns = 1000 * kSecondNs;  // idle for a long time
  for (int look = 0; look < 6; ++look) {
    EXPECT_NE(path.look(), PathVerdict::kGone) << look;
    path.ask();
  }
  EXPECT_EQ(path.look(), PathVerdict::kGone);
}

TEST(TcpPath, ArrivingDataEndsTheSilence) {
  Observed path;
  for (int look = 0; look < 40; ++look) {
    EXPECT_NE(path.look(), PathVerdict::kGone);
    path.ask();
    if (look % 5 == 4) path.account.heard_ns = 0;  // something arrives, but no acknowledgement
  }
  // Earlier retransmissions do not count.
  Observed stale;
  stale.account.timeouts = 9;
  for (int look = 0; look < 40; ++look) EXPECT_NE(stale.look(), PathVerdict::kGone);
}

TEST(TcpPath, SegmentsRetransmittedTogetherCountAsOneTry) {
  Observed path;
  path.look();
  path.account.retransmitted += 10;
  for (int look = 0; look < 40; ++look) EXPECT_NE(path.look(), PathVerdict::kGone);
}

TEST(TcpPath, UnobservedTimeCountsLittle) {
  Observed path;
  path.look();
  path.ask();
  path.ask();
  // This host was suspended, or its user computed.
  EXPECT_EQ(path.look(100 * kSecondNs), PathVerdict::kAlive);
  EXPECT_EQ(path.look(100 * kSecondNs), PathVerdict::kUnsure);
  // A side that rarely checks learns of the cut eventually.
  EXPECT_EQ(path.look(100 * kSecondNs), PathVerdict::kGone);
}

TEST(TcpPath, ClosedWindowKeepsThePathWhileProbesAreAnswered) {
  // Probes are answered, but rarely.
  Observed reading_nothing;
  reading_nothing.account = {.held_back = true, .window_closed = true};
  for (int look = 0; look < 400; ++look) {
    EXPECT_NE(reading_nothing.look(), PathVerdict::kGone);
    reading_nothing.account.probes = look % 60 > 55 ? 1 : 0;
    if (look % 60 == 59) reading_nothing.account.heard_ns = 0;
  }
  // Two consecutive probes are unanswered.
  Observed cut;
  cut.account = {.held_back = true, .window_closed = true, .probes = 2};
  for (int look = 0; look < 6; ++look) EXPECT_NE(cut.look(), PathVerdict::kGone);
  EXPECT_EQ(cut.look(), PathVerdict::kGone);
  // Segments were in flight when the window closed, so they are retransmitted instead of probes.
  Observed shrunk;
  shrunk.account = {.in_flight = true, .window_closed = true, .probes = 9};
  for (int look = 0; look < 10; ++look) EXPECT_NE(shrunk.look(), PathVerdict::kGone);
  shrunk.account.retransmitted += 2;
  EXPECT_EQ(shrunk.look(), PathVerdict::kGone);
}

TEST(TcpPath, OnlyAFullReceiverKeepsAnUnsurePath) {
  Observed path;
  path.account = {.held_back = true, .window_closed = true};
  for (int look = 0; look < 10; ++look) path.look();
  EXPECT_EQ(path.look(), PathVerdict::kUnsure);
  EXPECT_TRUE(path.watch.in_doubt());
  path.watch.answered({.asked_ns = path.now_ns, .full = true});
  EXPECT_EQ(path.look(), PathVerdict::kNotReading);
  EXPECT_FALSE(path.watch.in_doubt());
  // It is asked again while the answer still holds. An old report of a full window means nothing.
  EXPECT_EQ(path.look(), PathVerdict::kNotReading);
  EXPECT_TRUE(path.watch.in_doubt());
  for (int look = 0; look < 2; ++look) path.look();
  EXPECT_EQ(path.look(), PathVerdict::kUnsure);
  path.watch.answered({.asked_ns = path.now_ns, .full = false});
  EXPECT_EQ(path.look(), PathVerdict::kGone);
}

// --- real sockets ----------------------------------------------------------------------------

// A Scenario is one possible fate of a connection from a to b.
struct Scenario {
  explicit Scenario(std::string label, const std::string& settings = "")
      : name(std::move(label)),
        pair("DETECTION_TIME=3s;" + settings),
        listener(port_in(pair.ea().describe())) {}

  void cut_at_a() {
    EXPECT_GT(cut_sockets([&](const SocketEnds& ends) { return ends.peer == listener; }), 0);
    silence_begins();
  }
  void cut_at_b() {
    EXPECT_GT(cut_sockets([&](const SocketEnds& ends) { return ends.local == listener; }), 0);
    silence_begins();
  }
  void send() {
    ASSERT_EQ(pair.ea().send(make_header(++sent), {}), Code::kOk);
    silence_begins();
  }
  // Sends until b's kernel accepts no more.
  void fill() {
    b_reads = false;
    std::vector<std::byte> bytes(60000, std::byte{1});
    const iovec whole = piece(bytes);
    const uint64_t end = now_ns() + kSecondNs / 5;
    while (now_ns() < end) {
      (void)(pair.ea().send(make_header(0), {{&whole, 1}, 0, bytes.size()}) == Code::kOk);
      pair.a.step();
    }
  }
  // Starts a put that b's kernel cannot accept as a whole.
  void start_put() {
    data = pattern(16u << 20, 1);
    memory.resize(data.size());
    local = piece(data);
    target = piece(memory);
    Result<RemoteKey> key =
        pair.eb().abilities().exposer->expose({&target, 1}, Access::kPutTarget, 1);
    ASSERT_TRUE(key.ok());
    bulk = {.local = {{&local, 1}, 0, data.size()}, .key = *key};
    ASSERT_EQ(pair.ea().abilities().puts->put(bulk), Code::kOk);
    ASSERT_TRUE(pair.run([&] { return memory[1000] == data[1000] && memory[2000] == data[2000]; }));
  }
  void silence_begins() {
    silent_since_ns = now_ns();
    last_step_ns = silent_since_ns;
    unwatched_ns = 0;
  }
  void step() {
    constexpr uint64_t kStallNs = kSecondNs / 10;
    const uint64_t since_last_ns = now_ns() - last_step_ns;
    if (failed_ns == 0 && since_last_ns > kStallNs) unwatched_ns += since_last_ns;
    last_step_ns += since_last_ns;
    pair.a.step_or_sleep(100'000);
    if (b_reads) pair.b.step();
    if (pair.ra().failures > 0 && failed_ns == 0) failed_ns = now_ns();
  }
  void expect_failed_in_time() {
    SCOPED_TRACE(name);
    ASSERT_EQ(pair.ra().failures, 1);
    EXPECT_THAT(std::string(pair.ra().failure.text()), HasSubstr("the path is gone"));
    EXPECT_LT(failed_ns - silent_since_ns - unwatched_ns, kDetectionNs);
    EXPECT_GT(failed_ns - silent_since_ns, kDetectionNs / 2);
  }
  void expect_whole() {
    SCOPED_TRACE(name);
    EXPECT_EQ(pair.ra().failures, 0) << pair.ra().failure.text();
    EXPECT_EQ(pair.rb().failures, 0) << pair.rb().failure.text();
  }

  const std::string name;
  Pair pair;
  const uint16_t listener;
  bool b_reads = true;
  uint64_t sent = 0;
  uint64_t silent_since_ns = 0;
  uint64_t last_step_ns = 0;
  uint64_t unwatched_ns = 0;  // total time without a check, on a busy machine
  uint64_t failed_ns = 0;
  std::vector<std::byte> data;
  std::vector<std::byte> memory;
  iovec local{};
  iovec target{};
  Bulk bulk;
};

// The kernel can be told a limit since Linux 6.15: TCP_RTO_MAX_MS.
bool probes_can_be_bounded() {
  int limit_ms = 0;
  socklen_t length = sizeof(limit_ms);
  const UniqueFd any(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return getsockopt(any.get(), IPPROTO_TCP, 44, &limit_ms, &length) == 0;
}

// The scenarios run concurrently, because each of them takes the detection time.
TEST(TcpPath, CutConnectionsFailInTimeButSilentPeersDoNot) {
  const Certificates files;
  Scenario idle("cut both ways while idle");
  Scenario both("cut both ways");
  Scenario secret("cut both ways, with TLS", files.settings());
  Scenario acks("what the peer sends is lost");
  Scenario data("what the peer should get is lost");
  Scenario put("cut while a put is under way");
  Scenario full("cut while the window is closed");
  Scenario not_reading("the peer does not read");
  Scenario not_reading_secret("the peer does not read, with TLS", files.settings());
  Scenario quiet("nothing is sent");
  Scenario busy("messages come and go");
  const std::vector<Scenario*> used = {&both, &secret, &acks, &data};
  std::vector<Scenario*> all = {&idle,  &put, &full, &not_reading, &not_reading_secret,
                                &quiet, &busy};
  all.insert(all.end(), used.begin(), used.end());

  idle.cut_at_a();
  idle.cut_at_b();
  for (Scenario* each : used) {
    each->send();
    ASSERT_TRUE(each->pair.run([&] { return each->pair.rb().messages.size() == 1; }));
  }
  for (Scenario* each : {&full, &not_reading, &not_reading_secret}) each->fill();
  // A connection that is cut later has been idle until then.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  put.start_put();
  put.cut_at_a();
  put.cut_at_b();
  for (Scenario* each : {&both, &secret, &acks, &full}) each->cut_at_a();
  for (Scenario* each : {&both, &secret, &data}) each->cut_at_b();
  for (Scenario* each : {&idle, &both, &secret, &acks, &data}) each->send();
  const uint64_t end = now_ns() + kDetectionNs * 9 / 4;
  uint64_t next_message = 0;
  while (now_ns() < end) {
    for (Scenario* each : all) each->step();
    if (now_ns() < next_message) continue;
    next_message = now_ns() + 50'000'000;
    busy.send();
  }
  for (Scenario* each : {&idle, &both, &secret, &acks, &data, &put}) each->expect_failed_in_time();
  if (probes_can_be_bounded()) full.expect_failed_in_time();
  for (Scenario* each : {&not_reading, &not_reading_secret, &quiet, &busy}) each->expect_whole();
  EXPECT_TRUE(put.pair.ra().completed.empty());
  EXPECT_GT(busy.pair.rb().messages.size(), 50u);
  // The held-back messages arrive when it reads again.
  for (Scenario* each : {&not_reading, &not_reading_secret}) {
    each->b_reads = true;
    ASSERT_TRUE(each->pair.run([&] { return each->pair.ea().flushed(); }));
    each->send();
    ASSERT_TRUE(each->pair.run([&] {
      const auto& messages = each->pair.rb().messages;
      return !messages.empty() && messages.back().number == each->sent;
    }));
  }
}

// The kernel alone could not tell: packets of b's kernel do not arrive, and b's window was closed
// before.
TEST(TcpPath, CutPathFailsOnlyIfThePeerReportsThatItReads) {
  Scenario full("the peer does not read");
  Scenario reading("the peer reads");
  std::vector<Scenario*> all = {&full, &reading};
  for (Scenario* each : all) {
    each->fill();
    each->cut_at_a();
    each->pair.ra().doubt_hook = [each](const StreamId& stream) {
      PathReceipt receipt;
      ASSERT_TRUE(each->pair.b.transport->abilities().receipts->receipt(0, stream, &receipt));
      EXPECT_GT(receipt.received_bytes, 50'000u);
      EXPECT_EQ(receipt.full, !each->b_reads);
      receipt.asked_ns = now_ns();
      each->pair.ea().abilities().doubts->resolve(stream, receipt);
    };
  }
  reading.b_reads = true;
  const uint64_t end = now_ns() + kDetectionNs * 7 / 4;
  while (now_ns() < end) {
    for (Scenario* each : all) each->step();
  }
  full.expect_whole();
  reading.expect_failed_in_time();
  PathReceipt receipt;
  const StreamId unknown{};
  EXPECT_FALSE(full.pair.b.transport->abilities().receipts->receipt(0, unknown, &receipt));
}

TEST(TcpPath, IdleSocketsUseKeepaliveAndNoUserTimeout) {
  Pair pair("DETECTION_TIME=8s");
  const uint16_t listener = port_in(pair.ea().describe());
  // The check is made at the first look after all sent data is acknowledged.
  ASSERT_EQ(pair.ea().send(make_header(1), {}), Code::kOk);
  ASSERT_EQ(pair.eb().send(make_header(1), {}), Code::kOk);
  pair.idle(1'200'000'000);
  int seen = 0;
  for (int fd = 3; fd < kMaxDescriptors; ++fd) {
    const std::optional<SocketEnds> ends = ends_of(fd);
    if (!ends || (ends->local != listener && ends->peer != listener)) continue;
    const auto option = [&](int level, int name) {
      int value = -1;
      socklen_t length = sizeof(value);
      getsockopt(fd, level, name, &value, &length);
      return value;
    };
    EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 24);
    EXPECT_LE(option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT), 8);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
    ++seen;
  }
  EXPECT_EQ(seen, 2);
}

// An unreachable host is given up after the detection time, and a computing peer is waited for,
// although both leave the connecting side without an answer.
TEST(TcpPath, ConnectWaitsForABusyPeerButNotForAnUnreachableHost) {
  const std::string settings = "INTERFACE=lo;FAMILY=ipv4;DETECTION_TIME=2s;BOOTSTRAP_TIMEOUT=60s";
  Node gone(1, 2, settings);
  const std::vector<std::byte> nowhere = gone.transport->contact();
  EXPECT_EQ(cut_listeners(), 1);
  Node computing(1, 2, settings);
  Node a(0, 2, settings);
  Node b(0, 2, settings);
  a.transport->connect({.rank = 1}, nowhere);
  b.transport->connect({.rank = 1}, computing.transport->contact());
  const uint64_t start = now_ns();
  ASSERT_TRUE(Pair::run_nodes(
      {&a, &b}, [&] { return a.outcomes == 1; }, 6 * kSecondNs));
  EXPECT_EQ(a.connect_error.code(), Code::kPeerLost);
  while (now_ns() < start + 5 * kSecondNs) b.step_or_sleep();
  EXPECT_EQ(b.outcomes, 0) << b.connect_error.text();
  EXPECT_TRUE(Pair::run_nodes({&b, &computing}, [&] { return b.endpoints.size() == 1; }));
}

// While connections come and go, any thread reads receipts.
TEST(TcpPath, ReceiptsCanBeReadWhileConnectionsChange) {
  Pair pair;
  std::mutex mutex;
  StreamId stream;
  const auto name_stream = [&] {
    const std::lock_guard lock(mutex);
    stream.connection = static_cast<tcp::TcpEndpoint&>(pair.eb()).name().id;
  };
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> found{0};
  Transport& transport = *pair.b.transport;
  std::thread asker([&] {
    while (!stop) {
      StreamId now;
      {
        const std::lock_guard lock(mutex);
        now = stream;
      }
      PathReceipt receipt;
      if (transport.abilities().receipts->receipt(0, now, &receipt)) ++found;
      // The stream belongs to rank 0, not rank 1.
      EXPECT_FALSE(transport.abilities().receipts->receipt(1, now, &receipt));
    }
  });
  for (int round = 0; round < 50; ++round) {
    name_stream();
    const uint64_t before = found;
    EXPECT_TRUE(pair.run([&] { return found > before; }));
    pair.a.endpoints.clear();
    pair.b.endpoints.clear();
    pair.a.transport->connect({.rank = 1}, pair.b.transport->contact());
    if (!pair.run([&] { return !pair.a.endpoints.empty() && !pair.b.endpoints.empty(); })) break;
  }
  EXPECT_EQ(pair.b.endpoints.size(), 1u);
  stop = true;
  asker.join();
}

// A rank in its own process is stopped, once while its kernel has room, and once while it has none.
TEST(TcpPath, StoppedProcessKeepsItsConnection) {
  std::array<int, 2> pipes{};
  ASSERT_EQ(pipe(pipes.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Node b(1, 2, "INTERFACE=lo;FAMILY=ipv4;DETECTION_TIME=2s");
    const std::vector<std::byte> contact = b.transport->contact();
    if (write(pipes[1], contact.data(), contact.size()) < 0) _exit(1);
    while (true) b.step_or_sleep();
  }
  std::array<std::byte, 1024> contact{};
  const ssize_t size = read(pipes[0], contact.data(), contact.size());
  ASSERT_GT(size, 0);
  Node a(0, 2, "INTERFACE=lo;FAMILY=ipv4;DETECTION_TIME=2s");
  a.transport->connect({.rank = 1}, {contact.data(), static_cast<size_t>(size)});
  ASSERT_TRUE(Pair::run_nodes({&a}, [&] { return !a.endpoints.empty(); }));
  const auto idle = [&](uint64_t time_ns) {
    const uint64_t end = now_ns() + time_ns;
    while (now_ns() < end) a.step_or_sleep();
  };
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  ASSERT_EQ(a.to(1).send(make_header(1), {}), Code::kOk);
  idle(5 * kSecondNs / 2);
  EXPECT_EQ(a.from(1).failures, 0) << a.from(1).failure.text();
  std::vector<std::byte> bytes(60000, std::byte{1});
  const iovec whole = piece(bytes);
  const uint64_t end = now_ns() + kSecondNs / 5;
  while (now_ns() < end) {
    (void)(a.to(1).send(make_header(0), {{&whole, 1}, 0, bytes.size()}) == Code::kOk);
    a.step();
  }
  EXPECT_FALSE(a.to(1).flushed());
  idle(4 * kSecondNs);
  EXPECT_EQ(a.from(1).failures, 0) << a.from(1).failure.text();
  ASSERT_EQ(kill(child, SIGCONT), 0);
  EXPECT_TRUE(Pair::run_nodes({&a}, [&] { return a.to(1).flushed(); }));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  waitpid(child, nullptr, 0);
  close(pipes[0]);
  close(pipes[1]);
}

}  // namespace
}  // namespace hetcomm::test
