// Queues to several ranks over one network interface, with pacers over a network model. The model's
// connections share bottlenecks as TCP does, equally or worse, and its sockets may report bytes as
// sent that they still hold:
//    * bytes leave in proportion to the weights, on slow and fast links, near and far, whichever
//      connections the network prefers
//    * a queue whose own path is slow, or stalled, takes little from the others
//    * the network's capacity is used, even if paths are partly shared, rates change, or queues
//      come and go, and in any network
//    * the same holds next to the rank's other traffic, after an outage, and with any socket
//      buffers
//    * a later queue to the same rank gets its share immediately, within the host too
//    * queues within the host do not wait for those to other ranks
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "src/core/peer/sharing/pacer.h"
#include "tests/support/idle_pair.h"
#include "tests/support/pattern.h"

namespace hetcomm {
namespace {

using test::Nobody;
using test::Random;

constexpr uint64_t kMiB = 1u << 20;
constexpr double kMs = 1e6;
constexpr double kAny = 1e12;

// A queue and its path.
struct Way {
  uint32_t weight = 1;
  double cap = kAny;       // bytes per second on its own path
  double eagerness = 1;    // relative weight of its connection in a bottleneck
  size_t trunk = 0;        // a bottleneck shared with others; 0: none
  bool with_last = false;  // leads to the same rank as the previous queue
  double buffer = 0;       // bytes that its socket accepts
  double on_ms = 0;        // sending time,
  double off_ms = 0;       // followed by this pause
  uint64_t rate = 0;       // set by the user
};

// A rank with queues to some other ranks. The library considers bytes sent once they are in a
// path's buffer.
class Net {
 public:
  Net(double link, std::vector<Way> ways, double delay_ms = 0.1, bool within_host = false)
      : link_(link), delay_ms_(delay_ms), path_{1, LinkShares::index_of(0, within_host)} {
    for (const Way& way : ways) {
      if (!way.with_last) peers_.push_back(std::make_unique<Peer>(*this));
      queues_.push_back(std::make_unique<Queue>(*peers_.back(), way));
    }
  }
  ~Net() {
    for (auto& peer : peers_) peer->pacer.clear(now());
  }

  Way& way(size_t which) { return queues_[which]->way; }
  void set_link(double rate) { link_ = rate; }
  // Reserves |part| of the link for this rank's other traffic, for |on_ms| in every |period_ms|.
  void set_other_traffic(double part, double on_ms, double period_ms) {
    other_part_ = part;
    other_on_ms_ = on_ms;
    other_period_ms_ = period_ms;
  }
  void set_trunk(size_t trunk, double rate) { trunks_.at(trunk) = rate; }

  // Returns the bytes per second for each queue over the next |ms|.
  std::vector<double> run(double ms) {
    std::vector<double> before;
    for (const auto& queue : queues_) before.push_back(queue->arrived);
    const double until = now_ms_ + ms;
    while (now_ms_ < until) step();
    std::vector<double> rates;
    for (size_t i = 0; i < queues_.size(); ++i) {
      rates.push_back((queues_[i]->arrived - before[i]) * 1e3 / ms);
    }
    return rates;
  }

 private:
  static constexpr double kStepMs = 0.5;
  struct Piece {
    double left;
    uint64_t bytes;
    Pacer::Piece paced;
    double arrives_ms = 0;
  };
  struct Queue;
  // A rank that is the target of queues.
  struct Peer final : public ListedPair {
    explicit Peer(Net& its_net) : net(its_net), pacer(its_net.turns_, its_net.links_, *this) {
      net.turns_.add(*this);
    }
    void send_update() override {
      while (Pacer::Flow* flow = pacer.next(net.now())) {
        for (Queue* queue : queues) {
          if (&queue->flow == flow) net.push(*queue);
        }
      }
    }
    bool copy_some() override { return false; }
    void tick(uint64_t now_ns) override {
      if (now_ns >= pacer.next_timer_ns()) send_update();
    }
    uint64_t next_timer_ns() const override { return pacer.next_timer_ns(); }
    uint64_t unsent_bytes(size_t /*link*/) const override {
      double bytes = 0;
      for (const Queue* queue : queues) bytes += queue->in_socket;
      return static_cast<uint64_t>(bytes);
    }
    void out_of_memory() override {}

