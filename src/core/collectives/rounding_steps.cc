#include "src/core/collectives/rounding_steps.h"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "src/core/collectives/estimate.h"
#include "src/core/collectives/members.h"
#include "src/core/collectives/moving_steps.h"
#include "src/core/collectives/summing_steps.h"
#include "src/core/collectives/two_levels.h"

namespace hetcomm::collectives {
namespace {

// Up to this total length, the inputs of all ranks may be collected on one rank.
constexpr uint64_t kMaxGatheredBytes = kSegmentBytes;

// Returns whether collecting all inputs of |length| bytes at one rank is better than distributing
// shares.
bool gathers(const Problem& problem, uint64_t length) {
  if (length * problem.ranks > kMaxGatheredBytes) return false;
  switch (problem.algorithm) {
    case Algorithm::kRing:
      return false;
    case Algorithm::kTwoLevel: {
      const RankPlacement& placement = *problem.placement;
      const LinkCost& link = placement.across;
      const uint64_t wide = length / problem.element_bytes * problem.wide_bytes;
      return !placement.contiguous ||
             link.time_ns(length * placement.largest) <= link.time_ns(wide) + link.time_ns(length);
    }
    default:
      return true;
  }
}

// Returns whether sums are sent from cluster to cluster.
bool chains(const Problem& problem) {
  return problem.algorithm == Algorithm::kTwoLevel && problem.placement->contiguous;
}

// Combines the |inputs| of all members, in the order of members. The last member gets the result in
// |out|. Adds steps to the current round, and ends that round.
void chain(const Members& among, std::span<const Range> inputs, const Range& out,
           StepBuilder& steps) {
  const bool first = among.me == 0;
  const bool last = among.me + 1 == among.count;
  const Range before = first ? Range{} : steps.wide_scratch(out);
  if (!first) steps.receive(among.before(1), before);
  if (last) {
    steps.reduce(out, inputs, before);
    steps.next_round();
    return;
  }
  const Range sum = first ? steps.wide_scratch(out) : before;
  steps.reduce_wide(sum, inputs, before);
  steps.next_round();
  steps.send(among.after(1), sum);
}

// Sends each share of |own| to the rank that combines it. Returns the inputs of all ranks for this
// rank's share, by rank.
std::vector<Range> exchange_shares(const SegmentBuffers& buffers, const Members& all,
                                   const Range& own, StepBuilder& steps) {
  const Range mine = buffers.share(own, all.me, all.count);
  std::vector<Range> inputs(all.count);
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    const uint32_t to = (all.me + distance) % all.count;
    steps.send(all.rank_of(to), buffers.share(own, to, all.count));
    Range& input = inputs[all.before(distance)];
    input = steps.scratch(mine.length);
    steps.receive(all.before(distance), input);
  }
  inputs[buffers.problem().rank] = mine;
  return inputs;
}

// Collects the data of all members at member number |root|. There, returns the ranges of the data,
// by member number.
std::vector<Range> collect(const Members& among, uint32_t root, const Range& own,
                           StepBuilder& steps) {
  std::vector<Range> inputs;
  if (among.me != root) {
    steps.send(among.rank_of(root), own);
    return inputs;
  }
  for (uint32_t i = 0; i < among.count; ++i) {
    inputs.push_back(i == root ? own : steps.scratch(own.length));
    if (i != root) steps.receive(among.rank_of(i), inputs.back());
  }
  return inputs;
}

// --- allreduce --------------------------------------------------------------

// Exchanges data in pairs, like allreduce_doubling(). Instead of sums, the ranks exchange all
// inputs that they have so far, in the order of ranks.
void allreduce_rows(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Range own = buffers.sent(0);
  const Range all = buffers.received(0);
  const uint32_t power = std::bit_floor(problem.ranks);
  const uint32_t beyond = problem.ranks - power;
  const bool folded = problem.rank < 2 * beyond;
  if (folded && problem.rank % 2 == 0) {
    steps.send(problem.rank + 1, own);
    steps.next_round();
    steps.receive(problem.rank + 1, all);
    return;
  }
  const Range inputs = steps.scratch(own.length * problem.ranks);
  // Returns the range of the inputs of |count| exchanging ranks, starting with number |from|.
  const auto row = [&](uint32_t from, uint32_t count) {
    const auto rank_at = [&](uint32_t index) { return index + std::min(index, beyond); };
    Range blocks = packed_block(inputs, rank_at(from), own.length);
    blocks.length = (rank_at(from + count) - rank_at(from)) * own.length;
    return blocks;
  };
  if (folded) steps.receive(problem.rank - 1, packed_block(inputs, problem.rank - 1, own.length));
  steps.copy(packed_block(inputs, problem.rank, own.length), own);
  steps.next_round();
  const uint32_t index = folded ? problem.rank / 2 : problem.rank - beyond;
  for (uint32_t bit = 1; bit < power; bit *= 2) {
    const uint32_t partner = index ^ bit;
    const uint32_t peer = partner < beyond ? 2 * partner + 1 : partner + beyond;
    steps.send(peer, row(index & ~(bit - 1), bit));
    steps.receive(peer, row(partner & ~(bit - 1), bit));
    steps.next_round();
  }
  std::vector<Range> list(problem.ranks);
  for (uint32_t rank = 0; rank < problem.ranks; ++rank) {
    list[rank] = packed_block(inputs, rank, own.length);
  }
  steps.reduce(all, list);
  steps.next_round();
  if (folded) steps.send(problem.rank - 1, all);
}

// Gathers all inputs on every rank. Each rank combines all of them.
void allreduce_gathered(const SegmentBuffers& buffers, StepBuilder& steps) {
  const StepBuilder::Repeated repeated(steps);
  const Problem& problem = buffers.problem();
  if (problem.algorithm != Algorithm::kTwoLevel) return allreduce_rows(buffers, steps);
  const Range own = buffers.sent(0);
  std::vector<Range> inputs(problem.ranks);
  for (uint32_t rank = 0; rank < problem.ranks; ++rank) {
    inputs[rank] = rank == problem.rank ? own : steps.scratch(own.length);
  }
  allgather_two_level(buffers, inputs, steps);
  steps.next_round();
  steps.reduce(buffers.received(0), inputs);
}

// Each rank combines one share. Then the ranks exchange the results.
void allreduce_by_owners(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Members all = all_ranks(buffers.problem());
  const Range out = buffers.received(0);
  steps.reduce(buffers.share(out, all.me, all.count),
               exchange_shares(buffers, all, buffers.sent(0), steps));
  steps.next_round();
  gather_ring(buffers, all, out, steps);
}

// Divides the data into as many shares as the smallest cluster has ranks. The sum of each share is
// sent from cluster to cluster.
void allreduce_chained(const SegmentBuffers& buffers, StepBuilder& steps) {
  const TwoLevels levels(buffers.problem());
  const uint32_t shares = levels.smallest();
  const std::vector<Range> inputs = collect_of_mates(buffers, shares, steps);
  if (levels.index() < shares) {
    const Range sum = buffers.share(buffers.received(0), levels.index(), shares);
    const std::vector<uint32_t> peers = levels.peers();
    const Members among = levels.between_clusters(peers);
    chain(among, inputs, sum, steps);
    broadcast_tree(among, among.count - 1, sum, steps);
  }
  steps.next_round();
  hand_to_mates(buffers, shares, steps);
}

// --- reduce -----------------------------------------------------------------

// Each rank combines one share and sends the result to the root.
void reduce_by_owners(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  const bool at_root = problem.rank == problem.root;
  const Range own = buffers.sent(0);
  const Range mine = buffers.share(at_root ? buffers.received(0) : own, all.me, all.count);
  const Range sum = at_root ? mine : steps.scratch(mine.length);
  steps.reduce(sum, exchange_shares(buffers, all, own, steps));
  steps.next_round();
  if (!at_root) {
    steps.send(problem.root, sum);
    return;
  }
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    const uint32_t from = (all.me + distance) % all.count;
    steps.receive(all.rank_of(from), buffers.share(buffers.received(0), from, all.count));
  }
}

