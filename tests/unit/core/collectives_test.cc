// Steps of collective operations, executed for all ranks at once by a model that transfers a
// message only if both ends are in a round that contains it.
//
//    * every operation, with each of its algorithms, for 1 to 9 and more ranks and for sizes around
//      all limits, gives the defined result, out of place and in place
//    * the rounds of all ranks match: no rank waits forever, and no message is left over
//    * a round's receives touch nothing that the same round sends or receives
//    * writes stay within the buffers and the scratch memory that the steps request
//    * if all ranks get a result, they get the same bits, even with an operator that is not
//      associative
//    * rounding sums are combined in rank order and rounded once, for any algorithm, size and
//      clusters; additional bytes move only where wide data passes between clusters
//    * the same holds among clusters of ranks: even, uneven and interleaved ones
//    * with a two-level algorithm, a block is sent to another cluster at most once
//    * the algorithm chosen for links and sizes is the expected one
//    * shared data is written in the way that is cheapest for writer and readers, even after a
//      change, and despite single outliers
//    * links are read from the benchmark's output; any other text is refused with an error
//    * two differing calls report their difference
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "src/core/collectives/call.h"
#include "src/core/collectives/estimate.h"
#include "src/core/collectives/segments.h"
#include "src/core/collectives/way_trials.h"
#include "src/core/collectives/write_way.h"
#include "src/core/job/membership/link_agreement.h"

namespace hetcomm::collectives {
namespace {

constexpr uint64_t kElement = 8;
constexpr uint64_t kWide = 16;  // bytes per wide element, before rounding: two words
using Words = std::vector<uint64_t>;
constexpr LinkCost kNear{.latency_ns = 300, .bytes_per_s = 20'000'000'000};
constexpr LinkCost kFar{.latency_ns = 20'000, .bytes_per_s = 1'000'000'000};

struct Case {
  Kind kind;
  Algorithm algorithm = Algorithm::kChosen;
  uint32_t ranks = 1;
  uint32_t root = 0;
  uint64_t elements = 0;  // per buffer or per block
  bool exclusive = false;
  bool monitored = false;
  bool in_place = false;
  bool rounds = false;
  std::vector<uint32_t> clusters{};  // one per rank; empty: a single cluster
};

bool has_v(Kind kind) {
  return kind == Kind::kAllgatherv || kind == Kind::kReduceScatterv || kind == Kind::kAlltoallv ||
         kind == Kind::kGatherv || kind == Kind::kScatterv;
}

// Returns the number of elements in the block sent from |from| to |to| in the variants with v.
uint64_t block_elements(const Case& test, uint32_t from, uint32_t to) {
  if (!has_v(test.kind)) return test.elements;
  const bool by_sender = test.kind == Kind::kAllgatherv || test.kind == Kind::kGatherv;
  const bool by_receiver = test.kind == Kind::kReduceScatterv || test.kind == Kind::kScatterv;
  const uint32_t key = by_sender ? from : by_receiver ? to : from * 3 + to;
  return key % 3 == 1 ? 0 : test.elements + key;
}

uint64_t value(uint32_t rank, uint64_t index) {
  return (rank + 1) * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u;
}

struct Rank {
  Problem problem;
  std::vector<uint64_t> send_blocks;
  std::vector<uint64_t> receive_blocks;
  Words send;  // all blocks consecutively
  Words receive;
  Words scratch;
  Steps steps;
  size_t next = 0;
  uint32_t open = 0;  // pending messages in the round
  bool posted = false;
};

constexpr uint64_t kUntouched = 0xbad;
constexpr uint64_t kWideMark = 0x3141592653589793;
uint64_t rounded(uint64_t sum) { return sum * 7 + 3; }

struct Traffic {
  uint64_t bytes = 0;
  uint64_t messages = 0;
};

class Model {
 public:
  using Combine = uint64_t (*)(uint64_t, uint64_t);
  Model(const Case& test, Combine combine) : test_(test), combine_(combine) {
    std::vector<uint32_t> labels = test.clusters;
    labels.resize(test.ranks);
    placement_ = RankPlacement(labels, kNear, kFar);
    for (uint32_t rank = 0; rank < test.ranks; ++rank) add_rank(rank);
  }

  void run() {
    const uint64_t segments = count_segments(ranks_[0]->problem);
    for (const auto& rank : ranks_) ASSERT_EQ(count_segments(rank->problem), segments);
    for (uint64_t segment = 0; segment < segments; ++segment) {
      for (const auto& rank : ranks_) {
        make_steps(rank->problem, segment, &rank->steps);
        rank->scratch.assign((rank->steps.scratch_bytes + 7) / 8, 0xdead);
        rank->next = 0;
        rank->posted = false;
      }
      ASSERT_NO_FATAL_FAILURE(run_segment());
    }
  }

 private:
  struct Message {
    Rank* rank;
    const Step* step;
  };

  void add_rank(uint32_t index) {
    auto rank = std::make_unique<Rank>();
    Problem& problem = rank->problem;
    problem.kind = test_.kind;
    problem.algorithm = test_.algorithm;
    problem.exclusive = test_.exclusive;
    problem.monitored = test_.monitored;
    problem.placement = &placement_;
    problem.ranks = test_.ranks;
    problem.rank = index;
    problem.root = test_.root;
    problem.element_bytes = kElement;
    problem.rounds = test_.rounds;
    problem.wide_bytes = kWide;
    problem.bytes = test_.elements * kElement;
    const bool at_root = index == test_.root;
    if (has_v(test_.kind)) {
      const bool sends = test_.kind == Kind::kReduceScatterv || test_.kind == Kind::kAlltoallv ||
                         (test_.kind == Kind::kScatterv && at_root);
      const bool receives = test_.kind == Kind::kAllgatherv || test_.kind == Kind::kAlltoallv ||
                            (test_.kind == Kind::kGatherv && at_root);
      for (uint32_t peer = 0; peer < test_.ranks; ++peer) {
        if (sends) rank->send_blocks.push_back(block_elements(test_, index, peer) * kElement);
        if (receives) rank->receive_blocks.push_back(block_elements(test_, peer, index) * kElement);
      }
      problem.bytes = block_elements(test_, index, index) * kElement;
      problem.send_blocks = rank->send_blocks;
      problem.receive_blocks = rank->receive_blocks;
    }
    const uint64_t sent = sends_blocks(test_.kind) ? start(*rank, BufferKind::kSend, test_.ranks)
                                                   : problem.bytes / kElement;
    const uint64_t received = receives_blocks(test_.kind)
                                  ? start(*rank, BufferKind::kReceive, test_.ranks)
                                  : problem.bytes / kElement;
    for (uint64_t i = 0; i < sent; ++i) rank->send.push_back(value(index, i));
    rank->receive.assign(received, kUntouched);
    if (test_.kind == Kind::kBroadcast && at_root) rank->receive = rank->send;
    if (test_.in_place && !sends_blocks(test_.kind)) {
      const uint64_t from =
          receives_blocks(test_.kind) ? start(*rank, BufferKind::kReceive, index) : 0;
      std::copy(rank->send.begin(), rank->send.end(),
                rank->receive.begin() + static_cast<std::ptrdiff_t>(from));
    }
    ranks_.push_back(std::move(rank));
  }

  static uint64_t start(const Rank& rank, BufferKind buffer, uint32_t block) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < block; ++i) {
      at +=
          buffer == BufferKind::kSend ? rank.problem.send_block(i) : rank.problem.receive_block(i);
    }
    return at / kElement;
  }

