#include "src/core/collectives/summing_steps.h"

#include <algorithm>
#include <bit>

#include "src/core/collectives/estimate.h"
#include "src/core/collectives/two_levels.h"

namespace hetcomm::collectives {
namespace {

// --- reduce -----------------------------------------------------------------

// Combines |mine| with the inputs of this member's descendants in the tree. Returns the range of
// the sum, which is |out| at member number |root|.
Range reduce_tree(const Members& among, uint32_t root, Range mine, const Range& out,
                  StepBuilder& steps) {
  const uint32_t distance = among.distance_from(root);
  const bool leaf = (distance & 1) != 0 || distance + 1 >= among.count;
  const Range sum = distance == 0 || leaf ? out : steps.scratch(mine.length);
  const Range other = leaf ? Range{} : steps.scratch(mine.length);
  for (uint32_t bit = 1; bit < among.count; bit *= 2) {
    if ((distance & bit) != 0) {
      steps.send(among.before(bit), mine);
      return mine;
    }
    if (distance + bit >= among.count) continue;
    steps.receive(among.after(bit), other);
    steps.combine(sum, mine, other);
    mine = sum;
    steps.next_round();
  }
  return mine;
}

// Sums each cluster's inputs at its leader, and the leaders' sums at the root.
void reduce_two_level(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const Range own = buffers.sent(0);
  const Range out = problem.rank == problem.root ? buffers.received(0)
                    : levels.leads()             ? steps.scratch(own.length)
                                                 : Range{};
  const Range mine =
      reduce_tree(levels.own_cluster(), levels.index_of(levels.leader()), own, out, steps);
  if (!levels.leads()) return;
  const std::vector<uint32_t> leaders = levels.leaders();
  reduce_tree(levels.between_clusters(leaders), levels.cluster_of(problem.root), mine, out, steps);
}

void reduce_ring(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  const uint32_t distance = all.distance_from(problem.placement->place_of[problem.root]);
  Range mine = buffers.sent(0);
  if (distance + 1 < all.count) {
    const Range other = steps.scratch(mine.length);
    const Range out = distance == 0 ? buffers.received(0) : steps.scratch(mine.length);
    steps.receive(all.after(1), other);
    steps.combine(out, mine, other);
    mine = out;
    steps.next_round();
  }
  if (distance != 0) steps.send(all.before(1), mine);
}

// --- allreduce --------------------------------------------------------------

// Exchanges all data in pairs, at distances 1, 2, 4, ... If the number of members is not a power of
// two, some members first send their data to a neighbor, which takes part for them. The lower
// member's data is the first operand, so that both members get identical bits.
void allreduce_doubling(const Members& among, const Range& own, const Range& all,
                        StepBuilder& steps) {
  const StepBuilder::Repeated repeated(steps);
  const uint32_t power = std::bit_floor(among.count);
  const uint32_t beyond = among.count - power;
  const bool folded = among.me < 2 * beyond;
  if (folded && among.me % 2 == 0) {
    steps.send(among.rank_of(among.me + 1), own);
    steps.next_round();
    steps.receive(among.rank_of(among.me + 1), all);
    return;
  }
  const Range other = steps.scratch(own.length);
  Range mine = own;
  uint32_t index = among.me - beyond;
  if (folded) {
    index = among.me / 2;
    steps.receive(among.rank_of(among.me - 1), other);
    steps.combine(all, other, own);
    mine = all;
    steps.next_round();
  }
  for (uint32_t bit = 1; bit < power; bit *= 2) {
    const uint32_t partner = index ^ bit;
    const uint32_t peer = among.rank_of(partner < beyond ? 2 * partner + 1 : partner + beyond);
    steps.send(peer, mine);
    steps.receive(peer, other);
    if (partner < index) {
      steps.combine(all, other, mine);
    } else {
      steps.combine(all, mine, other);
    }
    mine = all;
    steps.next_round();
  }
  if (folded) steps.send(among.rank_of(among.me - 1), all);
}

// Sends every share around the ring once to combine it, and once more to distribute the result.
void allreduce_ring(const SegmentBuffers& buffers, const Members& among, const Range& own,
                    const Range& all, StepBuilder& steps) {
  const uint32_t count = among.count;
  const Range other = steps.scratch(buffers.share(own, 0, count).length);
  for (uint32_t step = 0; step + 1 < count; ++step) {
    const uint32_t out = among.number_before(step + 1);
    const uint32_t in = among.number_before(step + 2);
    const Range target = buffers.share(all, in, count);
    const Range arrives = {other.buffer, 0, other.offset, target.length};
    steps.send(among.after(1), buffers.share(step == 0 ? own : all, out, count));
    steps.receive(among.before(1), arrives);
    steps.combine(target, arrives, buffers.share(own, in, count));
    steps.next_round();
  }
  gather_ring(buffers, among, all, steps);
}

// Divides the data into as many shares as the smallest cluster has ranks. In each cluster, the rank
// with the share's index sums the cluster's inputs for the share. It combines this sum with those
// of the ranks that have the same index in other clusters. Then it sends the result to the other
// ranks of its cluster.
void allreduce_two_level(const SegmentBuffers& buffers, StepBuilder& steps) {
  const TwoLevels levels(buffers.problem());
  const uint32_t shares = levels.smallest();
  const std::vector<Range> inputs = collect_of_mates(buffers, shares, steps);
  if (levels.index() < shares) {
    const Range sum = buffers.share(buffers.received(0), levels.index(), shares);
    if (inputs.size() > 1) steps.reduce(sum, inputs);
    steps.next_round();
    const Range mine = inputs.size() == 1 ? inputs[0] : sum;
    const std::vector<uint32_t> peers = levels.peers();
    const Members among = levels.between_clusters(peers);
    if (levels.count() == 2 || buffers.sent(0).length / shares <= kShortBytes) {
      allreduce_doubling(among, mine, sum, steps);
    } else {
      allreduce_ring(buffers, among, mine, sum, steps);
    }
  }
  steps.next_round();
  hand_to_mates(buffers, shares, steps);
}

// --- reduce_scatter ---------------------------------------------------------

// For each rank of another cluster, one rank of this cluster sums the cluster's data and sends the
// sum to that rank.
void reduce_scatter_two_level(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const auto collector = [&](uint32_t rank) { return levels.collector(rank, levels.cluster()); };
  // The inputs that this rank sums, by the destination rank of the sum.
  std::vector<std::vector<Range>> inputs(problem.ranks);
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (collector(to) != problem.rank) {
      steps.send(collector(to), buffers.sent(to));
      continue;
    }
    for (const uint32_t mate : levels.mates()) {
      if (mate == problem.rank) {
        inputs[to].push_back(buffers.sent(to));
      } else {
        inputs[to].push_back(steps.scratch(buffers.sent(to).length));
        steps.receive(mate, inputs[to].back());
      }
    }
  }
  const bool alone = levels.count() == 1;
  std::vector<Range> sums(problem.ranks);
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (inputs[to].empty()) continue;
    sums[to] = inputs[to][0];
    if (inputs[to].size() == 1) continue;
    sums[to] = alone ? buffers.received(0) : steps.scratch(buffers.sent(to).length);
    steps.reduce(sums[to], inputs[to]);
  }
  if (alone) return;
  steps.next_round();
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (to != problem.rank && !inputs[to].empty()) steps.send(to, sums[to]);
  }
  std::vector<Range> of_clusters;
  for (uint32_t from = 0; from < levels.count(); ++from) {
    if (from == levels.cluster()) {
      of_clusters.push_back(sums[problem.rank]);
      continue;
    }
    of_clusters.push_back(steps.scratch(buffers.sent(problem.rank).length));
    steps.receive(levels.counterpart(problem.rank, from), of_clusters.back());
  }
  steps.reduce(buffers.received(0), of_clusters);
}

