// The parts of a judge, each alone: the test is their network and their clock.
//
//   * Peers: a peer lists its connections with the newest last, is counted while it has any, and
//     keeps its numbers and its last sign of life while it rests;
//   * Fates: each goes forward only, and only those that hold for everybody are news;
//   * Questions: each question and each vouch is passed on once; a vouch answers all questions up
//     to its number;
//   * PostOffice: letters to ranks without a connection take turns; a closed one hands nothing
//     over but acknowledges;
//   * Neighbourhood: it is ready once all neighbours are connected, is repaired after a while, and
//     ends only connections that both ends agree to end.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/liveness/fates.h"
#include "src/liveness/neighbourhood.h"
#include "src/liveness/peers.h"
#include "src/liveness/post_office.h"
#include "src/liveness/questions.h"

namespace hetcomm::liveness {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Timing kTiming{3'000'000'000};
constexpr uint64_t kT = kTiming.detection_ns;
constexpr uint64_t kStart = 100 * kT;

struct Wires final : Network, Observer {
  void connect(int rank) override { connects.push_back(rank); }
  bool send(ConnectionId connection, const Frame& frame) override {
    sent.emplace_back(connection, frame);
    return true;
  }
  void close(ConnectionId connection) override { closed.push_back(connection); }
  uint64_t last_acknowledged_ns(ConnectionId) override { return acknowledged_ns; }
  std::string addresses_of(int) override { return "here"; }
  void learn_addresses(int, const std::string& text) override { learned.push_back(text); }

  void on_ready() override {}
  void on_dead(int, const std::string&) override {}
  void on_left(int) override {}
  void on_declared_dead(const std::string&) override {}
  void on_notice(const Frame&) override {}
  void on_letter(int from, const Frame&) override { letters_from.push_back(from); }
  void on_vouch(int) override {}
  void on_suspect(int) override {}

  // Returns the connections over which frames of |type| were sent since the last call.
  std::vector<ConnectionId> take(FrameType type) {
    std::vector<ConnectionId> ids;
    for (const auto& [id, frame] : sent) {
      if (frame.type == type) ids.push_back(id);
    }
    std::erase_if(sent, [type](const auto& one) { return one.second.type == type; });
    return ids;
  }

