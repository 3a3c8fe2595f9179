// One judge alone: the test is its network, its observer and its clock, so each rule is tested at
// its limit (in simulation_test.cc many judges interact).
//
//   * a rank is declared dead once neither it nor a witness has been heard for the detection time,
//     and not earlier; the other ranks are told, unless most are silent, because this rank may then
//     be the one that is cut off;
//   * a refusal or another process at a rank's address proves its death immediately, but only if
//     the rank was proved and has no open connection;
//   * facts about another incarnation are ignored, left overrides dead, and each fact takes effect
//     once;
//   * news is sent to all connected ranks but its sender, in order, and again over each new
//     connection;
//   * letters are sent until accepted and are delivered once; answers are accepted only to
//     questions;
//   * a rank and those that vouch for it report the rank's address;
//   * a connection made for an introduction ends once the answer has arrived, unless it was used
//     otherwise;
//   * a rank without any activity for a detection time costs nothing per tick, and later resumes
//     where it was;
//   * a goodbye is acknowledged; a leaving rank waits for all acknowledgements; idle connections
//     end when both sides agree.
#include "src/liveness/judge.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hetcomm::liveness {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kT = 3000 * kMs;
constexpr Timing kTiming{kT};
constexpr uint64_t kOwnIncarnation = 1000;

struct Sent {
  ConnectionId connection;
  Frame frame;
};

// Rank |rank| of |size|, each on its own host. Its incarnation is 1000 + rank.
class Stage final : private Network, private Observer {
 public:
  Stage(int rank, int size) : judge(setup_of(rank, size), *this, *this), own_rank(rank) {}

  // Opens a new connection with |rank|.
  ConnectionId up(int rank, bool initiated = false) {
    const ConnectionId connection = ++last_connection;
    connections[rank] = connection;
    acknowledged[connection] = 0;
    judge.on_connection_up(connection, rank, initiated, now);
    return connection;
  }
  void down(int rank) { judge.on_connection_down(connections[rank], "it broke", now); }
  void frame(int from, const Frame& what) { judge.on_frame(connections[from], what, now); }
  // Starts the judge and connects all |ranks|.
  void start(const std::vector<int>& ranks) {
    judge.start(now);
    for (const int rank : ranks) up(rank);
    sent.clear();
  }
  // Advances the time tick by tick while the |alive| ranks send signs of life.
  void live(uint64_t duration, const std::vector<int>& alive) {
    for (const uint64_t end = now + duration; now < end;) {
      now += kTiming.tick_ns();
      for (const int rank : alive) frame(rank, Frame{});
      judge.tick(now);
    }
  }
  // Returns the ranks to which frames of |type| were sent since the last call.
  std::vector<int> take(FrameType type, std::vector<Frame>* frames = nullptr) {
    std::vector<int> ranks;
    for (const Sent& one : sent) {
      if (one.frame.type != type) continue;
      ranks.push_back(rank_of(one.connection));
      if (frames != nullptr) frames->push_back(one.frame);
    }
    std::erase_if(sent, [type](const Sent& one) { return one.frame.type == type; });
    return ranks;
  }
  int rank_of(ConnectionId connection) const {
    for (const auto& [rank, id] : connections) {
      if (id == connection) return rank;
    }
    return -1;
  }

  uint64_t now = 1'000'000 * kMs;
  Judge judge;
  const int own_rank;
  std::map<int, ConnectionId> connections;  // each rank's newest connection
  ConnectionId last_connection = 0;
  std::map<ConnectionId, uint64_t> acknowledged;
  std::set<ConnectionId> full;  // connections that accept no frames
  std::vector<Sent> sent;
  std::vector<int> connects;
  std::vector<ConnectionId> closed;
  int ready = 0;
  std::vector<std::pair<int, std::string>> dead;
  std::vector<int> left;
  std::vector<std::string> declared_dead;
  std::vector<Frame> notices;
  std::vector<std::pair<int, Frame>> letters;
  std::vector<int> vouches;
  std::vector<int> suspects;
  std::map<int, std::string> addresses;

 private:
  static Judge::Setup setup_of(int rank, int size) {
    std::vector<uint32_t> hosts(static_cast<size_t>(size));
    std::vector<uint64_t> incarnations(static_cast<size_t>(size));
    for (size_t i = 0; i < hosts.size(); ++i) {
      hosts[i] = static_cast<uint32_t>(i);
      incarnations[i] = kOwnIncarnation + i;
    }
    return {.rank = rank,
            .timing = kTiming,
            .ring = std::make_shared<const Ring>(hosts),
            .incarnations = std::make_shared<const std::vector<uint64_t>>(incarnations)};
  }

  void connect(int rank) override { connects.push_back(rank); }
  bool send(ConnectionId connection, const Frame& frame) override {
    if (full.count(connection) != 0) return false;
    sent.push_back({connection, frame});
    return true;
  }
  void close(ConnectionId connection) override { closed.push_back(connection); }
  std::string addresses_of(int rank) override {
    const auto found = addresses.find(rank);
    return found != addresses.end() ? found->second : std::string();
  }
  void learn_addresses(int rank, const std::string& told) override { addresses[rank] = told; }
  uint64_t last_acknowledged_ns(ConnectionId connection) override {
    return acknowledged[connection];
  }
  void on_ready() override { ++ready; }
  void on_dead(int rank, const std::string& why) override { dead.emplace_back(rank, why); }
  void on_left(int rank) override { left.push_back(rank); }
  void on_declared_dead(const std::string& why) override { declared_dead.push_back(why); }
  void on_notice(const Frame& notice) override { notices.push_back(notice); }
  void on_letter(int from, const Frame& letter) override { letters.emplace_back(from, letter); }
  void on_vouch(int rank) override { vouches.push_back(rank); }
  void on_suspect(int rank) override { suspects.push_back(rank); }
};

Frame fate_of(int rank, Fate fate, uint64_t incarnation = 0) {
  return {.type = FrameType::kFate,
          .code = static_cast<uint8_t>(fate),
          .subject = rank,
          .value = incarnation != 0 ? incarnation : kOwnIncarnation + static_cast<uint64_t>(rank),
          .text = "told"};
}