// The sum is sent from leader to leader, and from the last leader to the root.
void reduce_chained(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const Range own = buffers.sent(0);
  const std::vector<Range> inputs =
      collect(levels.own_cluster(), levels.index_of(levels.leader()), own, steps);
  if (!levels.leads()) return;
  const uint32_t last = levels.leader_of(levels.count() - 1);
  const bool at_root = problem.rank == problem.root;
  // The other leaders need the length of the result, but no memory for it.
  const Range out = at_root                ? buffers.received(0)
                    : problem.rank == last ? steps.scratch(own.length)
                                           : Range{.length = own.length};
  const std::vector<uint32_t> leaders = levels.leaders();
  chain(levels.between_clusters(leaders), inputs, out, steps);
  if (last == problem.root) return;
  if (problem.rank == last) steps.send(problem.root, out);
  if (at_root) steps.receive(last, out);
}

// --- reduce_scatter ---------------------------------------------------------

// The sum for each rank is sent from cluster to cluster, and from the last cluster to the rank.
void reduce_scatter_chained(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const uint32_t cluster = levels.cluster();
  const bool last = cluster + 1 == levels.count();
  // The sums to which this rank contributes the inputs of its cluster, by destination rank.
  std::vector<Range> sums(problem.ranks);
  std::vector<std::vector<Range>> inputs(problem.ranks);
  std::vector<Range> before(problem.ranks);
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (levels.collector(to, cluster) != problem.rank) {
      steps.send(levels.collector(to, cluster), buffers.sent(to));
      continue;
    }
    const uint64_t length = buffers.sent(to).length;
    for (const uint32_t mate : levels.mates()) {
      inputs[to].push_back(mate == problem.rank ? buffers.sent(to) : steps.scratch(length));
      if (mate != problem.rank) steps.receive(mate, inputs[to].back());
    }
    if (cluster > 0) {
      before[to] = steps.wide_scratch(buffers.sent(to));
      steps.receive(levels.collector(to, cluster - 1), before[to]);
    }
  }
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (inputs[to].empty()) continue;
    const Range own = buffers.sent(to);
    if (last) {
      sums[to] = to == problem.rank ? buffers.received(0) : steps.scratch(own.length);
      steps.reduce(sums[to], inputs[to], before[to]);
    } else {
      sums[to] = cluster > 0 ? before[to] : steps.wide_scratch(own);
      steps.reduce_wide(sums[to], inputs[to], before[to]);
    }
  }
  steps.next_round();
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (inputs[to].empty() || (last && to == problem.rank)) continue;
    steps.send(last ? to : levels.collector(to, cluster + 1), sums[to]);
  }
  if (!last) {
    steps.receive(levels.collector(problem.rank, levels.count() - 1), buffers.received(0));
  }
}

}  // namespace