void reduce_scatter_ring(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  uint64_t longest = 0;
  for (uint32_t block = 0; block < problem.ranks; ++block) {
    longest = std::max(longest, buffers.sent(block).length);
  }
  Range sums[2] = {steps.scratch(longest), steps.scratch(longest)};
  for (uint32_t step = 0; step + 1 < problem.ranks; ++step) {
    const uint32_t out = all.before(step + 1);
    const uint32_t in = all.before(step + 2);
    Range& arrives = sums[step % 2];
    Range leaves = sums[(step + 1) % 2];
    arrives.length = buffers.sent(in).length;
    leaves.length = buffers.sent(out).length;
    steps.send(all.after(1), step == 0 ? buffers.sent(out) : leaves);
    steps.receive(all.before(1), arrives);
    steps.combine(step + 2 == problem.ranks ? buffers.received(0) : arrives, arrives,
                  buffers.sent(in));
    steps.next_round();
  }
}

// --- scan -------------------------------------------------------------------

// A scan in rounds of distances 1, 2, 4, ... After the round of distance d, a member has the sum of
// its own data and that of up to 2d - 1 members before it. |exclusive|, unless null, receives the
// sum without the member's own elements. It is not written for the first member.
void scan_doubling(const Members& among, const Range& own, const Range& inclusive,
                   const Range* exclusive, StepBuilder& steps) {
  const Range other = steps.scratch(own.length);
  Range mine = own;
  bool first = true;
  for (uint32_t distance = 1; distance < among.count; distance *= 2) {
    if (among.me + distance < among.count) steps.send(among.rank_of(among.me + distance), mine);
    if (among.me >= distance) {
      steps.receive(among.rank_of(among.me - distance), other);
      steps.combine(inclusive, other, mine);
      mine = inclusive;
      if (exclusive != nullptr && first) steps.copy(*exclusive, other);
      if (exclusive != nullptr && !first) steps.combine(*exclusive, other, *exclusive);
      first = false;
    }
    steps.next_round();
  }
  if (among.me == 0) steps.copy(inclusive, own);
}