Frame abort_of(int rank, uint32_t communicator) {
  return {.type = FrameType::kAborted, .subject = rank, .number = communicator, .text = "why"};
}

Frame letter_of(LetterType type, int from, uint32_t number, uint64_t value = 0) {
  return {.type = FrameType::kLetter,
          .code = static_cast<uint8_t>(type),
          .subject = from,
          .number = number,
          .value = value,
          .text = {}};
}

const std::vector<int> kOthers = {1, 2, 3, 4};

// --- the graph ----------------------------------------------------------------------------------

TEST(LivenessJudge, LowerRankConnectsFirstAndHigherRankAfterADelay) {
  Stage stage(2, 5);
  stage.judge.start(stage.now);
  EXPECT_THAT(stage.connects, UnorderedElementsAre(3, 4));
  EXPECT_THAT(stage.judge.missing(), UnorderedElementsAre(0, 1, 3, 4));
  stage.live(kTiming.repair_ns() - kTiming.tick_ns(), {});
  EXPECT_THAT(stage.connects, UnorderedElementsAre(3, 4));
  stage.live(2 * kTiming.tick_ns(), {});
  EXPECT_THAT(stage.connects, UnorderedElementsAre(0, 1, 3, 4));
  for (const int rank : {0, 1, 3}) stage.up(rank, true);
  EXPECT_EQ(stage.ready, 0);
  EXPECT_THAT(stage.judge.missing(), ElementsAre(4));
  stage.up(4);
  EXPECT_EQ(stage.ready, 1);
  stage.down(4);
  stage.up(4);
  EXPECT_EQ(stage.ready, 1);
}

// --- death --------------------------------------------------------------------------------------

TEST(LivenessJudge, SilentRankIsDeclaredDeadAfterTheDetectionTime) {
  Stage stage(0, 5);
  stage.start(kOthers);
  const uint64_t begin = stage.now;
  stage.live(kTiming.suspicion_ns() - kTiming.tick_ns(), {1, 2, 3});
  EXPECT_THAT(stage.take(FrameType::kSuspect), IsEmpty());
  stage.live(2 * kTiming.tick_ns(), {1, 2, 3});
  // The other ranks are asked, and so is the suspected rank: its own answer would suffice.
  EXPECT_THAT(stage.take(FrameType::kSuspect), UnorderedElementsAre(1, 2, 3, 4));
  EXPECT_FALSE(stage.suspects.empty());
  stage.live(kT - kTiming.tick_ns() - (stage.now - begin), {1, 2, 3});
  EXPECT_THAT(stage.dead, IsEmpty());
  EXPECT_EQ(stage.judge.fate(4), Fate::kAlive);
  stage.live(2 * kTiming.tick_ns(), {1, 2, 3});
  ASSERT_EQ(stage.dead.size(), 1u);
  EXPECT_EQ(stage.dead[0].first, 4);
  EXPECT_THAT(stage.dead[0].second, HasSubstr("rank 4 lost (detected by rank 0)"));
  EXPECT_EQ(stage.judge.fate(4), Fate::kDead);
  std::vector<Frame> fates;
  EXPECT_THAT(stage.take(FrameType::kFate, &fates), UnorderedElementsAre(1, 2, 3));
  for (const Frame& frame : fates) {
    EXPECT_EQ(frame.subject, 4);
    EXPECT_EQ(frame.code, static_cast<uint8_t>(Fate::kDead));
    EXPECT_EQ(frame.value, kOwnIncarnation + 4);
    EXPECT_EQ(frame.text, stage.dead[0].second);
  }
  EXPECT_THAT(stage.closed, ElementsAre(stage.connections[4]));
  stage.live(2 * kT, {1, 2, 3});
  EXPECT_EQ(stage.dead.size(), 1u);
}

TEST(LivenessJudge, KernelAcknowledgementIsASignOfLife) {
  Stage stage(0, 5);
  stage.start(kOthers);
  for (int i = 0; i < 60; ++i) {
    stage.acknowledged[stage.connections[4]] = stage.now;
    stage.live(kTiming.tick_ns(), {1, 2, 3});
  }
  EXPECT_THAT(stage.dead, IsEmpty());
  EXPECT_THAT(stage.take(FrameType::kSuspect), IsEmpty());
}

TEST(LivenessJudge, ReceivedDataIsASignOfLife) {
  Stage stage(0, 5);
  stage.start(kOthers);
  for (int i = 0; i < 60; ++i) {
    stage.judge.on_data(4, stage.now);
    stage.live(kTiming.tick_ns(), {1, 2, 3});
  }
  EXPECT_THAT(stage.dead, IsEmpty());
  EXPECT_THAT(stage.take(FrameType::kSuspect), IsEmpty());
}

// Answers every question about rank 4 with a vouch of |age|.
void vouch_through(Stage& stage, uint64_t duration, uint64_t age) {
  for (const uint64_t end = stage.now + duration; stage.now < end;) {
    stage.live(kTiming.tick_ns(), {1, 2, 3});
    std::vector<Frame> questions;
    stage.take(FrameType::kSuspect, &questions);
    if (questions.empty()) continue;
    stage.frame(
        1,
        {.type = FrameType::kVouch, .subject = 4, .number = questions.back().number, .value = age});
  }
}

TEST(LivenessJudge, OnlyAFreshVouchKeepsARankAlive) {
  Stage stage(0, 5);
  stage.start(kOthers);
  vouch_through(stage, 3 * kT, kTiming.suspicion_ns() - 1);
  EXPECT_THAT(stage.dead, IsEmpty());
  vouch_through(stage, 2 * kT, kTiming.suspicion_ns());
  EXPECT_EQ(stage.dead.size(), 1u);
}