    Net& net;
    Pacer pacer;
    std::vector<Queue*> queues;
  };
  struct Queue {
    Queue(Peer& its_peer, const Way& its_way)
        : peer(its_peer),
          way(its_way),
          flow({.weight = its_way.weight, .bytes_per_second = its_way.rate}) {
      peer.pacer.add(flow);
      peer.queues.push_back(this);
    }
    Peer& peer;
    Way way;
    Pacer::Flow flow;
    std::deque<Piece> pieces;      // in the network
    std::deque<Piece> on_the_way;  // after the bottlenecks
    uint64_t under_way = 0;
    double in_socket = 0;
    double arrived = 0;
    bool sends = true;
  };

  // Gives each queue an endless supply of items, eight of 2 MiB at a time.
  void push(Queue& queue) {
    while (queue.sends && queue.under_way < 16 * kMiB) {
      const uint64_t bytes = queue.peer.pacer.allowed(queue.flow, path_, 2 * kMiB, false, now());
      if (bytes == 0) return;
      queue.pieces.push_back({static_cast<double>(bytes), bytes,
                              queue.peer.pacer.started(queue.flow, path_, bytes, now())});
      queue.under_way += bytes;
    }
  }
  uint64_t now() const { return static_cast<uint64_t>(1e9 + now_ms_ * kMs); }

  // Computes the rates by progressive filling.
  std::vector<double> fill(const std::vector<bool>& busy) const {
    std::vector<double> rates(queues_.size(), 0);
    std::vector<bool> grows = busy;
    double link = link_;
    std::vector<double> trunks = trunks_;
    while (std::find(grows.begin(), grows.end(), true) != grows.end()) {
      double all = 0;
      std::vector<double> parts(trunks.size(), 0);
      for (size_t i = 0; i < queues_.size(); ++i) {
        if (!grows[i]) continue;
        const Way& way = queues_[i]->way;
        all += way.eagerness;
        parts[way.trunk] += way.eagerness;
      }
      double step = link / all;
      for (size_t i = 0; i < trunks.size(); ++i) {
        if (parts[i] > 0) step = std::min(step, trunks[i] / parts[i]);
      }
      for (size_t i = 0; i < queues_.size(); ++i) {
        if (grows[i]) {
          const Way& way = queues_[i]->way;
          step = std::min(step, (way.cap - rates[i]) / way.eagerness);
        }
      }
      step = std::max(step, 0.0);
      link -= step * all;
      for (size_t i = 0; i < trunks.size(); ++i) trunks[i] -= step * parts[i];
      for (size_t i = 0; i < queues_.size(); ++i) {
        if (!grows[i]) continue;
        const Way& way = queues_[i]->way;
        rates[i] += step * way.eagerness;
        if (rates[i] >= way.cap * 0.999999 || link <= link_ * 1e-6 ||
            trunks[way.trunk] <= trunks_[way.trunk] * 1e-6) {
          grows[i] = false;
        }
      }
    }
    return rates;
  }

  void end(Queue& queue, const Piece& piece) {
    queue.under_way -= piece.bytes;
    if (path_.link != LinkShares::kWithinHost) links_[path_.link].left(piece.bytes, now());
    queue.peer.pacer.ended(piece.paced, now());
  }
  void fill_socket(Queue& queue) {
    while (!queue.pieces.empty()) {
      const Piece piece = queue.pieces.front();
      if (queue.in_socket > 0 && queue.in_socket + piece.left > queue.way.buffer) return;
      queue.pieces.pop_front();
      queue.in_socket += piece.left;
      end(queue, piece);
      push(queue);
    }
  }

