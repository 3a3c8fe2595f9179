// Each direction of each boundary needs a channel of its own, with tags. Two ranks have one
// ordered channel here: sends go out in the order of their calls, and a receive blocks what stands
// behind it, and gets what comes first.
//   * with receives posted a step ahead all schedules come to a stop
//   * a receive that is posted early stalls a forward step that does not need it
//   * a receive that is posted early keeps the next item of a warm-up from leaving
//   * ranks with several stages mix up their items
//   * lengths that go ahead of the data in one order bring a ring to a stop
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "pipeline/schedule/check.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/named.h"
#include "pipeline/schedule/text.h"
#include "pipeline/schedule/warmups.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

// Which data a transfer carries: the stage that made it, and the micro-batch.
struct Item {
  bool is_backward = false;
  uint32_t stage = 0;
  uint32_t micro_batch = 0;
  auto operator<=>(const Item&) const = default;
};

// Plays a schedule with transfers over one ordered channel between any two ranks. Steps in |held|
// never end.
class OrderedRanks {
 public:
  explicit OrderedRanks(const Schedule& schedule, std::set<std::string> held = {})
      : schedule_(schedule), held_(std::move(held)), ranks_(schedule.ranks()) {}

  // Returns the steps that were performed.
  std::set<std::string> play() {
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
        while (advance(rank)) goes_on = true;
      }
      goes_on |= move();
    }
    return done_;
  }
  bool has_ended() const {
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      if (ranks_[rank].at < schedule_.actions[rank].size()) return false;
    }
    return true;
  }

  // Returns whether the output of |stage|'s forward step is at |rank|.
  bool has(uint32_t rank, uint32_t stage, uint32_t micro_batch) const {
    return ranks_[rank].here.contains({false, stage, micro_batch});
  }
  // Returns how many receives got another item than the one they are for.
  int mixed_up() const { return mixed_up_; }

 private:
  struct Entry {
    bool sends = false;
    Item item;
  };
  struct Rank {
    size_t at = 0;
    std::map<uint32_t, std::deque<Entry>> channels;  // by the other rank
    std::map<uint32_t, std::deque<Item>> mail;       // that has come, by the other rank
    std::set<Item> here;
  };

  // The transfer that |action| of a rank posts: the item, and the other rank.
  std::pair<Item, uint32_t> transfer_of(const Action& action) const {
    const bool is_backward =
        action.kind == Kind::kSendBackward || action.kind == Kind::kReceiveBackward;
    const bool sends = is_send(action.kind);
    const uint32_t other = is_backward == sends ? action.stage - 1u : action.stage + 1u;
    const uint32_t maker = sends ? action.stage : other;
    return {{is_backward, maker, action.micro_batch}, schedule_.rank_of[other]};
  }

  bool has_data(uint32_t rank, const Action& action) const {
    const uint32_t stage = action.stage;
    const auto has = [&](bool is_backward, uint32_t maker) {
      return schedule_.rank_of[maker] == rank ||
             ranks_[rank].here.contains({is_backward, maker, action.micro_batch});
    };
    if (action.kind == Kind::kForward) return stage == 0 || has(false, stage - 1);
    if (!gives_input_grad(action.kind)) return true;
    return stage + 1u == schedule_.stages() || has(true, stage + 1);
  }

  bool advance(uint32_t rank) {
    Rank& own = ranks_[rank];
    const std::vector<Action>& actions = schedule_.actions[rank];
    if (own.at == actions.size()) return false;
    const Action& action = actions[own.at];
    if (is_send(action.kind) || is_receive(action.kind)) {
      const auto [item, other] = transfer_of(action);
      own.channels[other].push_back({is_send(action.kind), item});
    } else {
      const std::string text = to_text(action);
      if (!has_data(rank, action) || held_.contains(text)) return false;
      done_.insert(text);
    }
    ++own.at;
    return true;
  }

  // Performs the transfers whose turn it is on the channels.
  bool move() {
    bool moved = false;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      for (auto& [other, entries] : ranks_[rank].channels) {
        std::deque<Item>& sent = ranks_[other].mail[rank];
        std::deque<Item>& got = ranks_[rank].mail[other];
        for (; !entries.empty() && (entries.front().sends || !got.empty()); moved = true) {
          if (entries.front().sends) {
            sent.push_back(entries.front().item);
          } else {
            // The receive gets what comes first.
            mixed_up_ += entries.front().item == got.front() ? 0 : 1;
            ranks_[rank].here.insert(entries.front().item);
            got.pop_front();
          }
          entries.pop_front();
        }
      }
    }
    return moved;
  }

  const Schedule& schedule_;
  const std::set<std::string> held_;
  std::vector<Rank> ranks_;
  std::set<std::string> done_;
  int mixed_up_ = 0;
};

Schedule schedule_named(const std::string& name, uint32_t ranks) {
  ScheduleParameters parameters;
  parameters.ranks = ranks;
  parameters.micro_batches = 4 * ranks;
  if (name == "virtual-1f1b") parameters.slow_boundaries = {0};
  if (name == "four-phase") parameters.recomputed_stages = {ranks - 1};
  if (name == "h-1f1b") {
    parameters.stage_ns.assign(ranks, 100);
    parameters.boundaries.assign(ranks - 1, {.busy_ns = 20, .latency_ns = 60});
  }
  return make_schedule(name, parameters)->schedule;
}