  // In place, both buffers are one; |send| is neither written nor read.
  Words& memory(Rank& rank, BufferKind buffer, uint64_t* shift) const {
    *shift = 0;
    if (buffer == BufferKind::kScratch) return rank.scratch;
    if (!test_.in_place) return buffer == BufferKind::kSend ? rank.send : rank.receive;
    const uint32_t me = rank.problem.rank;
    if (sends_blocks(test_.kind)) {
      if (buffer == BufferKind::kReceive) *shift = start(rank, BufferKind::kSend, me);
      return rank.send;
    }
    if (receives_blocks(test_.kind)) {
      if (buffer == BufferKind::kSend) *shift = start(rank, BufferKind::kReceive, me);
      return rank.receive;
    }
    return rank.receive;
  }

  uint64_t* at(Rank& rank, const Range& range) const {
    uint64_t shift = 0;
    Words& words = memory(rank, range.buffer, &shift);
    const uint64_t from =
        shift + range.offset / kElement +
        (range.buffer == BufferKind::kScratch ? 0 : start(rank, range.buffer, range.block));
    EXPECT_EQ(range.offset % kElement, 0U);
    EXPECT_LE(from + range.length / kElement, words.size());
    return words.data() + from;
  }

  void run_segment() {
    std::map<std::pair<uint32_t, uint32_t>, std::deque<Message>> sends;
    std::map<std::pair<uint32_t, uint32_t>, std::deque<Message>> receives;
    bool moved = true;
    while (moved) {
      moved = false;
      for (const auto& rank : ranks_) moved = advance(*rank, sends, receives) || moved;
      for (auto& [pair, queue] : sends) {
        std::deque<Message>& waiting = receives[pair];
        while (!queue.empty() && !waiting.empty()) {
          deliver(queue.front(), waiting.front());
          queue.pop_front();
          waiting.pop_front();
          moved = true;
        }
      }
    }
    for (const auto& rank : ranks_) {
      ASSERT_EQ(rank->next, rank->steps.list.size())
          << "rank " << rank->problem.rank << " waits for ever";
    }
    for (const auto& [pair, queue] : sends) EXPECT_TRUE(queue.empty());
    for (const auto& [pair, queue] : receives) EXPECT_TRUE(queue.empty());
  }

  void deliver(const Message& send, const Message& receive) const {
    EXPECT_EQ(send.step->to.length, receive.step->to.length);
    const uint64_t bytes = std::min(send.step->to.length, receive.step->to.length);
    moved_ += bytes;
    const uint32_t from = placement_.cluster_of[send.rank->problem.rank];
    if (placement_.cluster_of[receive.rank->problem.rank] != from) {
      left_[from].bytes += bytes;
      ++left_[from].messages;
    }
    if (bytes > 0) {
      std::memmove(at(*receive.rank, receive.step->to), at(*send.rank, send.step->to), bytes);
    }
    --send.rank->open;
    --receive.rank->open;
  }

  template <typename Queues>
  bool advance(Rank& rank, Queues& sends, Queues& receives) {
    const std::vector<Step>& steps = rank.steps.list;
    if (rank.next == steps.size() || (rank.posted && rank.open > 0)) return false;
    size_t end = rank.next;
    while (end < steps.size() && steps[end].round == steps[rank.next].round) ++end;
    if (!rank.posted) {
      check_round(rank, rank.next, end);
      for (size_t i = rank.next; i < end; ++i) {
        const Step& step = steps[i];
        if (step.kind == StepKind::kSend) {
          sends[{rank.problem.rank, step.peer}].push_back({&rank, &step});
          ++rank.open;
        } else if (step.kind == StepKind::kReceive) {
          receives[{step.peer, rank.problem.rank}].push_back({&rank, &step});
          ++rank.open;
        }
      }
      rank.posted = true;
      if (rank.open > 0) return true;
    }
    for (size_t i = rank.next; i < end; ++i) run_step(rank, steps[i]);
    rank.next = end;
    rank.posted = false;
    return true;
  }