  void step() {
    now_ms_ += kStepMs;
    std::vector<bool> busy;
    for (const auto& queue : queues_) {
      const Way& way = queue->way;
      queue->sends = way.off_ms == 0 || std::fmod(now_ms_, way.on_ms + way.off_ms) < way.on_ms;
      push(*queue);
      if (way.buffer > 0) fill_socket(*queue);
      busy.push_back(!queue->pieces.empty() || queue->in_socket > 0);
    }
    const double link = link_;
    if (other_period_ms_ > 0 && std::fmod(now_ms_, other_period_ms_) < other_on_ms_) {
      link_ -= other_part_ * link;
      links_[path_.link].left(static_cast<uint64_t>(other_part_ * link * kStepMs / 1e3), now());
    }
    const std::vector<double> rates = fill(busy);
    link_ = link;
    for (size_t i = 0; i < queues_.size(); ++i) {
      double bytes = rates[i] * kStepMs / 1e3;
      if (queues_[i]->way.buffer > 0) {
        bytes = std::min(bytes, queues_[i]->in_socket);
        queues_[i]->in_socket -= bytes;
        queues_[i]->arrived += bytes;
        continue;
      }
      auto& pieces = queues_[i]->pieces;
      while (bytes > 0 && !pieces.empty()) {
        const double part = std::min(bytes, pieces.front().left);
        pieces.front().left -= part;
        bytes -= part;
        if (pieces.front().left > 0.5) break;
        pieces.front().arrives_ms = now_ms_ + delay_ms_;
        queues_[i]->on_the_way.push_back(pieces.front());
        pieces.pop_front();
      }
    }
    for (const auto& queue : queues_) {
      while (!queue->on_the_way.empty() && queue->on_the_way.front().arrives_ms <= now_ms_) {
        const Piece piece = queue->on_the_way.front();
        queue->on_the_way.pop_front();
        queue->arrived += static_cast<double>(piece.bytes);
        end(*queue, piece);
      }
    }
    turns_.tick(now());
    turns_.run();
  }

