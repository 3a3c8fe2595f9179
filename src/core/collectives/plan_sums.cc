#include "src/core/collectives/plan_sums.h"

#include <algorithm>
#include <bit>

#include "src/core/collectives/estimate.h"
#include "src/core/collectives/two_levels.h"

namespace hetcomm::collectives {
namespace {

// --- reduce -----------------------------------------------------------------

// Combines |mine| with those of the members that stand behind this one in the tree. Returns where
// the sum is: at the member of number |root| in |out|.
Range reduce_tree(const Members& among, uint32_t root, Range mine, const Range& out,
                  PlanBuilder& plan) {
  const uint32_t distance = among.distance_from(root);
  const bool leaf = (distance & 1) != 0 || distance + 1 >= among.count;
  const Range sum = distance == 0 || leaf ? out : plan.scratch(mine.length);
  const Range other = leaf ? Range{} : plan.scratch(mine.length);
  for (uint32_t bit = 1; bit < among.count; bit *= 2) {
    if ((distance & bit) != 0) {
      plan.send(among.before(bit), mine);
      return mine;
    }
    if (distance + bit >= among.count) continue;
    plan.receive(among.after(bit), other);
    plan.combine(sum, mine, other);
    mine = sum;
    plan.next_round();
  }
  return mine;
}

// Each cluster's leader gets the sum of its cluster, and the root that of the leaders.
void reduce_two_level(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const Range own = buffers.sent(0);
  const Range out = problem.rank == problem.root ? buffers.received(0)
                    : levels.leads()             ? plan.scratch(own.length)
                                                 : Range{};
  const Range mine =
      reduce_tree(levels.own_cluster(), levels.index_of(levels.leader()), own, out, plan);
  if (!levels.leads()) return;
  const std::vector<uint32_t> leaders = levels.leaders();
  reduce_tree(levels.between_clusters(leaders), levels.cluster_of(problem.root), mine, out, plan);
}

void reduce_ring(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  const uint32_t distance = all.distance_from(problem.placement->place_of[problem.root]);
  Range mine = buffers.sent(0);
  if (distance + 1 < all.count) {
    const Range other = plan.scratch(mine.length);
    const Range out = distance == 0 ? buffers.received(0) : plan.scratch(mine.length);
    plan.receive(all.after(1), other);
    plan.combine(out, mine, other);
    mine = out;
    plan.next_round();
  }
  if (distance != 0) plan.send(all.before(1), mine);
}

// --- allreduce --------------------------------------------------------------

// Pairs exchange all that they have, at distances 1, 2, 4, ... Members beyond a power of two hand
// theirs to a neighbour first. The lower side comes first, so that both get the same bits.
void allreduce_doubling(const Members& among, const Range& own, const Range& all,
                        PlanBuilder& plan) {
  const PlanBuilder::Repeated repeated(plan);
  const uint32_t power = std::bit_floor(among.count);
  const uint32_t beyond = among.count - power;
  const bool folded = among.me < 2 * beyond;
  if (folded && among.me % 2 == 0) {
    plan.send(among.rank_of(among.me + 1), own);
    plan.next_round();
    plan.receive(among.rank_of(among.me + 1), all);
    return;
  }
  const Range other = plan.scratch(own.length);
  Range mine = own;
  uint32_t index = among.me - beyond;
  if (folded) {
    index = among.me / 2;
    plan.receive(among.rank_of(among.me - 1), other);
    plan.combine(all, other, own);
    mine = all;
    plan.next_round();
  }
  for (uint32_t bit = 1; bit < power; bit *= 2) {
    const uint32_t partner = index ^ bit;
    const uint32_t peer = among.rank_of(partner < beyond ? 2 * partner + 1 : partner + beyond);
    plan.send(peer, mine);
    plan.receive(peer, other);
    if (partner < index) {
      plan.combine(all, other, mine);
    } else {
      plan.combine(all, mine, other);
    }
    mine = all;
    plan.next_round();
  }
  if (folded) plan.send(among.rank_of(among.me - 1), all);
}

// Every share goes round once and is combined on its way, then round once more.
void allreduce_ring(const SegmentBuffers& buffers, const Members& among, const Range& own,
                    const Range& all, PlanBuilder& plan) {
  const uint32_t count = among.count;
  const Range other = plan.scratch(buffers.share(own, 0, count).length);
  for (uint32_t step = 0; step + 1 < count; ++step) {
    const uint32_t out = among.number_before(step + 1);
    const uint32_t in = among.number_before(step + 2);
    const Range target = buffers.share(all, in, count);
    const Range arrives = {other.buffer, 0, other.offset, target.length};
    plan.send(among.after(1), buffers.share(step == 0 ? own : all, out, count));
    plan.receive(among.before(1), arrives);
    plan.combine(target, arrives, buffers.share(own, in, count));
    plan.next_round();
  }
  gather_ring(buffers, among, all, plan);
}

// There are as many shares as the smallest cluster has ranks. In each cluster the rank of that
// index sums a share, exchanges it with those of its index in the other clusters, and hands it to
// its mates.
void allreduce_two_level(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const TwoLevels levels(buffers.problem());
  const uint32_t shares = levels.smallest();
  const std::vector<Range> inputs = collect_of_mates(buffers, shares, plan);
  if (levels.index() < shares) {
    const Range sum = buffers.share(buffers.received(0), levels.index(), shares);
    if (inputs.size() > 1) plan.reduce(sum, inputs);
    plan.next_round();
    const Range mine = inputs.size() == 1 ? inputs[0] : sum;
    const std::vector<uint32_t> peers = levels.peers();
    const Members among = levels.between_clusters(peers);
    if (levels.count() == 2 || buffers.sent(0).length / shares <= kShortBytes) {
      allreduce_doubling(among, mine, sum, plan);
    } else {
      allreduce_ring(buffers, among, mine, sum, plan);
    }
  }
  plan.next_round();
  hand_to_mates(buffers, shares, plan);
}

// --- reduce_scatter ---------------------------------------------------------

// One rank of this cluster sums what the cluster has for a rank of another cluster, and sends it
// there.
void reduce_scatter_two_level(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const auto collector = [&](uint32_t rank) { return levels.collector(rank, levels.cluster()); };
  // The inputs that this rank sums, by the rank that the sum goes to.
  std::vector<std::vector<Range>> inputs(problem.ranks);
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (collector(to) != problem.rank) {
      plan.send(collector(to), buffers.sent(to));
      continue;
    }
    for (const uint32_t mate : levels.mates()) {
      if (mate == problem.rank) {
        inputs[to].push_back(buffers.sent(to));
      } else {
        inputs[to].push_back(plan.scratch(buffers.sent(to).length));
        plan.receive(mate, inputs[to].back());
      }
    }
  }
  const bool alone = levels.count() == 1;
  std::vector<Range> sums(problem.ranks);
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (inputs[to].empty()) continue;
    sums[to] = inputs[to][0];
    if (inputs[to].size() == 1) continue;
    sums[to] = alone ? buffers.received(0) : plan.scratch(buffers.sent(to).length);
    plan.reduce(sums[to], inputs[to]);
  }
  if (alone) return;
  plan.next_round();
  for (uint32_t to = 0; to < problem.ranks; ++to) {
    if (to != problem.rank && !inputs[to].empty()) plan.send(to, sums[to]);
  }
  std::vector<Range> of_clusters;
  for (uint32_t from = 0; from < levels.count(); ++from) {
    if (from == levels.cluster()) {
      of_clusters.push_back(sums[problem.rank]);
      continue;
    }
    of_clusters.push_back(plan.scratch(buffers.sent(problem.rank).length));
    plan.receive(levels.counterpart(problem.rank, from), of_clusters.back());
  }
  plan.reduce(buffers.received(0), of_clusters);
}