void add_rounding_reduce(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Range own = buffers.sent(0);
  if (chains(problem)) return reduce_chained(buffers, steps);
  if (problem.ranks > 3 && !gathers(problem, own.length)) return reduce_by_owners(buffers, steps);
  const Members by_rank{problem.ranks, problem.rank};
  const std::vector<Range> inputs = collect(by_rank, problem.root, own, steps);
  if (problem.rank == problem.root) steps.reduce(buffers.received(0), inputs);
}

void add_rounding_allreduce(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  if (gathers(problem, buffers.sent(0).length)) return allreduce_gathered(buffers, steps);
  if (chains(problem)) return allreduce_chained(buffers, steps);
  allreduce_by_owners(buffers, steps);
}

void add_rounding_reduce_scatter(const SegmentBuffers& buffers, StepBuilder& steps) {
  if (chains(buffers.problem())) return reduce_scatter_chained(buffers, steps);
  reduce_scatter_at_once(buffers, steps);
}

void add_rounding_scan(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Range own = buffers.sent(0);
  const Range all = buffers.received(0);
  const bool gets = !problem.exclusive || problem.rank > 0;
  if (gathers(problem, own.length)) {
    std::vector<Range> inputs;
    for (uint32_t rank = 0; rank < problem.rank; ++rank) {
      inputs.push_back(steps.scratch(own.length));
      steps.receive(rank, inputs.back());
    }
    for (uint32_t rank = problem.rank + 1; rank < problem.ranks; ++rank) steps.send(rank, own);
    if (!problem.exclusive) inputs.push_back(own);
    if (gets) steps.reduce(all, inputs);
    return;
  }
  const std::vector<Range> mine{own};
  Range before;
  if (problem.rank > 0) {
    before = steps.wide_scratch(own);
    steps.receive(problem.rank - 1, before);
  }
  const Range sum = steps.wide_scratch(own);
  if (problem.rank + 1 < problem.ranks) steps.reduce_wide(sum, mine, before);
  if (gets) steps.reduce(all, problem.exclusive ? std::vector<Range>() : mine, before);
  steps.next_round();
  if (problem.rank + 1 < problem.ranks) steps.send(problem.rank + 1, sum);
}

}  // namespace hetcomm::collectives