// A repeated vouch, or one for an older question, is ignored.
TEST(LivenessJudge, RepeatedVouchIsIgnored) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.live(kT / 2, {1, 2, 3});
  std::vector<Frame> questions;
  stage.take(FrameType::kSuspect, &questions);
  ASSERT_FALSE(questions.empty());
  const Frame vouch{.type = FrameType::kVouch, .subject = 4, .number = questions.back().number};
  stage.frame(1, vouch);
  // The vouch is forwarded.
  EXPECT_THAT(stage.take(FrameType::kVouch), UnorderedElementsAre(2, 3, 4));
  for (const uint64_t end = stage.now + 2 * kT; stage.now < end;) {
    stage.live(kTiming.tick_ns(), {1, 2, 3});
    stage.frame(2, vouch);
    Frame older = vouch;
    older.number -= 1;
    stage.frame(3, older);
  }
  EXPECT_THAT(stage.take(FrameType::kVouch), IsEmpty());
  EXPECT_EQ(stage.dead.size(), 1u);
}

TEST(LivenessJudge, DeathIsPublishedUnlessMostRanksAreSilent) {
  for (const int silent : {2, 3}) {
    Stage stage(0, 5);
    stage.start(kOthers);
    const std::vector<int> alive(kOthers.begin(), kOthers.end() - silent);
    stage.live(kT + 2 * kTiming.tick_ns(), alive);
    const size_t dead_in_time = stage.dead.size();
    stage.live(kT, alive);
    ASSERT_EQ(stage.dead.size(), static_cast<size_t>(silent));
    std::vector<Frame> fates;
    stage.take(FrameType::kFate, &fates);
    // Half of the ranks are silent, so this rank may speak for the others.
    EXPECT_EQ(dead_in_time, silent == 2 ? 2u : 0u);
    EXPECT_EQ(fates.empty(), silent == 3);
    for (const auto& [rank, why] : stage.dead) {
      EXPECT_EQ(why.find("cut off") != std::string::npos, silent == 3) << rank << why;
    }
  }
}

// If only this rank considers another rank dead, a new connection from that rank is told that the
// rank was given up.
TEST(LivenessJudge, RankGivenUpOnlyHereIsNotifiedOnReconnect) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.live(2 * kT, {1});
  ASSERT_EQ(stage.dead.size(), 3u);
  stage.sent.clear();
  stage.up(3);
  std::vector<Frame> letters;
  EXPECT_THAT(stage.take(FrameType::kLetter, &letters), ElementsAre(3));
  EXPECT_EQ(letters.at(0).code, static_cast<uint8_t>(LetterType::kGivenUp));
  EXPECT_THAT(stage.take(FrameType::kFate), IsEmpty());
  EXPECT_EQ(stage.closed.back(), stage.connections[3]);
}

TEST(LivenessJudge, RankDeclaredDeadForAllIsNotifiedOnReconnect) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.live(2 * kT, {1, 2, 3});
  ASSERT_EQ(stage.dead.size(), 1u);
  stage.sent.clear();
  stage.up(4);
  std::vector<Frame> fates;
  EXPECT_THAT(stage.take(FrameType::kFate, &fates), ElementsAre(4));
  EXPECT_EQ(fates.at(0).subject, 4);
  EXPECT_EQ(stage.closed.back(), stage.connections[4]);
  EXPECT_EQ(stage.judge.fate(4), Fate::kDead);
}

TEST(LivenessJudge, PauseOfThisProcessDoesNotCountAsSilence) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.live(kT * 9 / 10, {1, 2, 3});
  stage.now += kTiming.pause_ns() + 1;
  stage.judge.tick(stage.now);
  stage.live(kT * 9 / 10, {1, 2, 3});
  EXPECT_THAT(stage.dead, IsEmpty());
  stage.live(kT / 2, {1, 2, 3});
  EXPECT_EQ(stage.dead.size(), 1u);
}

TEST(LivenessJudge, SlightlyLateTickIsNotAPause) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.live(kT * 9 / 10, {1, 2, 3});
  stage.now += kTiming.pause_ns();
  stage.judge.tick(stage.now);
  EXPECT_EQ(stage.dead.size(), 1u);
}

TEST(LivenessJudge, RefusedConnectProvesDeathOnlyAfterADisconnect) {
  Stage stage(0, 5);
  stage.judge.start(stage.now);
  stage.up(1);
  const auto refuse = [&](int rank) {
    stage.judge.on_connect_failed(rank, ConnectFailure::kRefused, "refused", stage.now);
  };
  refuse(1);  // rank 1 has an open connection
  refuse(2);  // rank 2 was never connected
  EXPECT_THAT(stage.dead, IsEmpty());
  stage.down(1);
  EXPECT_THAT(stage.dead, IsEmpty());
  stage.judge.on_connect_failed(1, ConnectFailure::kOther, "no route", stage.now);
  EXPECT_THAT(stage.dead, IsEmpty());
  refuse(1);
  ASSERT_EQ(stage.dead.size(), 1u);
  EXPECT_EQ(stage.dead[0].first, 1);
  stage.judge.on_connect_failed(2, ConnectFailure::kOtherIncarnation, "another", stage.now);
  EXPECT_EQ(stage.dead.size(), 2u);
}

// A silent listener is a stopped process, but not indefinitely.
TEST(LivenessJudge, SilentReachableRankDiesAfterTwentyDetectionTimes) {
  Stage stage(0, 5);
  stage.start(kOthers);
  uint64_t suspected = 0;
  for (const uint64_t end = stage.now + 30 * kT; stage.now < end && stage.dead.empty();) {
    stage.live(kTiming.tick_ns(), {1, 2, 3});
    stage.judge.on_reached(4, stage.now);
    if (suspected == 0 && !stage.suspects.empty()) suspected = stage.now;
  }
  ASSERT_EQ(stage.dead.size(), 1u);
  EXPECT_GE(stage.now - suspected, 20 * kT);
  EXPECT_LE(stage.now - suspected, 22 * kT);
}