// With tags and credits all of these come to their end: see program_test.cc.
TEST(OrderedChannels, ReceivesPostedAStepAheadDeadlockEveryTrainingSchedule) {
  for (const std::string& name : schedule_names()) {
    if (name == "forward-only") continue;
    for (const uint32_t ranks : {2u, 3u, 4u}) {
      const Schedule schedule = schedule_named(name, ranks);
      for (const uint32_t ahead : {0u, 1u}) {
        const Schedule lowered = add_transfers(schedule, ahead);
        OrderedRanks ordered(lowered);
        static_cast<void>(ordered.play());
        EXPECT_EQ(ordered.has_ended(), ahead == 0) << name << " on " << ranks << " ranks";
      }
    }
  }
}

// Rank 0 has posted the receive of the first gradient when it sends the second activation. So the
// second forward step of rank 1 waits for the first backward step, which it does not need.
TEST(OrderedChannels, EarlyReceivesStallForwardSteps) {
  const Schedule schedule = read_csv("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n").value();
  const std::set<std::string> held = {"2B0"};
  const Schedule in_time = add_transfers(schedule, 0);
  EXPECT_TRUE(OrderedRanks(in_time, held).play().contains("1F1"));
  const Schedule early = read_csv(
                             "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0RECV_B1,0B0,0B1\n"
                             "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_B0,1B0,1SEND_B0,"
                             "1RECV_B1,1B1,1SEND_B1\n"
                             "2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1,2F1,2B1,2SEND_B1\n")
                             .value();
  ASSERT_TRUE(check(early).ok());
  const std::set<std::string> done = OrderedRanks(early, held).play();
  EXPECT_TRUE(done.contains("0F1"));
  EXPECT_FALSE(done.contains("1F1"));
}

// Rank 0 has posted the receive for its second stage when it sends the second item of its first
// one. So rank 1 gets that item a round trip later than it could.
TEST(OrderedChannels, EarlyReceivesHoldBackTheWarmUp) {
  const char* const other =
      "1RECV_F0,1RECV_F1,1F0,1SEND_F0,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n";
  const Schedule early = read_csv(std::string("0F0,0SEND_F0,2RECV_F0,0F1,0SEND_F1,2RECV_F1,2F0,"
                                              "2SEND_F0,2F1,2SEND_F1\n") +
                                  other)
                             .value();
  const Schedule late = read_csv(std::string("0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,"
                                             "2RECV_F1,2F1,2SEND_F1\n") +
                                 other)
                            .value();
  for (const Schedule* each : {&early, &late}) {
    ASSERT_TRUE(check(*each).ok());
    OrderedRanks ordered(*each, {"1F0"});
    EXPECT_TRUE(ordered.play().contains("0F1"));
    EXPECT_TRUE(ordered.has(1, 0, 0));
    EXPECT_EQ(ordered.has(1, 0, 1), each == &late);
  }
}

// Returns whether |ranks| ranks of a ring come to their end that all exchange lengths with both
// neighbours, each operation after the one before it. A send waits for its receive. Odd ranks may
// take the operations in another order.
bool lengths_go_round(int ranks, bool odd_ranks_differ) {
  struct Step {
    bool sends = false;
    int way = 0;  // -1: with the rank before, 1: with the one behind
  };
  const std::vector<Step> order = {{true, -1}, {false, -1}, {true, 1}, {false, 1}};
  const std::vector<Step> other = {{false, 1}, {true, 1}, {false, -1}, {true, -1}};
  std::vector<size_t> at(static_cast<size_t>(ranks));
  const auto next = [&](int rank) {
    const size_t step = at[static_cast<size_t>(rank)];
    return odd_ranks_differ && rank % 2 == 1 ? other.at(step) : order.at(step);
  };
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (int rank = 0; rank < ranks; ++rank) {
      if (at[static_cast<size_t>(rank)] == order.size()) continue;
      const Step own = next(rank);
      const int peer = (rank + own.way + ranks) % ranks;
      if (!own.sends || at[static_cast<size_t>(peer)] == order.size()) continue;
      const Step theirs = next(peer);
      if (theirs.sends || theirs.way != -own.way) continue;
      ++at[static_cast<size_t>(rank)];
      ++at[static_cast<size_t>(peer)];
      goes_on = true;
    }
  }
  return std::count(at.begin(), at.end(), order.size()) == ranks;
}

// The executor tells all lengths of a step in one agreement before the first transfer, and posts
// receives by length and tag: lengths_test.cc has runs with four stages.
TEST(OrderedChannels, LengthExchangeInTheSameOrderDeadlocksARing) {
  for (const int ranks : {4, 6, 8}) {
    EXPECT_FALSE(lengths_go_round(ranks, false)) << ranks;
    EXPECT_TRUE(lengths_go_round(ranks, true)) << ranks;
  }
}

// A rank that sends for several stages does so in another order than the receiver expects.
TEST(OrderedChannels, SeveralStagesOnARankMixUpTheirItems) {
  const auto mixed_up = [](const std::string& name, uint32_t ranks) {
    const Schedule lowered = add_transfers(schedule_named(name, ranks), 0);
    OrderedRanks ordered(lowered);
    static_cast<void>(ordered.play());
    return ordered.mixed_up();
  };
  for (const uint32_t ranks : {2u, 3u, 4u}) {
    EXPECT_GT(mixed_up("zb-v", ranks), 0) << ranks;
    EXPECT_EQ(mixed_up("1f1b", ranks), 0) << ranks;
  }
  EXPECT_GT(mixed_up("dualpipe-v", 4), 0);
  EXPECT_GT(mixed_up("interleaved-zb", 2), 0);
}

}  // namespace
}  // namespace hetcomm::pipeline