  std::vector<int> connects;
  std::vector<std::pair<ConnectionId, Frame>> sent;
  std::vector<ConnectionId> closed;
  std::vector<std::string> learned;
  std::vector<int> letters_from;
  uint64_t acknowledged_ns = 0;
};

struct PartsOfAJudge : ::testing::Test {
  // Opens connection |id| with |rank|.
  Peer& up(ConnectionId id, int rank, bool initiated = false) {
    Peer& one = peers.meet(rank, now);
    peers.attach(id, one, initiated, now);
    return one;
  }
  uint64_t now = kStart;
  Wires wires;
  Peers peers{kTiming, wires};
};

// --- Peers ----------------------------------------------------------------------

using LivenessPeers = PartsOfAJudge;

TEST_F(LivenessPeers, ConnectionsAreListedWithTheNewestLastAndCountedByPeer) {
  Peer& one = up(11, 1);
  up(12, 1, true);
  up(21, 2);
  EXPECT_EQ(peers.connected(), 2);
  EXPECT_EQ(one.newest(), 12U);
  EXPECT_TRUE(peers.joined_by_both(one));
  peers.send_all(Frame{}, 21);
  EXPECT_THAT(wires.take(FrameType::kBeat), ElementsAre(12U));
  peers.detach(12);
  EXPECT_EQ(one.newest(), 11U);
  EXPECT_FALSE(peers.joined_by_both(one));
  EXPECT_EQ(peers.connected(), 2);
  peers.detach(11);
  EXPECT_EQ(peers.connected(), 1);
  EXPECT_EQ(peers.find_connection(11), nullptr);
}

TEST_F(LivenessPeers, ForgottenPeerLeavesNoConnectionAndNoSuspicion) {
  Peer& one = up(11, 1);
  peers.connect(one, now);
  peers.suspect(one, now);
  peers.forget(1);
  EXPECT_THAT(wires.closed, ElementsAre(11U));
  EXPECT_EQ(peers.find(1), nullptr);
  EXPECT_EQ(peers.connected(), 0);
  EXPECT_EQ(peers.connecting(), 0);
  EXPECT_THAT(peers.suspected(), IsEmpty());
}

TEST_F(LivenessPeers, SignOfLifeEndsSuspicion) {
  Peer& one = up(11, 1);
  peers.suspect(one, now);
  EXPECT_THAT(peers.suspected(), ElementsAre(1));
  peers.suspect(one, now + 1);
  EXPECT_EQ(one.suspect_ns, now);
  peers.note_life(one, now + 2);
  EXPECT_FALSE(one.is_suspected());
  EXPECT_THAT(peers.suspected(), IsEmpty());
}

TEST_F(LivenessPeers, RestedPeerResumesItsLetterNumbers) {
  Peer& one = up(11, 1, true);
  one.letters.add(0, LetterType::kKnock, 0, {});
  one.letters.received(7);
  peers.detach(11);
  now += kT;
  peers.let_rest(now);
  EXPECT_NE(peers.find(1), nullptr) << "a letter waits";
  one.letters.taken(1);
  peers.let_rest(now - 1);
  EXPECT_NE(peers.find(1), nullptr) << "it is too early";
  peers.let_rest(now);
  EXPECT_EQ(peers.find(1), nullptr);
  const Peer& again = peers.meet(1, now);
  EXPECT_EQ(again.letters.numbers().sent, 1U);
  EXPECT_EQ(again.letters.numbers().received, 7U);
  EXPECT_EQ(again.life_ns, kStart);
  EXPECT_TRUE(again.proved);
  EXPECT_TRUE(again.reached);
}

TEST_F(LivenessPeers, SilentPeerGetsFewerHeartbeats) {
  up(11, 1);
  up(21, 2).heard_ns = now - kT;
  peers.beat(now);
  EXPECT_THAT(wires.take(FrameType::kBeat), ElementsAre(11U, 21U));
  peers.beat(now + kTiming.beat_ns());
  EXPECT_THAT(wires.take(FrameType::kBeat), ElementsAre(11U));
  peers.beat(now + kT / 4);
  EXPECT_THAT(wires.take(FrameType::kBeat), ElementsAre(11U, 21U));
}

// --- Fates ----------------------------------------------------------------------

struct LivenessFates : ::testing::Test {
  std::shared_ptr<const std::vector<uint64_t>> incarnations =
      std::make_shared<const std::vector<uint64_t>>(std::vector<uint64_t>{50, 51, 52, 53});
  News news;
  Fates fates{incarnations, news};
};

TEST_F(LivenessFates, OnlyADeathForAllRanksIsPublished) {
  fates.die(1, "silent");
  EXPECT_EQ(news.end(), 1U);
  EXPECT_EQ(news.at(0).frame.value, 51U);
  fates.die_here(2, "cut off");
  EXPECT_EQ(news.end(), 1U);
  EXPECT_EQ(fates.verdict(1), "silent");
  EXPECT_EQ(fates.verdict(2), "cut off");
  EXPECT_EQ(fates.verdict(3), "");
  EXPECT_FALSE(fates.is_dead_here(1));
  EXPECT_TRUE(fates.is_dead_here(2));
  EXPECT_EQ(fates.count_alive(), 2);
  EXPECT_EQ(fates.count_dead_here(), 1);
}

TEST_F(LivenessFates, LeftWinsOverDeadInEitherOrder) {
  for (const int rank : {1, 2}) {
    const Fate first = rank == 1 ? Fate::kDead : Fate::kLeft;
    const Fate second = rank == 1 ? Fate::kLeft : Fate::kDead;
    EXPECT_TRUE(fates.learn(fates.frame(rank, first, "told"), 3));
    EXPECT_EQ(fates.of(rank), first);
    EXPECT_TRUE(fates.learn(fates.frame(rank, second, "told"), 3));
    EXPECT_EQ(fates.of(rank), Fate::kLeft);
    EXPECT_FALSE(fates.learn(fates.frame(rank, second, "told"), 3));
  }
}

TEST_F(LivenessFates, FateMustBeFinalAndMatchTheIncarnation) {
  Frame told = fates.frame(1, Fate::kDead, "told");
  EXPECT_TRUE(fates.is_valid(told));
  told.code = static_cast<uint8_t>(Fate::kAlive);
  EXPECT_FALSE(fates.is_valid(told));
  told.code = 9;
  EXPECT_FALSE(fates.is_valid(told));
  told = fates.frame(1, Fate::kLeft, {});
  told.value = 50;
  EXPECT_FALSE(fates.is_valid(told));
}

// --- Questions ------------------------------------------------------------------

// Rank 0 is connected to ranks 1, 2 and 3.
struct LivenessQuestions : PartsOfAJudge {
  LivenessQuestions() {
    for (const int rank : {1, 2, 3}) up(static_cast<ConnectionId>(10 * rank), rank);
  }
  static Frame asked(int rank, uint32_t number) {
    return {.type = FrameType::kSuspect, .subject = rank, .number = number};
  }
  static Frame vouch(int rank, uint32_t number, uint64_t age = 0) {
    return {.type = FrameType::kVouch, .subject = rank, .number = number, .value = age};
  }
  Questions questions{0, kTiming, wires, peers};
};

TEST_F(LivenessQuestions, EachQuestionIsForwardedOnce) {
  questions.question(asked(9, 1), 10, now);
  EXPECT_THAT(wires.take(FrameType::kSuspect), ElementsAre(20U, 30U));
  questions.question(asked(9, 1), 20, now);
  EXPECT_THAT(wires.take(FrameType::kSuspect), IsEmpty());
  questions.ask(peers.meet(9, now), now);
  ASSERT_EQ(wires.sent.size(), 3U);
  EXPECT_EQ(wires.sent[0].second.number, 2U);
}

TEST_F(LivenessQuestions, RankThatRecentlyHeardASubjectVouchesForIt) {
  questions.question(asked(3, 1), 10, now);
  EXPECT_THAT(wires.take(FrameType::kVouch), ElementsAre(10U, 20U, 30U));
  now += kTiming.suspicion_ns();
  questions.question(asked(3, 2), 10, now);
  EXPECT_THAT(wires.take(FrameType::kVouch), IsEmpty());
  wires.acknowledged_ns = now;
  questions.question(asked(3, 3), 10, now);
  EXPECT_THAT(wires.take(FrameType::kVouch), ElementsAre(10U, 20U, 30U));
  questions.question(asked(0, 1), 10, now);
  EXPECT_THAT(wires.take(FrameType::kVouch), ElementsAre(10U, 20U, 30U)) << "about itself";
}

TEST_F(LivenessQuestions, VouchIsForwardedOnceAndAnswersAllEarlierQuestions) {
  questions.question(asked(9, 1), 10, now);
  questions.question(asked(9, 2), 10, now);
  EXPECT_THAT(questions.unanswered(0, now), ElementsAre(9));
  EXPECT_FALSE(questions.answer(vouch(9, 2), 20, now)) << "nobody here inquires";
  EXPECT_THAT(wires.take(FrameType::kVouch), ElementsAre(10U, 30U));
  EXPECT_THAT(questions.unanswered(0, now), IsEmpty());
  questions.answer(vouch(9, 1), 30, now);
  questions.answer(vouch(9, 2), 30, now);
  EXPECT_THAT(wires.take(FrameType::kVouch), IsEmpty());
}

TEST_F(LivenessQuestions, RankIsListedUnansweredOnlyAfterRepeatedQuestions) {
  questions.question(asked(9, 1), 10, now);
  EXPECT_THAT(questions.unanswered(kT, now + kT), IsEmpty()) << "nobody asks any more";
  questions.start_anew();
  const uint64_t begin = now;
  for (uint32_t number = 2; now < begin + kT; ++number) {
    now += kTiming.beat_ns();
    questions.question(asked(9, number), 10, now);
  }
  EXPECT_THAT(questions.unanswered(kT - kTiming.beat_ns(), now), ElementsAre(9));
  EXPECT_THAT(questions.unanswered(kT, now), IsEmpty());
  questions.forget(9);
  EXPECT_THAT(questions.unanswered(0, now), IsEmpty());
}

TEST_F(LivenessQuestions, InquiryLastsForTheDetectionTime) {
  EXPECT_TRUE(questions.inquire(*peers.find(1), now)) << "it is connected";
  EXPECT_THAT(wires.take(FrameType::kSuspect), IsEmpty());
  Peer& far = peers.meet(9, now);
  EXPECT_FALSE(questions.inquire(far, now));
  EXPECT_THAT(wires.take(FrameType::kSuspect), ElementsAre(10U, 20U, 30U));
  EXPECT_FALSE(questions.answer(vouch(9, 1, kTiming.suspicion_ns()), 10, now)) << "it is old";
  EXPECT_TRUE(questions.answer(vouch(9, 2), 10, now + kT - 1));
  EXPECT_EQ(far.life_ns, now + kT - 1);
  EXPECT_FALSE(questions.answer(vouch(9, 3), 10, now + kT));
}

// --- PostOffice -----------------------------------------------------------------

struct LivenessPostOffice : PartsOfAJudge {
  void post(int rank) { office.post(peers.meet(rank, now), LetterType::kKnock, 0, {}, now); }
  static Frame letter(LetterType type, uint32_t number) {
    return {.type = FrameType::kLetter,
            .code = static_cast<uint8_t>(type),
            .subject = 1,
            .number = number};
  }
  PostOffice office{0, kTiming, wires, wires, peers};
};

TEST_F(LivenessPostOffice, SixteenConnectAttemptsMayRunAtOnce) {
  for (int rank = 1; rank <= 20; ++rank) post(rank);
  EXPECT_EQ(wires.connects.size(), 16U);
  office.send_next(now);
  EXPECT_EQ(wires.connects.size(), 16U) << "none has ended";
  peers.attempt_ended(*peers.find(1));
  office.send_next(now);
  ASSERT_EQ(wires.connects.size(), 17U);
  EXPECT_GT(wires.connects.back(), 16);
}

TEST_F(LivenessPostOffice, RepeatedLetterIsDeliveredOnceAndAcknowledgedEachTime) {
  Peer& one = up(11, 1);
  office.take(letter(LetterType::kKnock, 1), 11, one, now);
  office.take(letter(LetterType::kKnock, 1), 11, one, now);
  EXPECT_THAT(wires.letters_from, ElementsAre(1));
  EXPECT_THAT(wires.take(FrameType::kLetterTaken), ElementsAre(11U, 11U));
}

TEST_F(LivenessPostOffice, AnswerIsDeliveredOnlyIfAQuestionIsPending) {
  Peer& one = up(11, 1);
  office.take(letter(LetterType::kAnswer, 1), 11, one, now);
  EXPECT_THAT(wires.letters_from, IsEmpty());
  office.post(one, LetterType::kQuestion, 0, "?", now);
  office.take(letter(LetterType::kAnswer, 1), 11, one, now);
  office.take(letter(LetterType::kAnswer, 2), 11, one, now);
  EXPECT_THAT(wires.letters_from, ElementsAre(1));
}

TEST_F(LivenessPostOffice, ClosedPostOfficeOnlyAcknowledgesLetters) {
  for (int rank = 1; rank <= 20; ++rank) post(rank);
  Peer& one = up(11, 1);
  office.close();
  office.take(letter(LetterType::kKnock, 1), 11, one, now);
  EXPECT_THAT(wires.letters_from, IsEmpty());
  EXPECT_THAT(wires.take(FrameType::kLetterTaken), ElementsAre(11U));
  peers.attempt_ended(one);
  office.send_next(now);
  EXPECT_EQ(wires.connects.size(), 16U);
}

// --- Neighbourhood --------------------------------------------------------------

// Rank 4 of 9, each on its own host.
struct LivenessNeighbourhood : PartsOfAJudge {
  LivenessNeighbourhood() {
    std::vector<uint32_t> hosts;
    for (uint32_t host = 0; host < 9; ++host) hosts.push_back(host);
    ring = std::make_shared<const Ring>(hosts);
    neighbourhood = std::make_unique<Neighbourhood>(4, kTiming, ring, wires, fates, peers);
  }
  // Connects all neighbours, by connections that they made.
  std::vector<int> connect_all() {
    neighbourhood->start(now);
    const std::vector<int> all = neighbourhood->missing();
    for (const int rank : all) up(static_cast<ConnectionId>(10 * rank + 1), rank);
    wires.connects.clear();
    return all;
  }
  News news;
  Fates fates{std::make_shared<const std::vector<uint64_t>>(9, 5), news};
  std::shared_ptr<const Ring> ring;
  std::unique_ptr<Neighbourhood> neighbourhood;
};

TEST_F(LivenessNeighbourhood, HigherRankOfAPairConnectsOnlyAfterADelay) {
  neighbourhood->start(now);
  EXPECT_EQ(neighbourhood->missing(), ring->neighbours(4, [](int) { return false; }));
  ASSERT_FALSE(wires.connects.empty());
  for (const int rank : wires.connects) EXPECT_GT(rank, 4);
  wires.connects.clear();
  neighbourhood->repair(now + kTiming.repair_ns());
  EXPECT_TRUE(
      std::any_of(wires.connects.begin(), wires.connects.end(), [](int rank) { return rank < 4; }));
}

TEST_F(LivenessNeighbourhood, LostNeighbourIsReplacedAfterTheRepairTime) {
  const std::vector<int> all = connect_all();
  EXPECT_THAT(neighbourhood->missing(), IsEmpty());
  fates.die(all[0], "gone");
  peers.forget(all[0]);
  neighbourhood->note_loss(now);
  neighbourhood->repair(now + kTiming.repair_ns() - 1);
  EXPECT_THAT(neighbourhood->missing(), IsEmpty());
  neighbourhood->repair(now + kTiming.repair_ns());
  ASSERT_EQ(neighbourhood->missing().size(), 1U);
  EXPECT_EQ(std::count(all.begin(), all.end(), neighbourhood->missing()[0]), 0);
}

TEST_F(LivenessNeighbourhood, FurtherRanksAreContactedIfTheNeighboursAreSilent) {
  const std::vector<int> all = connect_all();
  neighbourhood->seek_others(now);
  EXPECT_THAT(wires.connects, IsEmpty()) << "it is not ready";
  neighbourhood->set_ready();
  neighbourhood->seek_others(now);
  EXPECT_THAT(wires.connects, IsEmpty()) << "all answer";
  now += kTiming.suspicion_ns();
  neighbourhood->seek_others(now);
  ASSERT_EQ(wires.connects.size(), 2U);
  for (const int rank : wires.connects) EXPECT_EQ(std::count(all.begin(), all.end(), rank), 0);
  neighbourhood->seek_others(now);
  EXPECT_EQ(wires.connects.size(), 2U) << "it waits between two attempts";
}

TEST_F(LivenessNeighbourhood, IsMostlySilentIfMoreThanHalfAreSuspected) {
  const std::vector<int> all = connect_all();
  ASSERT_EQ(all.size(), 4U);
  for (size_t i = 0; i < 2; ++i) peers.suspect(*peers.find(all[i]), now);
  EXPECT_FALSE(neighbourhood->mostly_silent());
  EXPECT_TRUE(neighbourhood->mostly_silent(1));
  peers.suspect(*peers.find(all[2]), now);
  EXPECT_TRUE(neighbourhood->mostly_silent());
}

TEST_F(LivenessNeighbourhood, OnlyIdleConnectionsThatNeitherEndNeedsAreReleased) {
  const std::vector<int> all = connect_all();
  int extra = 0;
  while (extra == 4 || std::count(all.begin(), all.end(), extra) != 0) ++extra;
  up(99, extra, true);
  neighbourhood->release_idle(now);
  EXPECT_THAT(wires.take(FrameType::kRelease), IsEmpty()) << "it is new";
  now += kT / 2;
  for (Peer* one = peers.after(-1); one != nullptr; one = peers.after(one->rank)) {
    one->heard_ns = now;
  }
  neighbourhood->release_idle(now);
  EXPECT_THAT(wires.take(FrameType::kRelease), ElementsAre(99U));
  const Frame offer{.type = FrameType::kRelease};
  EXPECT_FALSE(neighbourhood->release(static_cast<ConnectionId>(10 * all[0] + 1), offer, now));
  EXPECT_THAT(wires.take(FrameType::kRelease), IsEmpty()) << "a neighbour is needed";
  EXPECT_TRUE(neighbourhood->release(99, offer, now));
  EXPECT_THAT(wires.take(FrameType::kRelease), ElementsAre(99U)) << "this rank agrees";
  EXPECT_TRUE(neighbourhood->release(99, {.type = FrameType::kRelease, .code = 1}, now));
  EXPECT_THAT(wires.take(FrameType::kRelease), IsEmpty()) << "the other end agrees";
}

}  // namespace
}  // namespace hetcomm::liveness