TEST(LivenessJudge, ExitedProcessIsDeclaredDeadUnlessItHasLeft) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.judge.on_exit(3, stage.now);
  ASSERT_EQ(stage.dead.size(), 1u);
  EXPECT_THAT(stage.dead[0].second, HasSubstr("exited"));
  EXPECT_THAT(stage.take(FrameType::kFate), UnorderedElementsAre(1, 2, 4));
  // Rank 2 said goodbye before.
  stage.frame(2, fate_of(2, Fate::kLeft));
  stage.judge.on_exit(2, stage.now);
  EXPECT_EQ(stage.dead.size(), 1u);
}

// --- reports from other ranks --------------------------------------------------------------------

TEST(LivenessJudge, FatesOfAnotherIncarnationAreIgnored) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.frame(1, fate_of(4, Fate::kDead, kOwnIncarnation + 3));
  stage.frame(1, fate_of(4, Fate::kAlive));
  stage.frame(1, fate_of(0, Fate::kDead, kOwnIncarnation + 1));
  stage.frame(1, fate_of(0, Fate::kLeft));
  EXPECT_EQ(stage.judge.fate(4), Fate::kAlive);
  EXPECT_THAT(stage.dead, IsEmpty());
  EXPECT_THAT(stage.declared_dead, IsEmpty());
  EXPECT_THAT(stage.take(FrameType::kFate), IsEmpty());
  stage.frame(1, fate_of(4, Fate::kDead));
  ASSERT_EQ(stage.dead.size(), 1u);
  EXPECT_EQ(stage.dead[0].second, "told");
  EXPECT_THAT(stage.take(FrameType::kFate), UnorderedElementsAre(2, 3));  // not back to the sender
}

TEST(LivenessJudge, LeftOverridesDeadAndIsForwarded) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.frame(1, fate_of(4, Fate::kDead));
  stage.take(FrameType::kFate);
  stage.frame(2, fate_of(4, Fate::kLeft));
  EXPECT_EQ(stage.judge.fate(4), Fate::kLeft);
  EXPECT_THAT(stage.take(FrameType::kFate), UnorderedElementsAre(1, 3));
  stage.frame(3, fate_of(4, Fate::kDead));
  EXPECT_EQ(stage.judge.fate(4), Fate::kLeft);
  EXPECT_EQ(stage.dead.size(), 1u);
  EXPECT_THAT(stage.left, IsEmpty());  // the rank's end was reported once
}

TEST(LivenessJudge, RankDeclaredDeadByAPeerClosesEveryConnection) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.frame(3, fate_of(0, Fate::kDead));
  EXPECT_THAT(stage.declared_dead, ElementsAre("told"));
  EXPECT_THAT(stage.closed, UnorderedElementsAre(stage.connections[1], stage.connections[2],
                                                 stage.connections[3], stage.connections[4]));
  EXPECT_EQ(stage.judge.next_timer_ns(), UINT64_MAX);
  stage.sent.clear();
  stage.frame(2, fate_of(0, Fate::kDead));
  stage.judge.publish({.type = FrameType::kAborted, .number = 1});
  stage.up(2);
  EXPECT_EQ(stage.declared_dead.size(), 1u);
  EXPECT_TRUE(stage.sent.empty());
  EXPECT_EQ(stage.closed.back(), stage.connections[2]);
}

TEST(LivenessJudge, NoticeIsForwardedOnceToAllButItsSender) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.frame(1, abort_of(3, 7));  // the rank need not be a neighbour
  ASSERT_EQ(stage.notices.size(), 1u);
  EXPECT_EQ(stage.notices[0].subject, 3);
  EXPECT_EQ(stage.notices[0].number, 7u);
  std::vector<Frame> frames;
  EXPECT_THAT(stage.take(FrameType::kAborted, &frames), UnorderedElementsAre(2, 3, 4));
  for (const Frame& frame : frames) {
    EXPECT_EQ(frame.subject, 3);
    EXPECT_EQ(frame.number, 7u);
    EXPECT_EQ(frame.text, "why");
  }
  stage.frame(2, abort_of(3, 7));
  EXPECT_EQ(stage.notices.size(), 1u);
  EXPECT_THAT(stage.take(FrameType::kAborted), IsEmpty());
  // A failure of the communicator's collective operations is a separate fact, and is forwarded too.
  Frame failed = abort_of(3, 7);
  failed.type = FrameType::kFailed;
  failed.code = 9;
  stage.frame(2, failed);
  EXPECT_EQ(stage.notices.size(), 2u);
  frames.clear();
  EXPECT_THAT(stage.take(FrameType::kFailed, &frames), UnorderedElementsAre(1, 3, 4));
  EXPECT_EQ(frames.at(0).code, 9);
  // This rank's own abort is sent to all connected ranks, under this rank's name.
  stage.judge.publish(abort_of(3, 8));
  frames.clear();
  EXPECT_THAT(stage.take(FrameType::kAborted, &frames), UnorderedElementsAre(1, 2, 3, 4));
  EXPECT_EQ(frames.at(0).subject, 0);
  EXPECT_EQ(stage.notices.size(), 2u);
}

TEST(LivenessJudge, NewConnectionGetsAllNewsInOrder) {
  Stage stage(0, 6);
  stage.start({1, 2, 4});
  for (uint32_t i = 0; i < 5; ++i) stage.judge.publish(abort_of(0, i));
  stage.frame(2, abort_of(2, 9));
  stage.sent.clear();
  for (const int rank : {5, 1}) {
    stage.up(rank);
    std::vector<Frame> frames;
    EXPECT_EQ(stage.take(FrameType::kAborted, &frames).size(), 6u);
    for (uint32_t i = 0; i < frames.size(); ++i) EXPECT_EQ(frames[i].number, i < 5 ? i : 9);
  }
  // A rank does not receive its own news.
  stage.up(2);
  EXPECT_EQ(stage.take(FrameType::kAborted).size(), 5u);
}