void reduce_scatter_ring(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  uint64_t longest = 0;
  for (uint32_t block = 0; block < problem.ranks; ++block) {
    longest = std::max(longest, buffers.sent(block).length);
  }
  Range sums[2] = {plan.scratch(longest), plan.scratch(longest)};
  for (uint32_t step = 0; step + 1 < problem.ranks; ++step) {
    const uint32_t out = all.before(step + 1);
    const uint32_t in = all.before(step + 2);
    Range& arrives = sums[step % 2];
    Range leaves = sums[(step + 1) % 2];
    arrives.length = buffers.sent(in).length;
    leaves.length = buffers.sent(out).length;
    plan.send(all.after(1), step == 0 ? buffers.sent(out) : leaves);
    plan.receive(all.before(1), arrives);
    plan.combine(step + 2 == problem.ranks ? buffers.received(0) : arrives, arrives,
                 buffers.sent(in));
    plan.next_round();
  }
}

// --- scan -------------------------------------------------------------------

// After distance d a member has the elements of the 2d members up to it. |*exclusive|, unless it is
// null, leaves out the member's own elements and is not written for the first member.
void scan_doubling(const Members& among, const Range& own, const Range& inclusive,
                   const Range* exclusive, PlanBuilder& plan) {
  const Range other = plan.scratch(own.length);
  Range mine = own;
  bool first = true;
  for (uint32_t distance = 1; distance < among.count; distance *= 2) {
    if (among.me + distance < among.count) plan.send(among.rank_of(among.me + distance), mine);
    if (among.me >= distance) {
      plan.receive(among.rank_of(among.me - distance), other);
      plan.combine(inclusive, other, mine);
      mine = inclusive;
      if (exclusive != nullptr && first) plan.copy(*exclusive, other);
      if (exclusive != nullptr && !first) plan.combine(*exclusive, other, *exclusive);
      first = false;
    }
    plan.next_round();
  }
  if (among.me == 0) plan.copy(inclusive, own);
}

void scan_of_all(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const Range all = buffers.received(0);
  const Range inclusive = problem.exclusive ? plan.scratch(all.length) : all;
  scan_doubling(all_ranks(problem), buffers.sent(0), inclusive, problem.exclusive ? &all : nullptr,
                plan);
}