  void run_step(Rank& rank, const Step& step) const {
    if (step.kind == StepKind::kCopy && step.to.length > 0) {
      std::memmove(at(rank, step.to), at(rank, step.first), step.to.length);
    } else if (step.kind == StepKind::kReduce || step.kind == StepKind::kReduceWide) {
      reduce(rank, step);
    } else if (step.kind == StepKind::kCombine) {
      EXPECT_FALSE(test_.rounds) << "combined, and so rounded, on its way";
      uint64_t* to = at(rank, step.to);
      const uint64_t* first = at(rank, step.first);
      const uint64_t* second = at(rank, step.second);
      for (uint64_t i = 0; i < step.to.length / kElement; ++i) {
        to[i] = combine_(first[i], second[i]);
      }
    }
  }

  // A wide element has a second word that marks it. Rounding changes its value.
  void reduce(Rank& rank, const Step& step) const {
    const bool wide = step.kind == StepKind::kReduceWide;
    EXPECT_TRUE(!wide || test_.rounds);
    const uint64_t count = step.to.length / (wide ? kWide : kElement);
    const bool begun = step.first.length > 0;
    EXPECT_TRUE(!begun || test_.rounds);
    if (begun) {
      EXPECT_EQ(step.first.length, count * kWide);
    }
    Words sums(count);
    for (uint64_t i = 0; i < count && begun; ++i) {
      sums[i] = at(rank, step.first)[2 * i];
      EXPECT_EQ(at(rank, step.first)[2 * i + 1], kWideMark);
    }
    for (uint32_t k = 0; k < step.inputs; ++k) {
      const Range& input = rank.steps.inputs[step.inputs_at + k];
      EXPECT_EQ(input.length, count * kElement);
      const uint64_t* from = at(rank, input);
      for (uint64_t i = 0; i < count; ++i) {
        sums[i] = k == 0 && !begun ? from[i] : combine_(sums[i], from[i]);
      }
    }
    uint64_t* to = at(rank, step.to);
    for (uint64_t i = 0; i < count; ++i) {
      if (wide) {
        to[2 * i] = sums[i];
        to[2 * i + 1] = kWideMark;
      } else {
        to[i] = test_.rounds ? rounded(sums[i]) : sums[i];
      }
    }
  }

  // Checks that local steps follow messages, and that no receive touches another message.
  void check_round(Rank& rank, size_t begin, size_t end) const {
    bool local = false;
    for (size_t i = begin; i < end; ++i) {
      const Step& step = rank.steps.list[i];
      const bool message = step.kind == StepKind::kSend || step.kind == StepKind::kReceive;
      EXPECT_FALSE(local && message) << "a message behind a local step";
      local = local || !message;
      if (step.kind != StepKind::kReceive) continue;
      const uint64_t* from = at(rank, step.to);
      for (size_t k = begin; k < end; ++k) {
        const Step& other = rank.steps.list[k];
        if (k == i || (other.kind != StepKind::kSend && other.kind != StepKind::kReceive)) continue;
        const uint64_t* start = at(rank, other.to);
        EXPECT_TRUE(from + step.to.length / kElement <= start ||
                    start + other.to.length / kElement <= from)
            << "a round receives into what it sends or receives";
      }
    }
  }

  const Case& test_;
  Combine combine_;
  RankPlacement placement_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  mutable std::map<uint32_t, Traffic> left_;  // bytes that each cluster has sent to other clusters
  mutable uint64_t moved_ = 0;                // bytes of all messages