TEST(LivenessJudge, FullConnectionGetsPendingNewsOnceWritable) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.judge.publish(abort_of(0, 1));
  stage.full.insert(stage.connections[3]);
  for (uint32_t i = 2; i < 5; ++i) stage.judge.publish(abort_of(0, i));
  stage.sent.clear();
  stage.full.clear();
  stage.judge.on_writable(stage.connections[3]);
  std::vector<Frame> frames;
  EXPECT_THAT(stage.take(FrameType::kAborted, &frames), ElementsAre(3, 3, 3));
  for (uint32_t i = 0; i < frames.size(); ++i) EXPECT_EQ(frames[i].number, i + 2);
}

// --- questions ----------------------------------------------------------------------------------

Frame question_of(int rank, uint32_t number) {
  return {.type = FrameType::kSuspect, .subject = rank, .number = number};
}

TEST(LivenessJudge, QuestionIsForwardedOnceAndAnsweredByAWitness) {
  Stage stage(0, 5);
  stage.start({1, 2, 3});
  // This rank has never received anything from rank 4.
  stage.frame(1, question_of(4, 1));
  std::vector<Frame> frames;
  EXPECT_THAT(stage.take(FrameType::kSuspect, &frames), UnorderedElementsAre(2, 3));
  EXPECT_EQ(frames.at(0).subject, 4);
  EXPECT_EQ(frames.at(0).number, 1u);
  EXPECT_THAT(stage.take(FrameType::kVouch), IsEmpty());
  stage.frame(2, question_of(4, 1));
  EXPECT_THAT(stage.take(FrameType::kSuspect), IsEmpty());
  // This was the age of rank 3's last sign of life.
  stage.now += kTiming.suspicion_ns() - 1;
  stage.frame(1, question_of(3, 1));
  frames.clear();
  EXPECT_THAT(stage.take(FrameType::kVouch, &frames), UnorderedElementsAre(1, 2, 3));
  EXPECT_EQ(frames.at(0).subject, 3);
  EXPECT_EQ(frames.at(0).number, 1u);
  EXPECT_EQ(frames.at(0).value, kTiming.suspicion_ns() - 1);
  stage.now += 1;
  stage.frame(1, question_of(3, 2));
  EXPECT_THAT(stage.take(FrameType::kVouch), IsEmpty());
  // This rank vouches for itself.
  stage.frame(1, question_of(0, 1));
  frames.clear();
  EXPECT_THAT(stage.take(FrameType::kVouch, &frames), UnorderedElementsAre(1, 2, 3));
  EXPECT_EQ(frames.at(0).value, 0u);
}

TEST(LivenessJudge, StaleQuestionIsAnsweredWithTheLatestNumber) {
  Stage stage(0, 5);
  stage.start({1, 2, 3});
  stage.frame(1, question_of(4, 8));
  stage.sent.clear();
  stage.frame(2, question_of(4, 3));
  std::vector<Frame> frames;
  EXPECT_THAT(stage.take(FrameType::kSuspect, &frames), ElementsAre(2));
  EXPECT_EQ(frames.at(0).number, 8u);
}

// Other ranks keep asking about a rank that this one does not watch, and no rank vouches.
TEST(LivenessJudge, RankIsGivenUpLocallyIfQuestionsStayUnanswered) {
  for (const bool vouched : {false, true}) {
    Stage stage(0, 16);  // watches 1, 15, 4 and 12
    stage.start({1, 15, 4, 12});
    uint32_t number = 0;
    uint64_t died = 0;
    const uint64_t begin = stage.now;
    while (stage.now < begin + 2 * kT) {
      stage.live(kTiming.tick_ns(), {1, 15, 4, 12});
      stage.frame(1, question_of(8, ++number));
      if (vouched) {
        stage.frame(4, {.type = FrameType::kVouch, .subject = 8, .number = number, .value = 0});
      }
      if (died == 0 && !stage.dead.empty()) died = stage.now;
    }
    EXPECT_EQ(stage.dead.size(), vouched ? 0u : 1u);
    if (vouched) continue;
    EXPECT_GE(died - begin, kT / 4 * 3);
    EXPECT_LE(died - begin, kT / 4 * 3 + 3 * kTiming.tick_ns());
    EXPECT_THAT(stage.take(FrameType::kFate), IsEmpty());  // no rank is told
  }
}

TEST(LivenessJudge, InquiryIsAnsweredByOtherRanks) {
  Stage stage(0, 16);
  stage.start({1, 15, 4, 12});
  stage.judge.inquire(4, stage.now);  // rank 4 has an open connection
  EXPECT_THAT(stage.vouches, ElementsAre(4));
  stage.judge.inquire(8, stage.now);
  std::vector<Frame> frames;
  EXPECT_EQ(stage.take(FrameType::kSuspect, &frames).size(), 4u);
  const Frame vouch{.type = FrameType::kVouch, .subject = 8, .number = frames.at(0).number};
  stage.frame(1, vouch);
  EXPECT_THAT(stage.vouches, ElementsAre(4, 8));
  // The inquiry ends after a detection time.
  stage.live(kT, {1, 15, 4, 12});
  Frame late = vouch;
  late.number += 100;
  stage.frame(1, late);
  EXPECT_EQ(stage.vouches.size(), 2u);
}

// --- letters ------------------------------------------------------------------------------------

TEST(LivenessJudge, LetterIsResentUntilAccepted) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.judge.post(2, LetterType::kCall, 5, "note", stage.now);
  std::vector<Frame> frames;
  EXPECT_THAT(stage.take(FrameType::kLetter, &frames), ElementsAre(2));
  EXPECT_EQ(frames.at(0).number, 1u);
  EXPECT_EQ(frames.at(0).value, 5u);
  EXPECT_EQ(frames.at(0).text, "note");
  EXPECT_EQ(frames.at(0).subject, 0);
  // The letter was not accepted, so it is resent after a while, and over a new connection
  // immediately.
  stage.live(kT / 4 + kTiming.tick_ns(), kOthers);
  EXPECT_THAT(stage.take(FrameType::kLetter), ElementsAre(2));
  stage.up(2);
  EXPECT_THAT(stage.take(FrameType::kLetter), ElementsAre(2));
  stage.frame(2, {.type = FrameType::kLetterTaken, .number = 1});
  stage.live(kT, kOthers);
  stage.up(2);
  EXPECT_THAT(stage.take(FrameType::kLetter), IsEmpty());
}

