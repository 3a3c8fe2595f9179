// The load that one rank puts on another by requesting one-sided operations:
//
//   * a rank may start any number; all of them complete, even if both ranks send requests to each
//     other, and the owner never holds more than kMaxAsked records of them;
//   * operations that are cancelled while the owner does nothing keep their places until it has
//     answered, and then return all of them: other operations continue afterwards, even over
//     connections that fail;
//   * gets are answered although sends wait for the other rank's receives;
//   * a peer that exceeds its request limit is disconnected, whether it takes no answers, or takes
//     them without acknowledging, and whatever it requests; one that acknowledges is not;
//   * a peer that exceeds its limit of message requests is disconnected;
//   * a peer that grants more than a transfer keeps ends the transfer;
//   * the receiver is told of sends that an abort has ended, so that it drops their requests.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/core/job/job.h"
#include "src/core/peer/pair.h"
#include "tests/support/core_job.h"
#include "tests/support/core_window.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/played_peer.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kBytes = 256 << 10;
constexpr uint64_t kLarge = 200'000;  // too long for a single message over any transport

// Returns the number of the peer's operations that this rank is handling.
uint64_t count_records(CoreMember& me) {
  const Engine::Baton baton(me.context().engine());
  uint64_t count = 0;
  me.context().engine().pool().for_each([&](const Operation& operation) {
    if (operation.state() == OperationState::kPending &&
        (operation.kind == OperationKind::kAnswer || operation.kind == OperationKind::kAccept)) {
      ++count;
    }
  });
  return count;
}

uint64_t asked(CoreMember& me) {
  const Engine::Baton baton(me.context().engine());
  return me.communicator().job().pair(1 - me.rank()).access().permits().asked();
}
uint64_t held(CoreMember& me) {
  const Engine::Baton baton(me.context().engine());
  return me.communicator().job().pair(1 - me.rank()).access().permits().held();
}

// Starts small and large gets, puts that ask first, and atomics.
class Asker {
 public:
  Asker(CoreMember& me, Window& window) : me_(me), window_(window), buffer_(kLarge) {}
  void get(uint64_t length) { start(OperationKind::kGet, length); }
  void put(uint64_t length) { start(OperationKind::kPut, length); }
  void add() { start(OperationKind::kFetchAdd, 0); }
  void one_of_each() {
    get(8);
    get(kLarge);
    put(8);
    put(kLarge);
    add();
  }
  void cancel_all() {
    const Engine::Baton baton(me_.context().engine());
    for (Operation* operation : running_) {
      if (operation->state() == OperationState::kPending) me_.communicator().cancel(*operation);
    }
  }
  void cancel(size_t index) {
    const Engine::Baton baton(me_.context().engine());
    Operation& operation = *running_[index];
    if (operation.state() == OperationState::kPending) me_.communicator().cancel(operation);
  }
  // Expects that all complete. |may_fail|: some were cancelled.
  void finish(bool may_fail = false) {
    for (Operation* operation : running_) {
      const Status status = me_.finish(operation);
      const bool cancelled =
          status.code() == Code::kCancelled || status.code() == Code::kOutcomeUnknown;
      if (status.ok() || (may_fail && cancelled)) continue;
      ADD_FAILURE() << "rank " << me_.rank() << ": " << status.text();
      break;
    }
    running_.clear();
  }
  size_t running() const { return running_.size(); }

 private:
  void start(OperationKind kind, uint64_t length) {
    const AccessArguments to{
        .remote = &window_.remote(), .offset = 64, .operand = 1, .result = &result_};
    running_.push_back(
        me_.access(kind, to, kind == OperationKind::kFetchAdd ? nullptr : buffer_.data(), length));
  }

  CoreMember& me_;
  Window& window_;
  std::vector<std::byte> buffer_;
  uint64_t result_ = 0;
  std::vector<Operation*> running_;
};

