// Shared by the transport-level suites: the cases they run over, and the steps that most tests
// take.
//
// A case is a transport, settings that may cripple it, perhaps injected faults, and whether the
// ranks are threads or processes. cases.cc lists them. A suite writes INSTANTIATE_OVER(Suite,
// transport_cases).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/capi/variables.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/pattern.h"
#include "tests/support/transport_pair.h"

namespace hetcomm::test {

struct TransportCase {
  std::string name;       // "shm_tiny_ring"
  std::string transport;  // "shm"
  std::string settings{};
  bool faulty = false;
  FaultPlan faults{};
  Mode mode = Mode::kThreads;
  // A message that send() accepted arrives even if the sender is killed immediately.
  bool accepted_survives = false;

  // Returns whether the case moves less data, so that the suites stay fast. Crippled cases do, and
  // so does rdma, which mostly runs on emulated hardware.
  bool slow() const { return faulty || name != transport || transport == "rdma"; }
  // Returns whether the transport can end a peer's access, or a transfer in flight, only by ending
  // the connection.
  bool fences_by_failing() const { return transport == "rdma"; }
};
inline void PrintTo(const TransportCase& test_case, std::ostream* out) { *out << test_case.name; }

// Return all cases that two ranks can run, in both modes; the cases with processes; and the plain
// transports in both modes.
std::vector<TransportCase> transport_cases();
std::vector<TransportCase> process_cases();
std::vector<TransportCase> plain_cases();
std::unique_ptr<TransportFactory> make_factory(const TransportCase& test_case);
std::string case_name(const ::testing::TestParamInfo<TransportCase>& info);

#define INSTANTIATE_OVER(suite, cases) \
  INSTANTIATE_TEST_SUITE_P(Over, suite, ::testing::ValuesIn((cases)()), ::hetcomm::test::case_name)

// Returns whether HETCOMM_TEST_LONG=1 asks for more rounds of every random test.
bool long_run();
inline int rounds(int quick, int when_long) { return long_run() ? when_long : quick; }

class TransportTest : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    factory_ = make_factory(GetParam());
    Log log;
    auto config = Config::load(kVariables, nullptr, GetParam().settings, log);
    ASSERT_TRUE(config.ok()) << config.status().text();
    if (const Status usable = factory_->probe(config.value()); !usable.ok()) {
      GTEST_SKIP() << GetParam().transport << ": " << usable.text();
    }
  }
  PairOptions options() const {
    return {.factory = *factory_, .settings = GetParam().settings, .mode = GetParam().mode};
  }
  bool processes() const { return GetParam().mode == Mode::kProcesses; }
  // Returns whether connections support gets. Makes a connection to find out.
  bool can_get() const {
    bool can = false;
    PairOptions asking = options();
    asking.mode = Mode::kThreads;
    run_pair(
        asking,
        [&](Side& side) {
          can = side.connect().capabilities().get;
          side.meet();
        },
        [](Side& side) {
          side.connect();
          side.meet();
        });
    return can;
  }
  // Returns the seed of the test's random numbers. It is the same on both sides and in every run.
  static uint64_t seed() { return std::hash<std::string>{}(GetParam().name); }

  std::unique_ptr<TransportFactory> factory_;
};

// Skips a test of gets if connections do not support them.
#define HETCOMM_NEEDS_GET()                                            \
  if (!can_get()) {                                                    \
    GTEST_SKIP() << GetParam().name << ": its connections cannot get"; \
  }                                                                    \
  static_assert(true)

// --- messages: the header says what the payload is -------------------------------------------

struct MessageInfo {
  uint64_t sequence;
  uint64_t size;
  uint64_t seed;
  uint64_t kind;
};
static_assert(sizeof(MessageInfo) == kHeaderBytes);

inline MessageHeader encode(const MessageInfo& info) {
  MessageHeader header;
  std::memcpy(header.data(), &info, sizeof(info));
  return header;
}
inline MessageInfo decode(const MessageHeader& header) {
  MessageInfo info;
  std::memcpy(&info, header.data(), sizeof(info));
  return info;
}

// Repeats the attempt until it is accepted. Expects that on_writable follows each refusal.
template <typename Attempt>
void until_accepted(Rail& rail, Attempt&& attempt) {
  while (true) {
    const int writable = rail.writable;
    const Code code = attempt();
    if (code == Code::kOk) return;
    if (code != Code::kWouldBlock) throw Abandoned(std::string("refused: ") + code_name(code));
    rail.node().until("on_writable", [&] { return rail.writable > writable || rail.failed > 0; });
    if (rail.failed > 0) throw Abandoned("failed: " + std::string(rail.failure.text()));
  }
}

// Like until_accepted(), but the peer of a put or get may have ended it together with the
// connection before it began. In that case await_bulk() sees the end.
template <typename Attempt>
void until_begun(Rail& rail, const TransportCase& test_case, Attempt&& attempt) {
  until_accepted(rail, [&] {
    const Code code = rail.failed > 0 ? Code::kPeerLost : attempt();
    return code == Code::kPeerLost && test_case.fences_by_failing() ? Code::kOk : code;
  });
}