  double link_;
  double other_part_ = 0;
  double other_on_ms_ = 0;
  double other_period_ms_ = 0;
  double delay_ms_;
  Pacer::Path path_;
  std::vector<double> trunks_ = std::vector<double>(3, kAny);
  double now_ms_ = 0;
  Nobody nobody_;
  Engine engine_{nobody_};
  PairTurns turns_{engine_};
  LinkShares links_{turns_};
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Queue>> queues_;
};

double sum(const std::vector<double>& rates) {
  double all = 0;
  for (const double rate : rates) all += rate;
  return all;
}

TEST(CoreLinkShare, TwoQueuesShareTheLinkByWeight) {
  for (const double link : {12e6, 25e6, 125e6, 1e9}) {
    for (const double eagerness : {1.0, 4.0, 0.25}) {
      for (const double delay_ms : {0.1, 30.0}) {
        SCOPED_TRACE(testing::Message() << link << " B/s, " << eagerness << ", " << delay_ms);
        Net net(link, {{.weight = 3, .eagerness = eagerness}, {.weight = 1}}, delay_ms);
        net.run(8000);
        const std::vector<double> rates = net.run(12000);
        const bool far = delay_ms * link / 1e3 > 16e6;  // a window is too short for three quarters
        EXPECT_GE(sum(rates), (far ? 0.85 : 0.95) * link);
        if (!far) {
          EXPECT_NEAR(rates[0] / sum(rates), 0.75, 0.03);
        }
      }
    }
  }
}

TEST(CoreLinkShare, FiveQueuesShareTheLinkByWeight) {
  Net net(25e6, {{.weight = 5}, {.weight = 2}, {.weight = 1}, {.weight = 1}, {.weight = 1}});
  net.run(3000);
  const std::vector<double> rates = net.run(10000);
  EXPECT_NEAR(rates[0] / sum(rates), 0.5, 0.02);
  EXPECT_NEAR(rates[1] / sum(rates), 0.2, 0.02);
  EXPECT_NEAR(rates[2] / sum(rates), 0.1, 0.01);
  EXPECT_GE(sum(rates), 0.97 * 25e6);
}

TEST(CoreLinkShare, SlowPathDoesNotDelayOtherQueues) {
  for (const double part : {0.3, 0.1, 0.02, 0.001}) {
    SCOPED_TRACE(part);
    Net net(25e6, {{.weight = 1}, {.weight = 3, .cap = part * 25e6}});
    net.run(4000);
    const std::vector<double> rates = net.run(20000);
    EXPECT_GE(rates[0], 0.94 * (1 - part) * 25e6);
    EXPECT_GE(rates[1], 0.9 * part * 25e6);
  }
}

// The queue's path carries more than its share, so the queue gets its share.
TEST(CoreLinkShare, QueueOnAFastEnoughPathGetsItsShare) {
  Net net(25e6, {{.weight = 3}, {.weight = 1, .cap = 0.4 * 25e6}});
  net.run(2000);
  const std::vector<double> rates = net.run(8000);
  EXPECT_NEAR(rates[0] / sum(rates), 0.75, 0.02);
}

TEST(CoreLinkShare, SeveralSlowPathsDoNotDelayOtherQueues) {
  Net net(100e6, {{.weight = 1},
                  {.weight = 2},
                  {.weight = 4, .cap = 2e6},
                  {.weight = 8, .cap = 3e6},
                  {.weight = 1, .cap = 1e6}});
  net.run(10000);
  const std::vector<double> rates = net.run(20000);
  EXPECT_GE(sum(rates), 0.93 * 100e6);
  EXPECT_NEAR(rates[1] / rates[0], 2.0, 0.35);
  EXPECT_GE(rates[2], 0.85 * 2e6);
  EXPECT_GE(rates[3], 0.85 * 3e6);
  EXPECT_GE(rates[4], 0.85 * 1e6);
}

TEST(CoreLinkShare, StalledPathDelaysOtherQueuesOnlyBriefly) {
  Net net(25e6, {{.weight = 3}, {.weight = 1}, {.weight = 1}});
  net.run(3000);
  net.way(2).cap = 0;
  const std::vector<double> first = net.run(1500);
  EXPECT_GE(first[0] + first[1], 0.4 * 25e6);
  const std::vector<double> rates = net.run(10000);
  EXPECT_GE(rates[0] + rates[1], 0.93 * 25e6);
  EXPECT_NEAR(rates[0] / rates[1], 3, 0.4);
  net.way(2).cap = kAny;
  net.run(10000);
  const std::vector<double> again = net.run(10000);
  EXPECT_NEAR(again[0] / sum(again), 0.6, 0.04);
  EXPECT_GE(sum(again), 0.95 * 25e6);
}

TEST(CoreLinkShare, SharesFollowChangesOfTheLinkRate) {
  Net net(25e6, {{.weight = 3}, {.weight = 1}});
  for (const double rate : {25e6, 6e6, 100e6, 30e6}) {
    net.set_link(rate);
    net.run(3000);
    const std::vector<double> rates = net.run(6000);
    EXPECT_NEAR(rates[0] / sum(rates), 0.75, 0.03) << rate;
    EXPECT_GE(sum(rates), 0.95 * rate);
  }
}

// Two queues share a bottleneck beyond the interface, which a third queue avoids.
TEST(CoreLinkShare, SharedBottleneckAndLinkAreFullyUsed) {
  Net net(100e6, {{.weight = 3, .trunk = 1}, {.weight = 1, .trunk = 1}, {.weight = 1}});
  net.set_trunk(1, 20e6);
  net.run(4000);
  const std::vector<double> rates = net.run(20000);
  EXPECT_GE(sum(rates), 0.93 * 100e6);
  EXPECT_GE(rates[0] + rates[1], 0.9 * 20e6);
}

TEST(CoreLinkShare, IntermittentQueueGetsItsShare) {
  Net net(25e6, {{.weight = 1}, {.weight = 3, .on_ms = 300, .off_ms = 700}});
  net.run(3000);
  const std::vector<double> rates = net.run(20000);
  EXPECT_GE(sum(rates), 0.95 * 25e6);
  EXPECT_GE(rates[1], 0.9 * 0.3 * 0.75 * 25e6);
}

// Two queues share the link while a third one pauses. When it goes on, the others stop, and it may
// lead them by no more than any queue may.
TEST(CoreLinkShare, PausedQueueHasNoClaimOnMissedTime) {
  Nobody nobody;
  Engine engine(nobody);
  PairTurns turns(engine);
  LinkShare link(turns, 0);
  const uint64_t at_once = 0;
  std::array<test::NoPair, 3> pairs;
  std::array<LinkShare::Member, 3> queues;
  for (size_t i = 0; i < queues.size(); ++i) {
    queues[i].pair = &pairs[i];
    queues[i].earliest_ns = &at_once;
    link.add(queues[i]);
  }
  constexpr uint64_t kPiece = 64u << 10;
  auto now_ns = static_cast<uint64_t>(1000 * kMs);
  const auto send = [&](LinkShare::Member& queue) {
    if (!link.may_start(queue, now_ns)) return false;
    link.started(queue, kPiece, now_ns);
    link.left(kPiece, now_ns);
    link.ended(queue, kPiece, now_ns);
    return true;
  };
  for (const size_t i : {0u, 1u}) link.waits(queues[i]);
  for (int i = 0; i < 1500; ++i) {
    now_ns += static_cast<uint64_t>(kMs);
    EXPECT_TRUE(send(queues[0]));
    EXPECT_TRUE(send(queues[1]));
  }
  uint64_t sent = 0;
  while (send(queues[2])) sent += kPiece;
  EXPECT_GE(sent, LinkShare::kLeadBytes);
  EXPECT_LE(sent, LinkShare::kLeadBytes + 2 * kPiece);
  for (LinkShare::Member& queue : queues) link.remove(queue, now_ns);
}

TEST(CoreLinkShare, RateLimitedQueueDoesNotDelayOthers) {
  Net net(25e6, {{.weight = 1}, {.weight = 100, .rate = 2'000'000}});
  net.run(3000);
  const std::vector<double> rates = net.run(10000);
  EXPECT_NEAR(rates[1], 2e6, 0.1e6);
  EXPECT_GE(rates[0], 0.95 * 23e6);
}

TEST(CoreLinkShare, QueuesWithinTheHostAreNotPaced) {
  Net net(1e9, {{.weight = 3}, {.weight = 1}}, 0.1, true);
  const std::vector<double> rates = net.run(5000);
  EXPECT_NEAR(rates[0] / rates[1], 1, 0.02);
}

TEST(CoreLinkShare, SharesHoldDespiteSocketBuffers) {
  for (const double link : {6e6, 25e6, 125e6}) {
    for (const double buffer : {2e6, 8e6}) {
      if (buffer / link > 0.5) continue;  // the buffers would hold half a second of traffic
      SCOPED_TRACE(testing::Message() << link << " B/s, sockets of " << buffer);
      Net net(link, {{.weight = 3, .buffer = buffer}, {.weight = 1, .buffer = buffer}});
      net.run(10000);
      const std::vector<double> rates = net.run(20000);
      EXPECT_NEAR(rates[0] / sum(rates), 0.75, 0.07);
      EXPECT_GE(sum(rates), 0.95 * link);
    }
  }
}

TEST(CoreLinkShare, OtherTrafficDoesNotChangeTheShares) {
  Net net(25e6, {{.weight = 3}, {.weight = 1}});
  net.set_other_traffic(0.7, 300, 1000);
  net.run(5000);
  const std::vector<double> rates = net.run(20000);
  EXPECT_NEAR(rates[0] / sum(rates), 0.75, 0.04);
  EXPECT_GE(sum(rates), 0.93 * (1 - 0.7 * 0.3) * 25e6);
}

TEST(CoreLinkShare, ThroughputRecoversAfterAnOutage) {
  for (const double begin_ms : {50.0, 300.0, 1500.0, 2250.0}) {
    SCOPED_TRACE(begin_ms);
    Net net(125e6, {{.weight = 1}, {.weight = 3, .cap = 10e6}});
    net.run(begin_ms);
    net.set_link(1);
    net.run(3000);
    net.set_link(125e6);
    net.run(4000);
    EXPECT_GE(sum(net.run(10000)), 0.85 * 125e6);
  }
}

// Four queues to a rank with a slow path count as one slow path.
TEST(CoreLinkShare, QueuesToOneSlowRankCountAsOneSlowPath) {
  Net net(125e6, {{.weight = 1},
                  {.weight = 3, .cap = 2e6},
                  {.weight = 3, .cap = 2e6, .with_last = true},
                  {.weight = 2, .cap = 2e6, .with_last = true},
                  {.weight = 1, .cap = 2e6, .with_last = true}});
  EXPECT_GE(sum(net.run(10000)), 0.85 * 125e6);
}

// A late queue to the same rank finds no claims, neither its own nor earlier ones.
TEST(CoreLinkShare, LateQueueToTheSameRankGetsItsShareAtOnce) {
  for (const bool within_host : {true, false}) {
    Net net(100e6,
            {{.weight = 1},
             {.weight = 1, .with_last = true, .on_ms = 3000, .off_ms = 3000},
             {.weight = 1, .cap = 1e6}},
            0.1, within_host);
    net.run(12000);
    const std::vector<double> rates = net.run(3000);
    EXPECT_NEAR(rates[0] / rates[1], 1, 0.4) << within_host;
  }
}

// Advances by |ms| at |rate|, with or without a held queue. Returns the last step other than kNone.
HoldingTrial::Step run_trial(HoldingTrial& trial, uint64_t* now_ns, double ms, double rate,
                             bool held) {
  HoldingTrial::Step said = HoldingTrial::Step::kNone;
  for (double t = 0; t < ms; t += 10) {
    *now_ns += 10'000'000;
    const HoldingTrial::Step step =
        trial.advance(static_cast<int64_t>(rate / 100), held && trial.holds(), 0, *now_ns);
    if (step == HoldingTrial::Step::kNone) continue;
    said = step;
    if (step != HoldingTrial::Step::kRelease) return said;
  }
  return said;
}

TEST(CoreHoldingTrial, IsNotMisledByOtherRateChanges) {
  for (const double later : {100e6, 40e6}) {
    HoldingTrial trial;
    uint64_t now_ns = 1'000'000'000;
    trial.start(0, now_ns);
    ASSERT_EQ(run_trial(trial, &now_ns, 1000, 100e6, false), HoldingTrial::Step::kHold);
    EXPECT_NEAR(trial.free_rate(), 100e6, 1e6);
    trial.holding_begins(now_ns);
    // Enough bytes leave, so no capacity is missing.
    EXPECT_EQ(run_trial(trial, &now_ns, 1000, 90e6, true), HoldingTrial::Step::kNone);
    ASSERT_EQ(run_trial(trial, &now_ns, 1000, 40e6, true), HoldingTrial::Step::kSuspect);
    EXPECT_FALSE(trial.holds());
    // More bytes leave without holding, or the interface carries no more.
    EXPECT_EQ(run_trial(trial, &now_ns, 1000, later, false),
              later > 50e6 ? HoldingTrial::Step::kBlame : HoldingTrial::Step::kHold);
  }
}

TEST(CoreHoldingTrial, ShortfallOfAnEarlierTrialDoesNotCount) {
  HoldingTrial trial;
  uint64_t now_ns = 1'000'000'000;
  trial.start(0, now_ns);
  ASSERT_EQ(run_trial(trial, &now_ns, 1000, 100e6, false), HoldingTrial::Step::kHold);
  trial.holding_begins(now_ns);
  EXPECT_EQ(run_trial(trial, &now_ns, 200, 10e6, true), HoldingTrial::Step::kNone);
  trial.stop();
  trial.start(0, now_ns);
  ASSERT_EQ(run_trial(trial, &now_ns, 1000, 100e6, false), HoldingTrial::Step::kHold);
  trial.holding_begins(now_ns);
  ASSERT_EQ(run_trial(trial, &now_ns, 1500, 55e6, true), HoldingTrial::Step::kSuspect);
  // Nearly as much left while queues were held, so holding is not to blame.
  EXPECT_EQ(run_trial(trial, &now_ns, 1000, 60e6, false), HoldingTrial::Step::kHold);
}

TEST(CoreHoldingTrial, PauseOfTheQueueIsInconclusive) {
  HoldingTrial trial;
  uint64_t now_ns = 1'000'000'000;
  trial.start(0, now_ns);
  EXPECT_EQ(run_trial(trial, &now_ns, 3000, 0, false), HoldingTrial::Step::kNone);
  now_ns += 20'000'000'000;
  EXPECT_EQ(run_trial(trial, &now_ns, 150, 50e6, false), HoldingTrial::Step::kNone);
  EXPECT_EQ(run_trial(trial, &now_ns, 1000, 50e6, false), HoldingTrial::Step::kHold);
  EXPECT_NEAR(trial.free_rate(), 50e6, 1e6);
}

// Every network carries nearly as much as without weights, and no queue starves.
TEST(CoreLinkShare, RandomNetworksCarryNearlyAsMuchAsWithoutWeights) {
  double worst = 1;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const double link = std::pow(10.0, 6.5 + static_cast<double>(random.below(200)) / 100);
    std::vector<Way> ways(random.between(2, 6));
    for (Way& way : ways) {
      way.weight = static_cast<uint32_t>(random.size_up_to(100));
      if (random.chance(0.4))
        way.cap = link * std::pow(10.0, -static_cast<double>(random.below(25)) / 10);
      if (random.chance(0.3))
        way.eagerness = std::pow(2.0, static_cast<double>(random.below(5)) - 2);
      if (random.chance(0.3)) way.trunk = random.between(1, 2);
    }
    const double delay_ms = random.chance(0.3) ? 10 : 0.1;
    std::vector<double> rates;
    double free = 0;
    for (const bool unweighted : {true, false}) {
      Net net(link, ways, delay_ms, unweighted);
      net.set_trunk(1, link * 0.6);
      net.set_trunk(2, link * 0.2);
      const double learning = sum(net.run(10000));
      net.run(10000);
      rates = net.run(10000);
      if (unweighted) {
        free = sum(rates);
      } else {
        EXPECT_GE(learning, 0.7 * free);
      }
    }
    const double kept = sum(rates) / free;
    worst = std::min(worst, kept);
    EXPECT_GE(kept, 0.8);  // a loss of 15 % is not investigated
    for (size_t i = 0; i < rates.size(); ++i) {
      // Slower queues always have one piece in flight.
      if (ways[i].cap > 3e5) {
        EXPECT_GT(rates[i], 0) << i;
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

// Queues to a few ranks come and go, and stop while waiting. Every queue with data makes progress.
TEST(CoreLinkShare, NoQueueStarvesInRandomNetworks) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const double link = std::pow(10.0, 7.0 + static_cast<double>(random.below(150)) / 100);
    std::vector<Way> ways(random.between(3, 8));
    for (size_t i = 0; i < ways.size(); ++i) {
      ways[i].weight = static_cast<uint32_t>(random.between(1, 4));
      ways[i].with_last = i > 0 && random.chance(0.6);
      // The path to a rank is slow.
      if (ways[i].with_last) {
        ways[i].cap = ways[i - 1].cap;
      } else if (random.chance(0.3)) {
        ways[i].cap = link / 5;
      }
      if (random.chance(0.5)) {
        ways[i].on_ms = static_cast<double>(random.between(100, 400));
        ways[i].off_ms = static_cast<double>(random.between(100, 400));
      }
    }
    Net net(link, ways, random.chance(0.3) ? 10 : 0.1);
    net.run(2000);
    for (int part = 0; part < 2; ++part) {
      const std::vector<double> rates = net.run(8000);
      for (size_t i = 0; i < rates.size(); ++i) {
        EXPECT_GT(rates[i], 0) << "queue " << i << " of weight " << ways[i].weight << ", sends for "
                               << ways[i].on_ms << " ms and pauses for " << ways[i].off_ms;
      }
      EXPECT_GT(sum(rates), 0);
    }
  }
}

}  // namespace
}  // namespace hetcomm