// The last rank of this cluster gets the sum of the clusters before it, and hands it to its mates.
void scan_two_level(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const Range all = buffers.received(0);
  const Range inclusive = problem.exclusive ? plan.scratch(all.length) : all;
  scan_doubling(levels.own_cluster(), buffers.sent(0), inclusive,
                problem.exclusive ? &all : nullptr, plan);
  plan.next_round();
  const Range before = plan.scratch(all.length);
  const uint32_t last = levels.mates().back();
  if (problem.rank == last) {
    const std::vector<uint32_t> last_ranks = levels.last_ranks();
    scan_doubling(levels.between_clusters(last_ranks), inclusive, plan.scratch(all.length), &before,
                  plan);
    plan.next_round();
  }
  if (levels.cluster() == 0) return;
  for (const uint32_t mate : levels.mates()) {
    if (mate != last && problem.rank == last) plan.send(mate, before);
  }
  if (problem.rank != last) plan.receive(last, before);
  if (problem.exclusive && levels.index() == 0) {
    plan.copy(all, before);
  } else {
    plan.combine(all, before, all);
  }
}

void scan_ring(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const Range own = buffers.sent(0);
  const Range all = buffers.received(0);
  if (problem.rank == 0) {
    plan.send(1, own);
    if (!problem.exclusive) plan.copy(all, own);
    return;
  }
  const Range other = plan.scratch(own.length);
  const Range sum = problem.exclusive ? plan.scratch(own.length) : all;
  plan.receive(problem.rank - 1, other);
  plan.combine(sum, other, own);
  if (problem.exclusive) plan.copy(all, other);
  plan.next_round();
  if (problem.rank + 1 < problem.ranks) plan.send(problem.rank + 1, sum);
}

}  // namespace

void gather_ring(const SegmentBuffers& buffers, const Members& among, const Range& all,
                 PlanBuilder& plan) {
  const auto share_before = [&](uint32_t distance) {
    return buffers.share(all, among.number_before(distance), among.count);
  };
  for (uint32_t step = 0; step + 1 < among.count; ++step) {
    plan.send(among.after(1), share_before(step));
    plan.receive(among.before(1), share_before(step + 1));
    plan.next_round();
  }
}

std::vector<Range> collect_of_mates(const SegmentBuffers& buffers, uint32_t shares,
                                    PlanBuilder& plan) {
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
    if (i < shares) plan.send(mates[i], buffers.share(own, i, shares));
    if (!owns) continue;
    inputs.push_back(plan.scratch(buffers.share(own, index, shares).length));
    plan.receive(mates[i], inputs.back());
  }
  return inputs;
}

void hand_to_mates(const SegmentBuffers& buffers, uint32_t shares, PlanBuilder& plan) {
  const TwoLevels levels(buffers.problem());
  const std::vector<uint32_t>& mates = levels.mates();
  const Range all = buffers.received(0);
  const uint32_t index = levels.index();
  for (uint32_t i = 0; i < mates.size(); ++i) {
    if (i == index) continue;
    if (index < shares) plan.send(mates[i], buffers.share(all, index, shares));
    if (i < shares) plan.receive(mates[i], buffers.share(all, i, shares));
  }
}

void reduce_scatter_at_once(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  const Range own = buffers.sent(problem.rank);
  std::vector<Range> inputs(problem.ranks);
  for (uint32_t distance = 1; distance < problem.ranks; ++distance) {
    const uint32_t from = all.before(distance);
    inputs[from] = plan.scratch(own.length);
    plan.receive(from, inputs[from]);
    plan.send(all.after(distance), buffers.sent(all.after(distance)));
  }
  inputs[problem.rank] = own;
  plan.reduce(buffers.received(0), inputs);
}

void plan_reduce(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  if (problem.algorithm == Algorithm::kTwoLevel) return reduce_two_level(buffers, plan);
  if (problem.algorithm == Algorithm::kRing) return reduce_ring(buffers, plan);
  reduce_tree(all_ranks(problem), problem.root, buffers.sent(0), buffers.received(0), plan);
}

void plan_allreduce(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  if (problem.algorithm == Algorithm::kTwoLevel) return allreduce_two_level(buffers, plan);
  const Members all = all_ranks(problem);
  if (problem.algorithm == Algorithm::kRing) {
    return allreduce_ring(buffers, all, buffers.sent(0), buffers.received(0), plan);
  }
  allreduce_doubling(all, buffers.sent(0), buffers.received(0), plan);
}

void plan_reduce_scatter(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Algorithm algorithm = buffers.problem().algorithm;
  if (algorithm == Algorithm::kTwoLevel) return reduce_scatter_two_level(buffers, plan);
  if (algorithm == Algorithm::kRing) return reduce_scatter_ring(buffers, plan);
  reduce_scatter_at_once(buffers, plan);
}

void plan_scan(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  // Clusters are of use only where the ranks before one are whole clusters and some of its own.
  if (problem.algorithm == Algorithm::kTwoLevel && problem.placement->contiguous) {
    return scan_two_level(buffers, plan);
  }
  if (problem.algorithm == Algorithm::kRing) return scan_ring(buffers, plan);
  scan_of_all(buffers, plan);
}

}  // namespace hetcomm::collectives