  friend Traffic most_left(const Model& model);
  friend uint64_t moved_bytes(const Model& model);
  friend Words result_of(const Model& model, uint32_t rank);
};

Traffic most_left(const Model& model) {
  Traffic most;
  for (const auto& [cluster, each] : model.left_) {
    most.bytes = std::max(most.bytes, each.bytes);
    most.messages = std::max(most.messages, each.messages);
  }
  return most;
}

uint64_t moved_bytes(const Model& model) { return model.moved_; }

Words result_of(const Model& model, uint32_t rank) {
  uint64_t shift = 0;
  Rank& own = *model.ranks_[rank];
  const Words& words = model.memory(own, BufferKind::kReceive, &shift);
  const uint64_t length = own.receive.size();
  return {words.begin() + static_cast<std::ptrdiff_t>(shift),
          words.begin() + static_cast<std::ptrdiff_t>(shift + length)};
}

uint64_t add(uint64_t a, uint64_t b) { return a + b; }
// Neither associative nor commutative.
uint64_t mingle(uint64_t a, uint64_t b) { return a * 31 + (b ^ a >> 7); }

// Returns the required result for |rank|, or nullopt if any content is allowed.
std::optional<Words> expected(const Case& test, uint32_t rank) {
  Words words;
  const auto sum = [&](uint32_t first, uint32_t last, uint64_t index) {
    uint64_t total = value(first, index);
    for (uint32_t r = first + 1; r < last; ++r) {
      total = test.rounds ? mingle(total, value(r, index)) : total + value(r, index);
    }
    return test.rounds ? rounded(total) : total;
  };
  const auto sent_start = [&](uint32_t from, uint32_t to) {
    uint64_t at = 0;
    for (uint32_t block = 0; block < to; ++block) at += block_elements(test, from, block);
    return at;
  };
  const bool at_root = rank == test.root;
  switch (test.kind) {
    case Kind::kBarrier:
      return std::nullopt;
    case Kind::kBroadcast:
      for (uint64_t i = 0; i < test.elements; ++i) words.push_back(value(test.root, i));
      return words;
    case Kind::kReduce:
      if (!at_root) return std::nullopt;
      [[fallthrough]];
    case Kind::kAllreduce:
      for (uint64_t i = 0; i < test.elements; ++i) words.push_back(sum(0, test.ranks, i));
      return words;
    case Kind::kScan:
      for (uint64_t i = 0; i < test.elements; ++i) {
        if (test.exclusive && rank == 0) {
          // The root's result is unchanged.
          words.push_back(test.in_place ? value(0, i) : kUntouched);
          continue;
        }
        words.push_back(sum(0, test.exclusive ? rank : rank + 1, i));
      }
      return words;
    case Kind::kGather:
    case Kind::kGatherv:
      if (!at_root) return std::nullopt;
      [[fallthrough]];
    case Kind::kAllgather:
    case Kind::kAllgatherv:
      for (uint32_t from = 0; from < test.ranks; ++from) {
        for (uint64_t i = 0; i < block_elements(test, from, from); ++i) {
          words.push_back(value(from, i));
        }
      }
      return words;
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
      for (uint64_t i = 0; i < block_elements(test, rank, rank); ++i) {
        words.push_back(sum(0, test.ranks, sent_start(rank, rank) + i));
      }
      return words;
    case Kind::kScatter:
    case Kind::kScatterv:
      for (uint64_t i = 0; i < block_elements(test, test.root, rank); ++i) {
        words.push_back(value(test.root, sent_start(test.root, rank) + i));
      }
      return words;
    case Kind::kAlltoall:
    case Kind::kAlltoallv:
      for (uint32_t from = 0; from < test.ranks; ++from) {
        for (uint64_t i = 0; i < block_elements(test, from, rank); ++i) {
          words.push_back(value(from, sent_start(from, rank) + i));
        }
      }
      return words;
  }
  return std::nullopt;
}

std::string list_of(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (const uint32_t number : numbers) text += " " + std::to_string(number);
  return text;
}

std::string name(const Case& test) {
  return std::string(name_of(test.kind)) + " by " + name_of(test.algorithm) + ", " +
         std::to_string(test.ranks) + " ranks, root " + std::to_string(test.root) + ", " +
         std::to_string(test.elements) + " elements" + (test.exclusive ? ", exclusive" : "") +
         (test.monitored ? ", monitored" : "") + (test.in_place ? ", in place" : "") +
         (test.rounds ? ", rounding" : "") +
         (test.clusters.empty() ? "" : ", clusters" + list_of(test.clusters));
}

void run_once(const Case& test) {
  SCOPED_TRACE(name(test));
  // In place, the model has one buffer: the sender's if it has all blocks, else the receiver's.
  Model model(test, test.rounds ? mingle : add);
  model.run();
  if (::testing::Test::HasFatalFailure()) return;
  for (uint32_t rank = 0; rank < test.ranks; ++rank) {
    const std::optional<Words> right = expected(test, rank);
    if (!right) continue;
    ASSERT_EQ(result_of(model, rank), *right) << "rank " << rank;
  }
  if (test.kind != Kind::kAllreduce || test.rounds) return;
  Model odd(test, mingle);
  odd.run();
  for (uint32_t rank = 1; rank < test.ranks; ++rank) {
    ASSERT_EQ(result_of(odd, rank), result_of(odd, 0)) << "bits of rank " << rank;
  }
}

void run_case(Case test) {
  run_once(test);
  if (!reduces(test.kind) || ::testing::Test::HasFatalFailure()) return;
  test.rounds = true;
  run_once(test);
}

constexpr Algorithm kAlgorithms[] = {
    Algorithm::kChosen, Algorithm::kBinomial, Algorithm::kDissemination,
    Algorithm::kLinear, Algorithm::kPairwise, Algorithm::kRecursiveDoubling,
    Algorithm::kRing,   Algorithm::kTwoLevel,
};

bool works_in_place(Kind kind) {
  const bool moves_all = kind == Kind::kAlltoall || kind == Kind::kAlltoallv ||
                         kind == Kind::kBroadcast || kind == Kind::kBarrier;
  // Only at the root, if the other ranks have no such buffer.
  const bool rooted = has_root(kind) && kind != Kind::kReduce;
  return !moves_all && !rooted;
}

class CollectiveSteps : public ::testing::TestWithParam<int> {};

TEST_P(CollectiveSteps, EveryAlgorithmGivesTheDefinedResult) {
  const Kind kind = static_cast<Kind>(GetParam());
  for (const Algorithm algorithm : kAlgorithms) {
    Algorithm found = Algorithm::kChosen;
    std::string known;
    if (algorithm != Algorithm::kChosen &&
        !find_algorithm(kind, name_of(algorithm), &found, &known)) {
      continue;
    }
    for (const uint32_t ranks : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 16u, 17u}) {
      for (const uint64_t elements : {0u, 1u, 2u, 7u, 17u, 64u, 3001u}) {
        for (uint32_t root = 0; root < (has_root(kind) ? std::min(ranks, 3u) : 1); ++root) {
          Case test{.kind = kind,
                    .algorithm = algorithm,
                    .ranks = ranks,
                    .root = ranks - 1 - root,
                    .elements = elements};
          if (!has_root(kind)) test.root = 0;
          run_case(test);
          test.in_place = works_in_place(kind);
          if (test.in_place) run_case(test);
          test.in_place = false;
          if (kind == Kind::kScan) {
            test.exclusive = true;
            run_case(test);
          }
          if (kind == Kind::kBarrier) {
            test.monitored = true;
            run_case(test);
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

const std::vector<uint32_t> kClusters[] = {
    {0, 1, 0},
    {0, 0, 1, 1},
    {0, 1, 0, 1},
    {0, 1, 1, 1},
    {0, 0, 0, 1, 1},
    {0, 1, 2, 3},
    {0, 1, 2, 0, 1, 2, 0},
    {2, 2, 0, 1, 2, 0},
    {0, 0, 0, 0, 1, 1, 1, 1},
    {0, 1, 1, 2, 2, 2},
    {0, 0, 1, 1, 2, 2},
    {0, 1, 0, 2, 1, 3, 0},
    {0, 0, 0, 0, 0, 1, 2, 3, 4},
};

TEST_P(CollectiveSteps, RanksInClustersGetTheDefinedResult) {
  const Kind kind = static_cast<Kind>(GetParam());
  for (const Algorithm algorithm : {Algorithm::kChosen, Algorithm::kRing, Algorithm::kTwoLevel}) {
    Algorithm found = Algorithm::kChosen;
    std::string known;
    if (algorithm != Algorithm::kChosen &&
        !find_algorithm(kind, name_of(algorithm), &found, &known)) {
      continue;
    }
    for (const std::vector<uint32_t>& clusters : kClusters) {
      const auto ranks = static_cast<uint32_t>(clusters.size());
      const bool blocks = sends_blocks(kind) || receives_blocks(kind);
      const uint32_t several_segments = blocks ? 20'001 : 160'001;
      for (const uint64_t elements : {0u, 1u, 2u, 7u, 64u, 3001u, several_segments}) {
        // A few ranks suffice to reveal errors with several segments.
        if (elements == several_segments && ranks > 5) continue;
        for (uint32_t root = 0; root < (has_root(kind) ? ranks : 1); ++root) {
          Case test{.kind = kind,
                    .algorithm = algorithm,
                    .ranks = ranks,
                    .root = root,
                    .elements = elements,
                    .clusters = clusters};
          run_case(test);
          test.in_place = works_in_place(kind);
          if (test.in_place) run_case(test);
          if (kind == Kind::kScan) {
            test.exclusive = true;
            run_case(test);
          }
          if (HasFatalFailure()) return;
          if (elements == several_segments) break;
        }
      }
    }
  }
}

// Tests several segments and a remainder.
TEST_P(CollectiveSteps, LargeDataInSegmentsGivesTheDefinedResult) {
  const Kind kind = static_cast<Kind>(GetParam());
  for (const uint32_t ranks : {2u, 3u, 8u}) {
    for (const uint64_t elements : {131'072u, 300'001u}) {
      run_case({.kind = kind, .ranks = ranks, .elements = elements});
      if (HasFatalFailure()) return;
    }
  }
}

std::string kind_name(const ::testing::TestParamInfo<int>& info) {
  return name_of(static_cast<Kind>(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, CollectiveSteps, ::testing::Range(0, static_cast<int>(kKinds)),
                         kind_name);

// Counts the bytes that the link from one cluster of four to the other carries.
TEST(CollectiveClusters, TwoLevelAlgorithmsSendLittleBetweenClusters) {
  const std::vector<uint32_t> clusters = {0, 1, 0, 1, 0, 1, 0, 1};
  const uint64_t elements = 4096;
  const auto traffic_of = [&](Kind kind, Algorithm algorithm) {
    const Case test{.kind = kind,
                    .algorithm = algorithm,
                    .ranks = 8,
                    .elements = elements,
                    .clusters = clusters};
    Model model(test, [](uint64_t a, uint64_t b) { return a + b; });
    model.run();
    return most_left(model);
  };
  const auto bytes_of = [&](Kind kind, Algorithm algorithm) {
    return traffic_of(kind, algorithm).bytes;
  };
  const auto messages_of = [&](Kind kind, Algorithm algorithm) {
    return traffic_of(kind, algorithm).messages;
  };
  const uint64_t bytes = elements * kElement;
  EXPECT_EQ(bytes_of(Kind::kAllreduce, Algorithm::kTwoLevel), bytes);
  EXPECT_EQ(bytes_of(Kind::kAllreduce, Algorithm::kRing), 2 * bytes * 7 / 8);
  EXPECT_EQ(bytes_of(Kind::kBroadcast, Algorithm::kTwoLevel), bytes);
  EXPECT_EQ(bytes_of(Kind::kReduce, Algorithm::kTwoLevel), bytes);
  EXPECT_EQ(bytes_of(Kind::kAllgather, Algorithm::kTwoLevel), 4 * bytes);
  EXPECT_EQ(bytes_of(Kind::kReduceScatter, Algorithm::kTwoLevel), 4 * bytes);
  // In rank order, half of all bytes sent go to the other cluster.
  EXPECT_EQ(bytes_of(Kind::kAllgather, Algorithm::kPairwise), 16 * bytes);
  EXPECT_EQ(bytes_of(Kind::kAllreduce, Algorithm::kRecursiveDoubling), 4 * bytes);
  // An alltoall moves as many bytes on two levels, in fewer messages.
  EXPECT_EQ(bytes_of(Kind::kAlltoall, Algorithm::kTwoLevel), 16 * bytes);
  EXPECT_EQ(messages_of(Kind::kAlltoall, Algorithm::kTwoLevel), 4u);
  EXPECT_EQ(messages_of(Kind::kAlltoall, Algorithm::kLinear), 16u);
  EXPECT_EQ(messages_of(Kind::kGather, Algorithm::kTwoLevel), 1u);
  EXPECT_EQ(messages_of(Kind::kGather, Algorithm::kLinear), 4u);
  EXPECT_EQ(messages_of(Kind::kScatter, Algorithm::kTwoLevel), 1u);
  EXPECT_EQ(messages_of(Kind::kScatter, Algorithm::kLinear), 4u);
}

// Uses the algorithms for large data, with and without rounding.
TEST(CollectiveRounding, RoundingOnceSendsMoreBytesOnlyInReduceAndScan) {
  const auto moved = [](Kind kind, Algorithm algorithm, uint32_t ranks, bool rounds) {
    const Case test{
        .kind = kind, .algorithm = algorithm, .ranks = ranks, .elements = 26880, .rounds = rounds};
    Model model(test, mingle);
    model.run();
    return moved_bytes(model);
  };
  for (const uint32_t ranks : {2u, 3u, 4u, 5u, 8u, 16u}) {
    SCOPED_TRACE(ranks);
    EXPECT_EQ(moved(Kind::kAllreduce, Algorithm::kRing, ranks, true),
              moved(Kind::kAllreduce, Algorithm::kRing, ranks, false));
    EXPECT_EQ(moved(Kind::kReduceScatter, Algorithm::kPairwise, ranks, true),
              moved(Kind::kReduceScatter, Algorithm::kPairwise, ranks, false));
    // The pieces go to the root in separate messages.
    const uint64_t reduced = moved(Kind::kReduce, Algorithm::kRing, ranks, false);
    const uint64_t most = ranks > 3 ? reduced + reduced / ranks : reduced;
    EXPECT_EQ(moved(Kind::kReduce, Algorithm::kRing, ranks, true), most);
    // The sum of the ranks before a rank is wide.
    EXPECT_EQ(moved(Kind::kScan, Algorithm::kRing, ranks, true),
              moved(Kind::kScan, Algorithm::kRing, ranks, false) * kWide / kElement);
  }
}

Algorithm chosen(Kind kind, const RankPlacement& placement, uint64_t bytes, bool rounds = false) {
  Problem problem;
  problem.kind = kind;
  problem.rounds = rounds;
  problem.element_bytes = 2;
  problem.wide_bytes = 4;
  problem.placement = &placement;
  problem.ranks = static_cast<uint32_t>(placement.cluster_of.size());
  problem.bytes = bytes;
  return choose(problem);
}

TEST(CollectiveAlgorithms, ChoiceFollowsLinksAndSize) {
  const RankPlacement host(std::vector<uint32_t>(8, 0), kNear, kFar);
  EXPECT_EQ(chosen(Kind::kAllreduce, host, 64), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(chosen(Kind::kAllreduce, host, 16 << 20), Algorithm::kRing);
  EXPECT_EQ(chosen(Kind::kBroadcast, host, 64), Algorithm::kBinomial);
  EXPECT_EQ(chosen(Kind::kBroadcast, host, 16 << 20), Algorithm::kRing);
  EXPECT_EQ(chosen(Kind::kBarrier, host, 0), Algorithm::kDissemination);
  EXPECT_EQ(chosen(Kind::kAllgather, host, 64), Algorithm::kPairwise);
  EXPECT_EQ(chosen(Kind::kScan, host, 64), Algorithm::kRecursiveDoubling);

  // The latency of slow links matters up to larger sizes.
  const RankPlacement far(std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}, kNear, kFar);
  EXPECT_EQ(chosen(Kind::kAllreduce, host, 64 << 10), Algorithm::kRing);
  EXPECT_EQ(chosen(Kind::kAllreduce, far, 64 << 10), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(chosen(Kind::kAllreduce, far, 16 << 20), Algorithm::kRing);

  const RankPlacement hosts(std::vector<uint32_t>{0, 1, 0, 1, 0, 1, 0, 1}, kNear, kFar);
  for (const Kind kind :
       {Kind::kBarrier, Kind::kBroadcast, Kind::kReduce, Kind::kAllreduce, Kind::kAllgather,
        Kind::kReduceScatter, Kind::kAlltoall, Kind::kGather, Kind::kScatter}) {
    EXPECT_EQ(chosen(kind, hosts, 64), Algorithm::kTwoLevel) << name_of(kind);
  }
  EXPECT_EQ(chosen(Kind::kAllreduce, hosts, 16 << 20), Algorithm::kTwoLevel);
  EXPECT_EQ(chosen(Kind::kAlltoall, hosts, 16 << 20), Algorithm::kPairwise);
  EXPECT_EQ(chosen(Kind::kGather, hosts, 16 << 20), Algorithm::kLinear);
  // A rounding sum passes from cluster to cluster if each cluster's ranks are consecutive.
  const RankPlacement row(std::vector<uint32_t>{0, 0, 0, 0, 1, 1, 1, 1}, kNear, kFar);
  EXPECT_EQ(chosen(Kind::kAllreduce, host, 64, true), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(chosen(Kind::kAllreduce, host, 16 << 20, true), Algorithm::kRing);
  EXPECT_EQ(chosen(Kind::kAllreduce, row, 64, true), Algorithm::kTwoLevel);
  EXPECT_EQ(chosen(Kind::kAllreduce, row, 16 << 20, true), Algorithm::kTwoLevel);
  // With few ranks, a rank's input has fewer bytes than its wide sum.
  EXPECT_EQ(chosen(Kind::kReduceScatter, row, 16 << 20, true), Algorithm::kPairwise);
  std::vector<uint32_t> many(32, 0);
  std::fill(many.begin() + 16, many.end(), 1);
  const RankPlacement large(many, kNear, kFar);
  EXPECT_EQ(chosen(Kind::kReduceScatter, large, 16 << 20, true), Algorithm::kTwoLevel);
  EXPECT_EQ(chosen(Kind::kReduce, large, 16 << 20, true), Algorithm::kTwoLevel);
  EXPECT_EQ(chosen(Kind::kScan, host, 16 << 20, true), Algorithm::kRing);
  // A scan is in rank order, so clusters help only if their ranks are consecutive.
  const RankPlacement in_a_row(std::vector<uint32_t>{0, 0, 0, 0, 1, 1, 1, 1}, kNear, kFar);
  EXPECT_EQ(chosen(Kind::kScan, hosts, 64), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(chosen(Kind::kScan, in_a_row, 64 << 10), Algorithm::kTwoLevel);
}

// Between hosts, the algorithm uses rounds or a ring, whichever is faster.
TEST(CollectiveAlgorithms, TwoLevelsUseTheFasterAlgorithmBetweenHosts) {
  std::vector<uint32_t> labels;
  for (uint32_t rank = 0; rank < 128; ++rank) labels.push_back(rank / 2);
  const RankPlacement hosts(labels, kNear, kFar);
  const auto time = [&](uint64_t bytes) {
    Problem problem;
    problem.kind = Kind::kAllreduce;
    problem.element_bytes = 4;
    problem.wide_bytes = 4;
    problem.placement = &hosts;
    problem.ranks = 128;
    problem.bytes = bytes;
    return estimate_ns(problem, Algorithm::kTwoLevel);
  };
  // With 64 hosts there are 6 rounds, but 126 steps in a ring.
  EXPECT_LT(time(64), 20 * kFar.latency_ns);
  // Over each host's link, a ring moves all bytes twice, and rounds move them 6 times.
  constexpr uint64_t kMany = uint64_t{1} << 30;
  EXPECT_LT(time(kMany), 4 * kFar.time_ns(kMany));
}

// Two ranks that write for each other.
class Writers {
 public:
  struct Cost {  // ticks per chunk
    uint64_t writing;
    uint64_t reading;
  };
  // Runs |count| chunks and returns how many of them bypassed the cache.
  int run(int count, Cost cached, Cost streamed) {
    constexpr uint64_t kChunk = 64u << 10;
    int past = 0;
    for (int i = 0; i < count; ++i) {
      for (size_t rank = 0; rank < 2; ++rank) {
        const size_t peer = 1 - rank;
        const WriteWay way = choosers_[rank].next([&](WriteWay asked) {
          return published_[peer].by_way[static_cast<size_t>(asked)].load();
        });
        const Cost& cost = way == WriteWay::kStreamed ? streamed : cached;
        // Sometimes a writer loses the processor.
        const uint64_t disturbed = ++steps_ % 50 == 0 ? 1'000'000 : 0;
        choosers_[rank].wrote(way, kChunk, cost.writing + disturbed);
        choosers_[peer].read(way, kChunk, cost.reading + disturbed);
        past += way == WriteWay::kStreamed ? 1 : 0;
      }
    }
    return past;
  }

 private:
  ReadCosts published_[2]{};
  WayChooser choosers_[2]{WayChooser(published_[0]), WayChooser(published_[1])};
  int steps_ = 0;
};

TEST(WriteWays, CheapestWayIsChosen) {
  Writers writers;
  const Writers::Cost near{.writing = 4'000, .reading = 4'000};
  const Writers::Cost far{.writing = 30'000, .reading = 60'000};
  const Writers::Cost memory{.writing = 9'000, .reading = 9'000};
  constexpr int kChunks = 2'000;
  // One in 32 of the 2 x 2000 chunks tries the other method.
  EXPECT_LT(writers.run(kChunks, near, memory), kChunks / 8);
  writers.run(500, far, memory);
  EXPECT_GT(writers.run(kChunks, far, memory), 2 * kChunks - kChunks / 8);
  writers.run(500, near, memory);
  EXPECT_LT(writers.run(kChunks, near, memory), kChunks / 8);
}

// Runs |count| more operations, which take |cached_ns| or |streamed_ns|. Returns how many bypassed
// the caches.
int try_ways(WayTrials& ways, int count, bool sums, uint64_t bytes, uint64_t cached_ns,
             uint64_t streamed_ns) {
  int streamed = 0;
  for (int i = 0; i < count; ++i) {
    const WriteWay way = ways.next(sums, bytes);
    const bool is_streamed = way == WriteWay::kStreamed;
    streamed += is_streamed ? 1 : 0;
    // Sometimes a rank loses the processor.
    ways.note(way, (is_streamed ? streamed_ns : cached_ns) + (i % 50 == 49 ? 100'000'000 : 0));
  }
  return streamed;
}

TEST(WayTrials, ConvergeOnTheFasterWay) {
  WayTrials ways;
  constexpr uint64_t kBytes = 16 << 20;
  EXPECT_LE(try_ways(ways, 640, true, kBytes, 1'000'000, 1'500'000), 640 / 32 + 6);
  // The rarely used method becomes faster, and then the other one slower.
  try_ways(ways, 320, true, kBytes, 1'000'000, 500'000);
  EXPECT_GE(try_ways(ways, 640, true, kBytes, 1'000'000, 500'000), 640 - 640 / 32 - 6);
  EXPECT_LE(try_ways(ways, 640, true, kBytes, 1'000'000, 2'000'000), 640 / 32 + 12);
  // Other lengths, and operations without sums, are independent of this case.
  EXPECT_LE(try_ways(ways, 640, false, kBytes, 1'000'000, 1'500'000), 640 / 32 + 6);
  EXPECT_LE(try_ways(ways, 640, true, kBytes * 4, 1'000'000, 1'500'000), 640 / 32 + 6);
}

// The first operations allocate pages, so their times do not reveal which method is faster.
TEST(WayTrials, FirstOperationsAreNotMeasured) {
  WayTrials ways;
  EXPECT_EQ(ways.next(true, 1 << 24), WriteWay::kCached);
  ways.note(WriteWay::kCached, 900'000'000);
  EXPECT_EQ(ways.next(true, 1 << 24), WriteWay::kStreamed);
  ways.note(WriteWay::kStreamed, 1'000);
  EXPECT_LE(try_ways(ways, 638, true, 1 << 24, 1'000'000, 1'500'000), 640 / 32 + 6);
}

constexpr const char* kBench = R"({"meta": {}, "rows": [
  {"test": "latency", "impl": "hetcomm", "transport": "tcp", "memory": "host", "bytes": 8,
   "avg_us": 12.5, "bandwidth_MBps": 0.6},
  {"test": "latency", "impl": "hetcomm", "transport": "tcp", "memory": "host", "bytes": 1024,
   "avg_us": 14, "bandwidth_MBps": 70},
  {"test": "bandwidth", "impl": "hetcomm", "transport": "tcp", "memory": "host", "bytes": 65536,
   "avg_us": 40, "bandwidth_MBps": 2000},
  {"test": "bandwidth", "impl": "hetcomm", "transport": "tcp", "memory": "host", "bytes": 1048576,
   "avg_us": 40, "bandwidth_MBps": 3000},
  {"test": "bandwidth", "impl": "UCX", "transport": "tcp", "memory": "host", "bytes": 1048576,
   "avg_us": 4, "bandwidth_MBps": 30000},
  {"test": "bandwidth", "impl": "hetcomm", "transport": "tcp", "memory": "sim-handle",
   "bytes": 1048576, "avg_us": 4, "bandwidth_MBps": 30000},
  {"test": "latency", "impl": "hetcomm", "transport": "shm", "memory": "host", "bytes": 8,
   "avg_us": 0.1, "bandwidth_MBps": null},
  {"test": "latency", "impl": "hetcomm", "transport": "odd", "memory": "host", "bytes": 8,
   "avg_us": 1e300},
  {"test": "bandwidth", "impl": "hetcomm", "transport": "odd", "memory": "host", "bytes": 64,
   "bandwidth_MBps": 1e300}, 7, null, {"bytes": "many"}]})";

TEST(TransportCosts, AreParsedFromBenchmarkOutput) {
  const Result<TransportCosts> model = TransportCosts::parse(kBench);
  ASSERT_TRUE(model.ok()) << model.status().text();
  const LinkCost* const tcp = model.value().find("tcp");
  ASSERT_NE(tcp, nullptr);
  EXPECT_EQ(tcp->latency_ns, 12'500U);
  EXPECT_EQ(tcp->bytes_per_s, 3'000'000'000U);
  const LinkCost* const odd = model.value().find("odd");
  ASSERT_NE(odd, nullptr);
  EXPECT_EQ(odd->latency_ns, LinkCost::kMaxLatencyNs);
  EXPECT_EQ(odd->bytes_per_s, LinkCost::kMaxBytesPerS);
  // An incomplete entry is not filled in.
  EXPECT_EQ(model.value().find("shm"), nullptr);
  for (const char* const text : {"", "{", "[]", "{\"rows\": 3}", "{\"rows\": [{}]}"}) {
    EXPECT_FALSE(TransportCosts::parse(text).ok()) << text;
  }
}

// If parsed, each of these files would take a gigabyte.
TEST(TransportCosts, DeeplyNestedAndOversizedFilesAreRefused) {
  const std::string brackets(3u << 20, '[');
  EXPECT_EQ(TransportCosts::parse(brackets).status().code(), Code::kInvalidArgument);
  EXPECT_NE(TransportCosts::parse(brackets).status().text().find("brackets"), std::string::npos);
  EXPECT_NE(TransportCosts::parse(R"({"a\\\"":")" + brackets).status().text().find("what"),
            std::string::npos)
      << "brackets in a text are none";
  const std::string path = testing::TempDir() + "hetcomm-model-" + std::to_string(getpid());
  std::ofstream(path) << std::string(9u << 20, '[');
  const Result<LinkFile> model = read_link_file(path);
  unlink(path.c_str());
  EXPECT_NE(model.status().text().find("more than 8388608 bytes"), std::string::npos)
      << model.status().text();
}

TEST(TransportCosts, ErrorNamesTheFaultyFile) {
  for (const char* const path : {"/nowhere/links.json", "/proc/self/cmdline"}) {
    const Result<LinkFile> model = read_link_file(std::string(path));
    ASSERT_FALSE(model.ok());
    EXPECT_NE(model.status().text().find(path), std::string::npos) << model.status().text();
  }
}

TEST(LinkCost, TimesDoNotOverflow) {
  const LinkCost link{.latency_ns = 5, .bytes_per_s = 1'000'000'000};
  EXPECT_EQ(link.time_ns(1000), 1005U);
  EXPECT_GT(link.time_ns(UINT64_MAX), link.time_ns(UINT64_MAX / 2));
  EXPECT_EQ((LinkCost{.latency_ns = 1, .bytes_per_s = 0}.time_ns(0)), 1U);
}

TEST(CollectiveAlgorithms, KnownNamesAreFoundAndAnUnknownNameListsTheChoices) {
  Algorithm algorithm = Algorithm::kChosen;
  std::string known;
  EXPECT_TRUE(find_algorithm(Kind::kAllreduce, "ring", &algorithm, &known));
  EXPECT_EQ(algorithm, Algorithm::kRing);
  known.clear();
  EXPECT_FALSE(find_algorithm(Kind::kAllreduce, "binomial", &algorithm, &known));
  EXPECT_EQ(known, "recursive_doubling, ring, two_level");
}

TEST(CollectiveCall, ComparisonNamesTheDifferingArgument) {
  Call one;
  one.kind = Kind::kAllreduce;
  one.datatype = 13;
  one.reduction = 0;
  one.bytes = 64;
  EXPECT_EQ(one.hash(), Call(one).hash());
  Call other = one;
  other.kind = Kind::kReduce;
  EXPECT_NE(one.hash(), other.hash());
  EXPECT_EQ(difference(one, other), "operation (allreduce, reduce)");
  other = one;
  other.bytes = 128;
  EXPECT_NE(one.hash(), other.hash());
  EXPECT_EQ(difference(one, other), "size (64 bytes, 128 bytes)");
  other = one;
  other.datatype = 5;
  EXPECT_NE(one.hash(), other.hash());
  EXPECT_EQ(difference(one, other), "type (FLOAT32, INT32)");
  other = one;
  other.reduction = 3;
  EXPECT_NE(one.hash(), other.hash());
  EXPECT_EQ(difference(one, other), "operator (SUM, MAX)");
  other = one;
  other.root = 2;
  EXPECT_NE(one.hash(), other.hash());
  EXPECT_EQ(difference(one, other), "root (0, 2)");
  EXPECT_EQ(describe(one), "allreduce of 64 bytes, FLOAT32, SUM");
}

}  // namespace
}  // namespace hetcomm::collectives