TEST(LivenessJudge, LetterOpensAConnectionIfThereIsNone) {
  Stage stage(0, 16);
  stage.start({1, 15, 4, 12});
  stage.connects.clear();
  stage.judge.post(8, LetterType::kKnock, 1, {}, stage.now);
  EXPECT_THAT(stage.connects, ElementsAre(8));
  stage.up(8, true);
  EXPECT_THAT(stage.take(FrameType::kLetter), ElementsAre(8));
}

TEST(LivenessJudge, RepeatedLetterIsDeliveredOnceAndAcknowledgedAgain) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.frame(2, letter_of(LetterType::kKnock, 2, 1, 40));
  stage.frame(2, letter_of(LetterType::kKnock, 2, 1, 40));
  stage.frame(2, letter_of(LetterType::kCall, 2, 2, 41));
  stage.frame(2, letter_of(LetterType::kCall, 2, 2, 41));
  stage.frame(2, letter_of(LetterType::kKnock, 2, 1, 40));
  ASSERT_EQ(stage.letters.size(), 2u);
  EXPECT_EQ(stage.letters[0].second.value, 40u);
  EXPECT_EQ(stage.letters[1].second.value, 41u);
  std::vector<Frame> taken;
  EXPECT_THAT(stage.take(FrameType::kLetterTaken, &taken), ElementsAre(2, 2, 2, 2, 2));
  EXPECT_EQ(taken[0].number, 1u);
  EXPECT_EQ(taken[2].number, 2u);
  EXPECT_EQ(taken[4].number, 1u);
  // Each sender numbers its letters separately.
  stage.frame(3, letter_of(LetterType::kKnock, 3, 1, 42));
  ASSERT_EQ(stage.letters.size(), 3u);
  EXPECT_EQ(stage.letters[2].first, 3);
  // A letter type unknown to this release is accepted and dropped.
  stage.frame(3, {.type = FrameType::kLetter,
                  .code = static_cast<uint8_t>(kLastLetterType) + 1,
                  .subject = 3,
                  .number = 2});
  stage.frame(3, {.type = FrameType::kLetter, .code = 0, .subject = 3, .number = 3});
  EXPECT_EQ(stage.letters.size(), 3u);
  EXPECT_EQ(stage.take(FrameType::kLetterTaken).size(), 3u);
}

TEST(LivenessJudge, AnswerIsAcceptedOnlyAfterAQuestion) {
  Stage stage(0, 5);
  stage.start(kOthers);
  const Frame answer = letter_of(LetterType::kAnswer, 2, kUncounted, 9);
  stage.frame(2, answer);
  EXPECT_THAT(stage.letters, IsEmpty());
  stage.judge.post(2, LetterType::kQuestion, 9, "a", stage.now);
  stage.judge.post(2, LetterType::kQuestion, 9, "b", stage.now);
  stage.frame(3, answer);  // answers no question
  EXPECT_THAT(stage.letters, IsEmpty());
  for (int i = 0; i < 4; ++i) stage.frame(2, answer);
  EXPECT_EQ(stage.letters.size(), 2u);
  EXPECT_THAT(stage.take(FrameType::kLetterTaken), IsEmpty());
  stage.judge.post(2, LetterType::kQuestion, 9, "c", stage.now);
  stage.frame(2, answer);
  EXPECT_EQ(stage.letters.size(), 3u);
}

// --- ends ---------------------------------------------------------------------------------------

TEST(LivenessJudge, AddressIsLearnedFromTheRankItselfAndFromVouches) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.frame(2, {.type = FrameType::kHere, .subject = 2, .text = "place of 2"});
  EXPECT_EQ(stage.addresses[2], "place of 2");
  // Rank 1 asks about rank 2, which has just sent this rank a sign of life.
  stage.frame(1, {.type = FrameType::kSuspect, .subject = 2, .number = 1});
  std::vector<Frame> vouches;
  EXPECT_THAT(stage.take(FrameType::kVouch, &vouches), testing::Contains(1));
  EXPECT_EQ(vouches.front().text, "place of 2");
  // Rank 3 knows more about rank 4. Its vouch is forwarded with its text.
  stage.frame(3, {.type = FrameType::kVouch, .subject = 4, .number = 1, .text = "place of 4"});
  EXPECT_EQ(stage.addresses[4], "place of 4");
  vouches.clear();
  EXPECT_THAT(stage.take(FrameType::kVouch, &vouches), testing::Not(testing::Contains(3)));
  ASSERT_FALSE(vouches.empty());
  EXPECT_EQ(vouches.front().text, "place of 4");
}

TEST(LivenessJudge, LastConnectFailureIsReported) {
  Stage stage(0, 5);
  stage.judge.start(stage.now);
  EXPECT_EQ(stage.judge.last_failure(1), "");
  stage.judge.on_connect_failed(1, ConnectFailure::kOther, "its certificate is not trusted",
                                stage.now);
  EXPECT_THAT(stage.judge.missing(), testing::Contains(1));
  EXPECT_EQ(stage.judge.last_failure(1), "its certificate is not trusted");
}

// |introduced| is not a neighbour of rank 0 among 16 ranks.
TEST(LivenessJudge, ConnectionForAnIntroductionEndsWithTheAnswer) {
  Stage stage(0, 16);
  stage.start({1, 15, 4, 12});
  stage.judge.post(8, LetterType::kProfile, 1, "mine", stage.now);
  stage.up(8, true);
  EXPECT_THAT(stage.take(FrameType::kLetter), ElementsAre(8));
  EXPECT_THAT(stage.take(FrameType::kRelease), IsEmpty());
  Frame answer = letter_of(LetterType::kProfile, 8, kUncounted);
  stage.frame(8, answer);
  ASSERT_EQ(stage.letters.size(), 1u);
  EXPECT_THAT(stage.take(FrameType::kRelease), ElementsAre(8));
  stage.frame(8, {.type = FrameType::kLetterTaken, .number = 1});
  stage.frame(8, {.type = FrameType::kRelease, .code = 1, .subject = 8});
  EXPECT_THAT(stage.closed, ElementsAre(stage.connections[8]));
  // A neighbour's connection stays.
  stage.judge.post(4, LetterType::kProfile, 1, "mine", stage.now);
  stage.frame(4, letter_of(LetterType::kProfile, 4, kUncounted));
  EXPECT_THAT(stage.take(FrameType::kRelease), IsEmpty());
}