void scan_of_all(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Range all = buffers.received(0);
  const Range inclusive = problem.exclusive ? steps.scratch(all.length) : all;
  scan_doubling(all_ranks(problem), buffers.sent(0), inclusive, problem.exclusive ? &all : nullptr,
                steps);
}

// The last rank of each cluster gets the sum of the preceding clusters, and sends it to the other
// ranks of its cluster.
void scan_two_level(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const Range all = buffers.received(0);
  const Range inclusive = problem.exclusive ? steps.scratch(all.length) : all;
  scan_doubling(levels.own_cluster(), buffers.sent(0), inclusive,
                problem.exclusive ? &all : nullptr, steps);
  steps.next_round();
  const Range before = steps.scratch(all.length);
  const uint32_t last = levels.mates().back();
  if (problem.rank == last) {
    const std::vector<uint32_t> last_ranks = levels.last_ranks();
    scan_doubling(levels.between_clusters(last_ranks), inclusive, steps.scratch(all.length),
                  &before, steps);
    steps.next_round();
  }
  if (levels.cluster() == 0) return;
  for (const uint32_t mate : levels.mates()) {
    if (mate != last && problem.rank == last) steps.send(mate, before);
  }
  if (problem.rank != last) steps.receive(last, before);
  if (problem.exclusive && levels.index() == 0) {
    steps.copy(all, before);
  } else {
    steps.combine(all, before, all);
  }
}

void scan_ring(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Range own = buffers.sent(0);
  const Range all = buffers.received(0);
  if (problem.rank == 0) {
    steps.send(1, own);
    if (!problem.exclusive) steps.copy(all, own);
    return;
  }
  const Range other = steps.scratch(own.length);
  const Range sum = problem.exclusive ? steps.scratch(own.length) : all;
  steps.receive(problem.rank - 1, other);
  steps.combine(sum, other, own);
  if (problem.exclusive) steps.copy(all, other);
  steps.next_round();
  if (problem.rank + 1 < problem.ranks) steps.send(problem.rank + 1, sum);
}

}  // namespace