// Expects that both sides' counts of operations return to zero.
void expect_nothing_left(CoreMember& me) {
  const uint64_t deadline = now_ns() + 20'000'000'000;
  while (asked(me) > 0 && now_ns() < deadline) me.context().engine().poke();
  EXPECT_EQ(asked(me), 0u) << "rank " << me.rank();
  expect_ok(barrier(me.communicator(), 20'000'000'000));
  // The other rank acknowledges this rank's answers with its next message, that of the barrier.
  while (held(me) > 0 && now_ns() < deadline) me.context().engine().poke();
  EXPECT_EQ(held(me), 0u) << "rank " << me.rank();
  EXPECT_EQ(count_records(me), 0u) << "rank " << me.rank();
  expect_ok(barrier(me.communicator(), 20'000'000'000));
}

struct AskedCase {
  std::string name;
  bool shm;
  std::string settings;
};
void PrintTo(const AskedCase& test_case, std::ostream* out) { *out << test_case.name; }

Factories plain(bool shm) {
  Factories factories;
  factories.push_back(shm ? make_shm_factory() : make_tcp_factory());
  return factories;
}

class AccessRequests : public ::testing::TestWithParam<AskedCase> {
 protected:
  static void run(const std::function<void(CoreMember&)>& body) {
    run_core_job(
        2, "TIMEOUT=60s;LOG=error;" + GetParam().settings,
        [](int) { return plain(GetParam().shm); }, body);
  }
};

TEST_P(AccessRequests, OwnerHoldsABoundedNumberOfRequests) {
  for (const uint64_t length : {uint64_t{8}, kLarge}) {
    const uint64_t count = length == kLarge ? 4 * kMaxAsked : 100'000;
    std::atomic<bool> done{false};
    run([&](CoreMember& me) {
      Window window(me, kBytes);
      if (me.rank() == 0) {
        Asker asker(me, window);
        for (uint64_t i = 0; i < count; ++i) asker.get(length);
        EXPECT_LE(asked(me), kMaxAsked);
        asker.finish();
        for (uint64_t i = 0; i < count / 4; ++i) length == kLarge ? asker.put(length) : asker.add();
        EXPECT_LE(asked(me), kMaxAsked);
        asker.finish();
        done = true;
      } else {
        uint64_t most = 0;
        while (!done) {
          me.context().engine().poke();
          most = std::max(most, count_records(me));
        }
        EXPECT_LE(most, kMaxAsked);
      }
      expect_nothing_left(me);
    });
  }
}

// Neither rank answers before it has sent all of its requests. Requests that wait at both ranks do
// not block the answers.
TEST_P(AccessRequests, RequestsCompleteIfBothRanksAskEachOther) {
  run([](CoreMember& me) {
    Window window(me, kBytes);
    Asker asker(me, window);
    for (uint64_t i = 0; i < 20'000; ++i) asker.get(8);
    for (uint64_t i = 0; i < 1500; ++i) asker.one_of_each();
    asker.finish();
    expect_nothing_left(me);
  });
}

TEST_P(AccessRequests, CancelledOperationsReturnTheirSlots) {
  std::atomic<bool> asleep{true};
  run([&](CoreMember& me) {
    Window window(me, kBytes);
    expect_ok(barrier(me.communicator(), 20'000'000'000));
    if (me.rank() == 0) {
      Asker asker(me, window);
      for (int round = 0; round < 3; ++round) {
        for (uint64_t i = 0; i < 800; ++i) asker.one_of_each();
        asker.cancel_all();
        asker.finish(true);
        EXPECT_LE(asked(me), kMaxAsked);
      }
      if (GetParam().settings.empty()) {
        EXPECT_GT(asked(me), 0u) << "the owner has not answered";
      }
      for (uint64_t i = 0; i < 800; ++i) asker.one_of_each();
      asleep = false;
      asker.finish();
    } else {
      while (asleep) std::this_thread::yield();
    }
    expect_nothing_left(me);
  });
}

// The answer does not queue behind sends that wait for receives.
TEST_P(AccessRequests, GetsAreAnsweredWhileSendsWait) {
  run([](CoreMember& me) {
    Window window(me, kBytes);
    constexpr uint64_t kSends = kMaxAnnounced + 100;
    std::vector<std::byte> bytes(kLarge);
    std::vector<Operation*> sends;
    if (me.rank() == 1) {
      for (uint64_t i = 0; i < kSends; ++i) {
        sends.push_back(me.post(OperationKind::kSend, 0, i, bytes.data(), kLarge));
      }
    } else {
      Asker asker(me, window);
      for (int i = 0; i < 10; ++i) {
        asker.get(8);
        asker.get(kLarge);
        asker.finish();
      }
      for (uint64_t i = 0; i < kSends; ++i) {
        expect_ok(me.finish(me.post(OperationKind::kReceive, 1, i, bytes.data(), 8)).code() ==
                          Code::kTruncated
                      ? Status()
                      : Status(Code::kInternal, "not truncated"));
      }
    }
    for (Operation* send : sends) expect_ok(me.finish(send));
    expect_nothing_left(me);
  });
}

INSTANTIATE_TEST_SUITE_P(Over, AccessRequests,
                         ::testing::Values(AskedCase{"tcp", false, ""},
                                           AskedCase{"tcp_thread", false, "PROGRESS=thread;"},
                                           AskedCase{"shm", true, ""},
                                           AskedCase{"shm_read", true, "SHM_BULK=read;"}),
                         [](const auto& test) { return test.param.name; });

// In every round, on both ranks, connections fail and operations are cancelled and started.
TEST(AccessRequestFaults, RequestLimitHoldsWhileConnectionsFail) {
  for (const size_t instances : {size_t{1}, size_t{3}}) {
    std::atomic<uint64_t> broken{0};
    run_core_job(
        2, "TIMEOUT=60s;LOG=error;COOL_DOWN=5ms;",
        [&](int rank) {
          FaultPlan plan;
          plan.seed = 40 + instances + static_cast<uint64_t>(rank);
          plan.fail_rail = 0.002;
          plan.lose_reported_put = true;
          plan.refuse = 0.1;
          plan.max_delay = 5;
          plan.max_rail_failures = 40;
          plan.instances = instances;
          Factories factories;
          factories.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
          return factories;
        },
        [&](CoreMember& me) {
          Window window(me, kBytes);
          Asker asker(me, window);
          Random random(mix(instances) + static_cast<uint64_t>(me.rank()));
          for (int round = 0; round < 8; ++round) {
            for (uint64_t i = 0; i < 500; ++i) asker.one_of_each();
            for (uint64_t i = 0; i < 700; ++i) {
              asker.cancel(random.below(asker.running()));
              if (random.chance(0.1)) me.context().engine().poke();
            }
            EXPECT_LE(asked(me), kMaxAsked);
            asker.finish(true);
          }
          expect_nothing_left(me);
          hetcomm_counters_t counters[4];
          const size_t count = me.communicator().counters(1 - me.rank(), 4, counters);
          for (size_t i = 0; i < count; ++i) broken += counters[i].failures;
        });
    EXPECT_GT(broken.load(), 4u);
  }
}

// --- a peer played by the test ----------------------------------------------

class PlayedPeer : public WithPlayedPeer {
 protected:
  AccessBody range(uint64_t length) const { return {registration_of(memory_)->id, 64, length}; }
  AccessBody stale() const { return {registration_of(memory_)->id + (uint64_t{7} << 32), 64, 8}; }
  void ask(MessageKind kind, bool refused) {
    const AccessBody small = refused ? stale() : range(8);
    const AccessBody large = refused ? stale() : range(kLarge);
    const uint64_t tag = ++tags_;
    if (kind == MessageKind::kGet) {
      say({.kind = kind, .tag = tag}, tag % 2 == 0 ? small : large);
    } else if (kind == MessageKind::kAtomic) {
      say({.kind = kind, .tag = tag}, AtomicBody{small, AtomicAction::kAdd, 1, 0});
    } else if (kind == MessageKind::kAnnouncePut) {
      say({.kind = kind, .tag = tag}, AnnouncePutBody{large, 0, {tag, 1, {}}});
    } else {
      struct {
        AccessBody range;
        uint64_t bytes;
      } put{small, 5};
      say({.kind = kind, .tag = tag}, put);
    }
  }
  // The peer sends |count| requests more than allowed, and is disconnected in time.
  void expect_cut_off(MessageKind kind, bool refused) {
    for (uint64_t i = 0; i < kMaxHeld + 100; ++i) ask(kind, refused);
    drive();
    EXPECT_EQ(peer_->delivered, kMaxHeld + 1);
    EXPECT_EQ(failures(), 1u);
    EXPECT_EQ(held(me_), kMaxHeld);
    EXPECT_LE(count_records(me_), kMaxHeld);
  }

  uint64_t tags_ = 0;
};

TEST_F(PlayedPeer, PeerThatReadsNoAnswersIsDisconnected) {
  peer_->takes = false;
  expect_cut_off(MessageKind::kGet, false);
}

TEST_F(PlayedPeer, PeerThatAcknowledgesNoDataIsDisconnected) {
  peer_->acknowledges = false;
  expect_cut_off(MessageKind::kGet, false);
}

TEST_F(PlayedPeer, PeerThatNeverPutsIsDisconnected) {
  expect_cut_off(MessageKind::kAnnouncePut, false);
}

TEST_F(PlayedPeer, PeerThatReadsNoResultsIsDisconnected) {
  peer_->takes = false;
  expect_cut_off(MessageKind::kAtomic, false);
}

TEST_F(PlayedPeer, PeerThatReadsNoRefusalsIsDisconnected) {
  peer_->takes = false;
  const MessageKind kinds[] = {MessageKind::kGet, MessageKind::kAtomic, MessageKind::kAnnouncePut,
                               MessageKind::kPut};
  for (uint64_t i = 0; i < kMaxHeld + 100; ++i) ask(kinds[i % std::size(kinds)], true);
  drive();
  EXPECT_EQ(peer_->delivered, kMaxHeld + 1);
  EXPECT_EQ(failures(), 1u);
}

TEST_F(PlayedPeer, PeerThatAcknowledgesStaysConnected) {
  const MessageKind kinds[] = {MessageKind::kAtomic, MessageKind::kPut, MessageKind::kGet,
                               MessageKind::kAnnouncePut};
  for (uint64_t i = 0; i < 3 * kMaxHeld; ++i) ask(kinds[i % std::size(kinds)], true);
  for (uint64_t i = 0; i < 3 * kMaxHeld; ++i) ask(MessageKind::kAtomic, false);
  drive();
  EXPECT_EQ(peer_->delivered, 6 * kMaxHeld);
  EXPECT_EQ(failures(), 0u);
  EXPECT_LE(held(me_), 1u);
  EXPECT_EQ(count_records(me_), 0u);
}

TEST_F(PlayedPeer, PeerWithTooManyMessageRequestsIsDisconnected) {
  EXPECT_LE(kMaxAnnounced * sizeof(Incoming), uint64_t{2} << 20);
  for (uint64_t i = 0; i < kMaxAnnounced + 100; ++i) {
    say({.kind = MessageKind::kAnnounce, .tag = i, .value = addressee_value(0, kLarge)},
        AnnounceBody{i + 1, 1, {}});
  }
  drive();
  EXPECT_EQ(peer_->delivered, kMaxAnnounced + 1);
  EXPECT_EQ(failures(), 1u);
}

// The receiver keeps granting ranges that the connection does not carry.
TEST_F(PlayedPeer, TooManyGrantsEndTheSend) {
  std::vector<std::byte> bytes(kLarge);
  Operation* send = me_.post(OperationKind::kSend, 1, 0, bytes.data(), kLarge);
  drive();
  ASSERT_EQ(peer_->taken[MessageKind::kAnnounce], 1u);
  const auto grant = [&](int count) {
    for (int i = 0; i < count; ++i) {
      say({.kind = MessageKind::kGrant},
          GrantBody{peer_->last_request.sender_id, 1, 0, 1, kLarge, {{1, 0, 0}}});
    }
    drive();
  };
  grant(64);
  EXPECT_EQ(send->state(), OperationState::kPending);
  grant(64);
  EXPECT_EQ(send->state(), OperationState::kComplete);
  EXPECT_EQ(me_.finish(send).code(), Code::kPeerLost);
}

TEST_F(PlayedPeer, AbortedSendsAreWithdrawnFromTheReceiver) {
  std::vector<std::byte> bytes(kLarge);
  std::vector<Operation*> sends;
  for (uint64_t i = 0; i < 5; ++i) {
    sends.push_back(me_.post(OperationKind::kSend, 1, i, bytes.data(), kLarge));
  }
  drive();
  EXPECT_EQ(peer_->taken[MessageKind::kAnnounce], 5u);
  me_.communicator().abort("the test says so");
  for (Operation* send : sends) EXPECT_EQ(me_.finish(send).code(), Code::kAborted);
  drive();
  EXPECT_EQ(peer_->taken[MessageKind::kWithdraw], 5u);
}

}  // namespace
}  // namespace hetcomm::test