TEST(LivenessJudge, IntroductionKeepsAConnectionWithAnotherUse) {
  Stage stage(0, 16);
  stage.start({1, 15, 4, 12});
  stage.up(8, true);
  stage.judge.post(8, LetterType::kQuestion, 1, "what has come?", stage.now);
  stage.frame(8, {.type = FrameType::kLetterTaken, .number = 1});
  stage.judge.post(8, LetterType::kProfile, 1, "mine", stage.now);
  stage.frame(8, letter_of(LetterType::kProfile, 8, kUncounted));
  stage.frame(8, {.type = FrameType::kLetterTaken, .number = 2});
  EXPECT_THAT(stage.take(FrameType::kRelease), IsEmpty());
  // This rank does not agree to end the connection either.
  stage.frame(8, letter_of(LetterType::kCall, 8, 1));
  stage.frame(8, letter_of(LetterType::kProfile, 8, 2, 1));
  stage.frame(8, {.type = FrameType::kRelease});
  EXPECT_THAT(stage.take(FrameType::kRelease), IsEmpty());
  stage.live(kT / 2, {1, 15, 4, 12, 8});
  EXPECT_THAT(stage.take(FrameType::kRelease), ElementsAre(8));
}

TEST(LivenessJudge, PeerRestsWhenIdleAndKeepsItsLetterNumbers) {
  Stage stage(0, 16);
  const std::vector<int> neighbours = {1, 15, 4, 12};
  stage.start(neighbours);
  EXPECT_EQ(stage.judge.active_peers(), 4U);
  stage.judge.post(8, LetterType::kCall, 0, "first", stage.now);
  stage.up(8, true);
  stage.frame(8, {.type = FrameType::kLetterTaken, .number = 1});
  stage.frame(8, letter_of(LetterType::kKnock, 8, 1));
  stage.live(kT / 2, {1, 15, 4, 12, 8});
  stage.frame(8, {.type = FrameType::kRelease, .code = 1});
  EXPECT_EQ(stage.judge.active_peers(), 5U);
  stage.live(kT - kTiming.tick_ns(), neighbours);
  EXPECT_EQ(stage.judge.active_peers(), 5U);
  stage.live(2 * kTiming.tick_ns(), neighbours);
  EXPECT_EQ(stage.judge.active_peers(), 4U);
  // This rank has received nothing from it for a long time.
  stage.take(FrameType::kVouch);
  stage.frame(1, {.type = FrameType::kSuspect, .subject = 8, .number = 1});
  EXPECT_THAT(stage.take(FrameType::kVouch), IsEmpty());
  // Letters keep their numbers in both directions.
  stage.take(FrameType::kLetter);
  stage.judge.post(8, LetterType::kCall, 0, "second", stage.now);
  EXPECT_EQ(stage.judge.active_peers(), 5U);
  stage.frame(1, {.type = FrameType::kSuspect, .subject = 8, .number = 2});
  EXPECT_THAT(stage.take(FrameType::kVouch), IsEmpty());
  stage.up(8, true);
  std::vector<Frame> letters;
  EXPECT_THAT(stage.take(FrameType::kLetter, &letters), ElementsAre(8));
  EXPECT_EQ(letters.front().number, 2U);
  stage.letters.clear();
  stage.frame(8, letter_of(LetterType::kKnock, 8, 1));
  EXPECT_THAT(stage.letters, IsEmpty());
  stage.frame(8, letter_of(LetterType::kKnock, 8, 2));
  EXPECT_EQ(stage.letters.size(), 1U);
}

TEST(LivenessJudge, RefusalProvesDeathOfARestingRank) {
  Stage stage(0, 16);
  stage.start({1, 15, 4, 12});
  stage.judge.post(8, LetterType::kCall, 0, "first", stage.now);
  stage.up(8, true);
  stage.frame(8, {.type = FrameType::kLetterTaken, .number = 1});
  stage.live(kT / 2, {1, 15, 4, 12, 8});
  stage.frame(8, {.type = FrameType::kRelease, .code = 1});
  stage.live(2 * kT, {1, 15, 4, 12});
  ASSERT_EQ(stage.judge.active_peers(), 4U);
  stage.judge.post(8, LetterType::kCall, 0, "second", stage.now);
  stage.judge.on_connect_failed(8, ConnectFailure::kRefused, "refused", stage.now);
  ASSERT_EQ(stage.dead.size(), 1U);
  EXPECT_EQ(stage.dead.front().first, 8);
}

TEST(LivenessJudge, ConnectAttemptsForLettersAreLimitedAndQueued) {
  Stage stage(0, 100);
  stage.judge.start(stage.now);
  for (const int neighbour : std::exchange(stage.connects, {})) stage.up(neighbour, true);
  for (int rank = 20; rank < 80; ++rank) {
    stage.judge.post(rank, LetterType::kProfile, 1, "mine", stage.now);
  }
  EXPECT_EQ(stage.connects.size(), 16U);
  for (size_t i = 0; i < 60; ++i) {
    ASSERT_LT(i, stage.connects.size());
    const int rank = stage.connects[i];
    if (i % 3 == 0) {
      stage.judge.on_connect_failed(rank, ConnectFailure::kOther, "no way", stage.now);
    } else {
      stage.up(rank, true);
      stage.frame(rank, letter_of(LetterType::kProfile, rank, kUncounted));
    }
    EXPECT_EQ(stage.connects.size(), std::min<size_t>(60, i + 17));
  }
  EXPECT_EQ(std::set<int>(stage.connects.begin(), stage.connects.end()).size(), 60U);
}