void gather_ring(const SegmentBuffers& buffers, const Members& among, const Range& all,
                 StepBuilder& steps) {
  const auto share_before = [&](uint32_t distance) {
    return buffers.share(all, among.number_before(distance), among.count);
  };
  for (uint32_t step = 0; step + 1 < among.count; ++step) {
    steps.send(among.after(1), share_before(step));
    steps.receive(among.before(1), share_before(step + 1));
    steps.next_round();
  }
}

std::vector<Range> collect_of_mates(const SegmentBuffers& buffers, uint32_t shares,
                                    StepBuilder& steps) {
  const TwoLevels levels(buffers.problem());
  const std::vector<uint32_t>& mates = levels.mates();
  const Range own = buffers.sent(0);
  const uint32_t index = levels.index();
  const bool owns = index < shares;
  std::vector<Range> inputs;
  for (uint32_t i = 0; i < mates.size(); ++i) {
    if (i == index) {
      if (owns) inputs.push_back(buffers.share(own, i, shares));
      continue;
    }
    if (i < shares) steps.send(mates[i], buffers.share(own, i, shares));
    if (!owns) continue;
    inputs.push_back(steps.scratch(buffers.share(own, index, shares).length));
    steps.receive(mates[i], inputs.back());
  }
  return inputs;
}

void hand_to_mates(const SegmentBuffers& buffers, uint32_t shares, StepBuilder& steps) {
  const TwoLevels levels(buffers.problem());
  const std::vector<uint32_t>& mates = levels.mates();
  const Range all = buffers.received(0);
  const uint32_t index = levels.index();
  for (uint32_t i = 0; i < mates.size(); ++i) {
    if (i == index) continue;
    if (index < shares) steps.send(mates[i], buffers.share(all, index, shares));
    if (i < shares) steps.receive(mates[i], buffers.share(all, i, shares));
  }
}

void reduce_scatter_at_once(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  const Range own = buffers.sent(problem.rank);
  std::vector<Range> inputs(problem.ranks);
  for (uint32_t distance = 1; distance < problem.ranks; ++distance) {
    const uint32_t from = all.before(distance);
    inputs[from] = steps.scratch(own.length);
    steps.receive(from, inputs[from]);
    steps.send(all.after(distance), buffers.sent(all.after(distance)));
  }
  inputs[problem.rank] = own;
  steps.reduce(buffers.received(0), inputs);
}

void add_reduce(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  if (problem.algorithm == Algorithm::kTwoLevel) return reduce_two_level(buffers, steps);
  if (problem.algorithm == Algorithm::kRing) return reduce_ring(buffers, steps);
  reduce_tree(all_ranks(problem), problem.root, buffers.sent(0), buffers.received(0), steps);
}

void add_allreduce(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  if (problem.algorithm == Algorithm::kTwoLevel) return allreduce_two_level(buffers, steps);
  const Members all = all_ranks(problem);
  if (problem.algorithm == Algorithm::kRing) {
    return allreduce_ring(buffers, all, buffers.sent(0), buffers.received(0), steps);
  }
  allreduce_doubling(all, buffers.sent(0), buffers.received(0), steps);
}

void add_reduce_scatter(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Algorithm algorithm = buffers.problem().algorithm;
  if (algorithm == Algorithm::kTwoLevel) return reduce_scatter_two_level(buffers, steps);
  if (algorithm == Algorithm::kRing) return reduce_scatter_ring(buffers, steps);
  reduce_scatter_at_once(buffers, steps);
}

void add_scan(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  // Two levels are useful only if the ranks before each rank form whole clusters and a part of that
  // rank's own cluster.
  if (problem.algorithm == Algorithm::kTwoLevel && problem.placement->contiguous) {
    return scan_two_level(buffers, steps);
  }
  if (problem.algorithm == Algorithm::kRing) return scan_ring(buffers, steps);
  scan_of_all(buffers, steps);
}

}  // namespace hetcomm::collectives