// Sends pattern |seed| as one message in up to three pieces.
inline void send_pattern(Rail& rail, uint64_t sequence, uint64_t size, uint64_t seed,
                         uint64_t kind = 0) {
  std::vector<std::byte> bytes(size);
  fill_pattern(bytes, seed);
  const uint64_t a = size / 3;
  const uint64_t b = size / 2;
  const std::array<iovec, 3> pieces = {
      {{bytes.data(), a}, {bytes.data() + a, b - a}, {bytes.data() + b, size - b}}};
  const ExtentView view{pieces, 0, size};
  until_accepted(rail, [&] { return rail.send(encode({sequence, size, seed, kind}), view); });
}
inline void send_empty(Rail& rail, uint64_t sequence = 0, uint64_t kind = 0) {
  send_pattern(rail, sequence, 0, 0, kind);
}

inline void expect_whole(const MessageHeader& header, ConstByteSpan payload) {
  const MessageInfo info = decode(header);
  ASSERT_EQ(payload.size(), info.size);
  const auto bad = find_mismatch(payload, info.seed);
  EXPECT_FALSE(bad) << "message " << info.sequence << " differs at byte " << *bad;
}

// Sends one message each way to check that the connection works and keeps the order.
inline void expect_usable(Side& side, Rail& rail) {
  constexpr uint64_t kKind = 0x75736162;
  rail.messages.clear();
  side.meet();
  send_pattern(rail, 1, 100, 4711, kKind);
  side.node().until("a message after the event", [&] {
    return !rail.messages.empty() && decode(rail.messages.back().header).kind == kKind;
  });
  expect_whole(rail.messages.back().header, rail.messages.back().payload);
  EXPECT_EQ(rail.failed, 0) << rail.failure.text();
  side.meet();
}

// Both sides call this after an event that may have made a transport end the connection. Expects a
// usable connection or, where allowed, that it failed on both sides and a new one works.
inline void settle(Side& side, const TransportCase& test_case) {
  Rail& rail = side.rail();
  if (!test_case.fences_by_failing()) {
    EXPECT_EQ(rail.failed, 0) << rail.failure.text();
    expect_usable(side, rail);
    return;
  }
  for (int i = 0; i < 30; ++i) side.node().step();
  const bool failed = rail.failed > 0;
  side.post(failed);
  const bool failed_there = side.take<bool>();
  if (!failed && !failed_there) {
    expect_usable(side, rail);
    return;
  }
  side.node().until("on_failed on both sides", [&] { return rail.failed > 0; });
  EXPECT_EQ(rail.failure.code(), Code::kPeerLost);
  side.meet();
  side.connect();
}

// --- bulk ------------------------------------------------------------------------------------

inline Bulk make_bulk(const GuardedMemory& memory, uint64_t offset, uint64_t length,
                      const RemoteKey& key, uint64_t remote_offset) {
  Bulk bulk;
  bulk.local = {memory.extents(), offset, length};
  bulk.key = key;
  bulk.remote_offset = remote_offset;
  return bulk;
}

// Returns how many pieces of memory to expose: at most |most|, and no more than the transport
// accepts.
inline size_t some_pieces(const Rail& rail, uint64_t most, Random& random) {
  return std::min<size_t>(random.between(1, most), rail.capabilities().max_exposed_extents);
}

// Exposes |memory|. Returns the "none" key for a source of gets that the peer cannot get.
inline RemoteKey expose_or_abandon(Rail& rail, const GuardedMemory& memory, Access access,
                                   uint64_t cookie) {
  if (access == Access::kGetSource && !rail.capabilities().get) return {};
  auto key = rail.expose(memory.extents(), access, cookie);
  if (!key.ok()) throw Abandoned("expose: " + std::string(key.status().text()));
  EXPECT_NE(key.value(), RemoteKey{}) << "all-zero means none";
  return key.value();
}

// Waits until |bulk| has completed. Returns its code.
inline Code await_bulk(Rail& rail, const Bulk& bulk) {
  Code result = Code::kPending;
  rail.node().until("on_bulk_complete", [&] {
    for (const Rail::Completion& done : rail.completions) {
      if (done.bulk == &bulk) result = done.code;
    }
    return result != Code::kPending || rail.failed > 0;
  });
  std::erase_if(rail.completions, [&](const Rail::Completion& done) { return done.bulk == &bulk; });
  return result == Code::kPending ? Code::kPeerLost : result;
}

// Makes a random number of steps, sometimes with pauses, so that events occur at any point of a
// transfer.
inline void random_steps(Node& node, Random& random) {
  const uint64_t steps = random.below(random.chance(0.5) ? 6 : 60);
  for (uint64_t i = 0; i < steps; ++i) {
    node.step();
    if (random.chance(0.05)) usleep(static_cast<useconds_t>(random.below(100)));
  }
}

}  // namespace hetcomm::test