TEST(LivenessJudge, RankAskedForAnIntroductionAgreesToReleaseTheConnection) {
  Stage stage(8, 16);
  stage.start({7, 9, 4, 12});
  stage.up(0);
  stage.frame(0, letter_of(LetterType::kProfile, 0, 1, 1));
  EXPECT_THAT(stage.take(FrameType::kRelease), IsEmpty());
  stage.frame(0, {.type = FrameType::kRelease});
  std::vector<Frame> agreed;
  EXPECT_THAT(stage.take(FrameType::kRelease, &agreed), ElementsAre(0));
  EXPECT_EQ(agreed.front().code, 1);
  EXPECT_THAT(stage.closed, ElementsAre(stage.connections[0]));
}

TEST(LivenessJudge, GoodbyeIsAcknowledgedToItsSender) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.frame(1, fate_of(3, Fate::kLeft));  // reported by another rank
  EXPECT_THAT(stage.take(FrameType::kGoodbyeTaken), IsEmpty());
  EXPECT_THAT(stage.left, ElementsAre(3));
  stage.frame(2, fate_of(2, Fate::kLeft));
  EXPECT_THAT(stage.take(FrameType::kGoodbyeTaken), ElementsAre(2));
  EXPECT_THAT(stage.left, ElementsAre(3, 2));
  EXPECT_THAT(stage.dead, IsEmpty());
  EXPECT_EQ(stage.closed.back(), stage.connections[2]);
  // The rank's connection breaks afterwards, and it does not reconnect.
  stage.down(2);
  stage.live(2 * kT, {1, 4});
  EXPECT_THAT(stage.dead, IsEmpty());
  stage.up(2);
  EXPECT_EQ(stage.closed.back(), stage.connections[2]);
}

TEST(LivenessJudge, LeavingRankWaitsForAllAcknowledgements) {
  Stage stage(0, 5);
  stage.start(kOthers);
  EXPECT_FALSE(stage.judge.has_left());
  stage.judge.leave();
  std::vector<Frame> fates;
  EXPECT_THAT(stage.take(FrameType::kFate, &fates), UnorderedElementsAre(1, 2, 3, 4));
  EXPECT_EQ(fates.at(0).subject, 0);
  EXPECT_EQ(fates.at(0).code, static_cast<uint8_t>(Fate::kLeft));
  EXPECT_EQ(fates.at(0).value, kOwnIncarnation);
  for (const int rank : {1, 2, 3}) {
    EXPECT_FALSE(stage.judge.has_left());
    stage.frame(rank, {.type = FrameType::kGoodbyeTaken});
  }
  EXPECT_FALSE(stage.judge.has_left());
  stage.down(4);
  EXPECT_TRUE(stage.judge.has_left());
  // News is no longer reported, but still forwarded.
  stage.frame(1, abort_of(1, 3));
  EXPECT_THAT(stage.notices, IsEmpty());
  EXPECT_THAT(stage.take(FrameType::kAborted), UnorderedElementsAre(2, 3));
}

TEST(LivenessJudge, IdleConnectionEndsIfBothSidesAgree) {
  Stage stage(0, 16);
  stage.start({1, 15, 4, 12});
  stage.judge.post(8, LetterType::kKnock, 1, {}, stage.now);
  stage.up(8, true);
  stage.frame(8, {.type = FrameType::kLetterTaken, .number = 1});
  const std::vector<int> all = {1, 15, 4, 12, 8};
  stage.live(kT / 2 - kTiming.tick_ns(), all);
  EXPECT_THAT(stage.take(FrameType::kRelease), IsEmpty());
  stage.live(2 * kTiming.tick_ns(), all);
  std::vector<Frame> frames;
  EXPECT_THAT(stage.take(FrameType::kRelease, &frames), ElementsAre(8));
  EXPECT_EQ(frames.at(0).code, 0);
  EXPECT_THAT(stage.closed, IsEmpty());
  stage.frame(8, {.type = FrameType::kRelease, .code = 1});
  EXPECT_THAT(stage.closed, ElementsAre(stage.connections[8]));
  stage.live(2 * kT, {1, 15, 4, 12});
  EXPECT_THAT(stage.dead, IsEmpty());  // this rank is not a watcher
}

TEST(LivenessJudge, ReleaseIsAcceptedUnlessTheConnectionIsNeeded) {
  Stage stage(0, 16);
  stage.start({1, 15, 4, 12});
  stage.up(8);
  const std::vector<int> all = {1, 15, 4, 12, 8};
  const Frame release{.type = FrameType::kRelease};
  stage.frame(8, release);  // the connection was just made
  EXPECT_THAT(stage.take(FrameType::kRelease), IsEmpty());
  stage.live(kT, all);
  stage.frame(4, release);  // rank 4 is a neighbour
  EXPECT_THAT(stage.take(FrameType::kRelease), IsEmpty());
  EXPECT_THAT(stage.closed, IsEmpty());
  stage.frame(8, release);
  std::vector<Frame> frames;
  EXPECT_THAT(stage.take(FrameType::kRelease, &frames), ElementsAre(8));
  EXPECT_EQ(frames.at(0).code, 1);
  EXPECT_THAT(stage.closed, ElementsAre(stage.connections[8]));
}

// --- beats --------------------------------------------------------------------------------------

TEST(LivenessJudge, SignOfLifeIsSentEveryTenthOfTheDetectionTime) {
  Stage stage(0, 5);
  stage.start(kOthers);
  stage.live(kT, kOthers);
  for (const int rank : kOthers) {
    const auto beats = std::count_if(stage.sent.begin(), stage.sent.end(), [&](const Sent& one) {
      return one.frame.type == FrameType::kBeat && one.connection == stage.connections[rank];
    });
    EXPECT_EQ(beats, 10) << rank;
  }
  EXPECT_EQ(stage.judge.next_timer_ns(), stage.now + kTiming.tick_ns());
}

}  // namespace
}  // namespace hetcomm::liveness
