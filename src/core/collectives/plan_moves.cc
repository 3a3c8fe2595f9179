#include "src/core/collectives/plan_moves.h"

#include <vector>

#include "src/core/collectives/two_levels.h"

namespace hetcomm::collectives {
namespace {

// --- barrier ----------------------------------------------------------------

// In round k each member tells the one 2^k after it that all 2^k before it have entered.
void disseminate(const Members& among, PlanBuilder& plan) {
  const Range nothing;
  for (uint32_t distance = 1; distance < among.count; distance *= 2) {
    plan.send(among.after(distance), nothing);
    plan.receive(among.before(distance), nothing);
    plan.next_round();
  }
}

// All tell rank 0, and it tells all.
void barrier_monitored(const Problem& problem, PlanBuilder& plan) {
  const Range nothing;
  const bool first = problem.rank == 0;
  for (uint32_t peer = 1; peer < problem.ranks && first; ++peer) plan.receive(peer, nothing);
  if (!first) plan.send(0, nothing);
  plan.next_round();
  for (uint32_t peer = 1; peer < problem.ranks && first; ++peer) plan.send(peer, nothing);
  if (!first) plan.receive(0, nothing);
}

void barrier_two_level(const Problem& problem, PlanBuilder& plan) {
  const TwoLevels levels(problem);
  const Range nothing;
  if (!levels.leads()) {
    plan.send(levels.leader(), nothing);
    plan.next_round();
    plan.receive(levels.leader(), nothing);
    return;
  }
  for (const uint32_t mate : levels.mates()) {
    if (mate != problem.rank) plan.receive(mate, nothing);
  }
  plan.next_round();
  const std::vector<uint32_t> leaders = levels.leaders();
  disseminate(levels.between_clusters(leaders), plan);
  for (const uint32_t mate : levels.mates()) {
    if (mate != problem.rank) plan.send(mate, nothing);
  }
}

// --- broadcast --------------------------------------------------------------

// The data goes from the root to a rank of each cluster, and from there to the others of the
// cluster.
void broadcast_two_level(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const TwoLevels levels(buffers.problem());
  const Range all = buffers.received(0);
  if (levels.leads()) {
    const std::vector<uint32_t> leaders = levels.leaders();
    broadcast_tree(levels.between_clusters(leaders), levels.cluster_of(buffers.problem().root), all,
                   plan);
    plan.next_round();
  }
  broadcast_tree(levels.own_cluster(), levels.index_of(levels.leader()), all, plan);
}

// Each segment goes from one rank to the next.
void broadcast_ring(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  const uint32_t distance = all.distance_from(problem.placement->place_of[problem.root]);
  if (distance != 0) {
    plan.receive(all.before(1), buffers.received(0));
    plan.next_round();
  }
  if (distance + 1 < all.count) plan.send(all.after(1), buffers.received(0));
}

// --- allgather --------------------------------------------------------------

void allgather_at_once(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Members all = all_ranks(buffers.problem());
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    plan.send(all.after(distance), buffers.sent(0));
    plan.receive(all.before(distance), buffers.received(all.before(distance)));
  }
  plan.copy(buffers.received(buffers.problem().rank), buffers.sent(0));
}

void allgather_ring(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Members all = all_ranks(buffers.problem());
  for (uint32_t step = 0; step + 1 < all.count; ++step) {
    plan.send(all.after(1), step == 0 ? buffers.sent(0) : buffers.received(all.before(step)));
    plan.receive(all.before(1), buffers.received(all.before(step + 1)));
    if (step == 0) plan.copy(buffers.received(buffers.problem().rank), buffers.sent(0));
    plan.next_round();
  }
}

// --- alltoall ---------------------------------------------------------------

// |at_once|: with all ranks in one round, else with one rank in each round.
void alltoall_direct(const SegmentBuffers& buffers, bool at_once, PlanBuilder& plan) {
  const uint32_t rank = buffers.problem().rank;
  const Members all = all_ranks(buffers.problem());
  if (!at_once) {
    plan.copy(buffers.received(rank), buffers.sent(rank));
    plan.next_round();
  }
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    plan.send(all.after(distance), buffers.sent(all.after(distance)));
    plan.receive(all.before(distance), buffers.received(all.before(distance)));
    if (!at_once) plan.next_round();
  }
  if (at_once) plan.copy(buffers.received(rank), buffers.sent(rank));
}

// Receives one message from every other cluster, with a block of each of its ranks.
// |sender_of(cluster)| sends it.
template <typename SenderOf>
void receive_of_clusters(const SegmentBuffers& buffers, const TwoLevels& levels, uint64_t length,
                         SenderOf&& sender_of, PlanBuilder& plan) {
  std::vector<Range> packed(levels.count());
  for (uint32_t other = 0; other < levels.count(); ++other) {
    if (other == levels.cluster()) continue;
    packed[other] = plan.scratch(levels.ranks_of(other).size() * length);
    plan.receive(sender_of(other), packed[other]);
  }
  for (uint32_t from = 0; from < buffers.problem().ranks; ++from) {
    const uint32_t other = levels.cluster_of(from);
    if (other == levels.cluster()) continue;
    plan.copy(buffers.received(from), packed_block(packed[other], levels.index_of(from), length));
  }
}

// One rank of this cluster sends what the cluster has for a rank of another cluster, in one
// message.
void alltoall_two_level(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const std::vector<uint32_t>& mates = levels.mates();
  const uint32_t index = levels.index();
  const uint64_t length = buffers.sent(0).length;
  // The ranks of other clusters that each rank of this cluster collects data for.
  std::vector<std::vector<uint32_t>> targets(mates.size());
  for (uint32_t rank = 0; rank < problem.ranks; ++rank) {
    if (levels.cluster_of(rank) == levels.cluster()) continue;
    targets[levels.index_of(levels.counterpart(rank, levels.cluster()))].push_back(rank);
  }
  std::vector<Range> leaving(mates.size());  // data that each mate is to hand on
  for (size_t mate = 0; mate < mates.size(); ++mate) {
    if (mate == index) continue;
    leaving[mate] = plan.scratch(targets[mate].size() * length);
    for (size_t i = 0; i < targets[mate].size(); ++i) {
      plan.copy(packed_block(leaving[mate], i, length), buffers.sent(targets[mate][i]));
    }
  }
  plan.copy(buffers.received(problem.rank), buffers.sent(problem.rank));
  plan.next_round();

  const std::vector<uint32_t>& mine = targets[index];
  std::vector<Range> handed(mates.size());  // data that each mate hands to this rank
  for (size_t mate = 0; mate < mates.size(); ++mate) {
    if (mate == index) continue;
    plan.send(mates[mate], buffers.sent(mates[mate]));
    plan.receive(mates[mate], buffers.received(mates[mate]));
    plan.send(mates[mate], leaving[mate]);
    handed[mate] = plan.scratch(mine.size() * length);
    plan.receive(mates[mate], handed[mate]);
  }
  std::vector<Range> out(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    out[i] = plan.scratch(mates.size() * length);
    for (size_t mate = 0; mate < mates.size(); ++mate) {
      plan.copy(packed_block(out[i], mate, length),
                mate == index ? buffers.sent(mine[i]) : packed_block(handed[mate], i, length));
    }
  }
  plan.next_round();

  for (size_t i = 0; i < mine.size(); ++i) plan.send(mine[i], out[i]);
  receive_of_clusters(
      buffers, levels, length,
      [&](uint32_t other) { return levels.counterpart(problem.rank, other); }, plan);
}

// --- gather and scatter -----------------------------------------------------

void gather_linear(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  if (problem.rank != problem.root) {
    plan.send(problem.root, buffers.sent(0));
    return;
  }
  const Members all = all_ranks(problem);
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    plan.receive(all.after(distance), buffers.received(all.after(distance)));
  }
  plan.copy(buffers.received(problem.rank), buffers.sent(0));
}

// The blocks of another cluster come in one message.
void gather_two_level(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const std::vector<uint32_t>& mates = levels.mates();
  const uint64_t length = buffers.sent(0).length;
  if (!levels.leads()) {
    plan.send(levels.leader(), buffers.sent(0));
    return;
  }
  if (problem.rank != problem.root) {
    const Range packed = plan.scratch(mates.size() * length);
    for (size_t mate = 0; mate < mates.size(); ++mate) {
      if (mate != levels.index()) plan.receive(mates[mate], packed_block(packed, mate, length));
    }
    plan.copy(packed_block(packed, levels.index(), length), buffers.sent(0));
    plan.next_round();
    plan.send(problem.root, packed);
    return;
  }
  for (const uint32_t mate : mates) {
    if (mate != problem.rank) plan.receive(mate, buffers.received(mate));
  }
  receive_of_clusters(
      buffers, levels, length, [&](uint32_t other) { return levels.leader_of(other); }, plan);
  plan.copy(buffers.received(problem.rank), buffers.sent(0));
}

void scatter_linear(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  if (problem.rank != problem.root) {
    plan.receive(problem.root, buffers.received(0));
    return;
  }
  const Members all = all_ranks(problem);
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    plan.send(all.after(distance), buffers.sent(all.after(distance)));
  }
  plan.copy(buffers.received(0), buffers.sent(problem.rank));
}

// The blocks for another cluster leave in one message.
void scatter_two_level(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const std::vector<uint32_t>& mates = levels.mates();
  const uint64_t length = buffers.received(0).length;
  if (!levels.leads()) {
    plan.receive(levels.leader(), buffers.received(0));
    return;
  }
  if (problem.rank != problem.root) {
    const Range packed = plan.scratch(mates.size() * length);
    plan.receive(problem.root, packed);
    plan.copy(buffers.received(0), packed_block(packed, levels.index(), length));
    plan.next_round();
    for (size_t mate = 0; mate < mates.size(); ++mate) {
      if (mate != levels.index()) plan.send(mates[mate], packed_block(packed, mate, length));
    }
    return;
  }
  std::vector<Range> out(levels.count());
  for (uint32_t other = 0; other < levels.count(); ++other) {
    if (other == levels.cluster()) continue;
    const std::vector<uint32_t>& ranks = levels.ranks_of(other);
    out[other] = plan.scratch(ranks.size() * length);
    for (size_t i = 0; i < ranks.size(); ++i) {
      plan.copy(packed_block(out[other], i, length), buffers.sent(ranks[i]));
    }
  }
  plan.next_round();
  for (uint32_t other = 0; other < levels.count(); ++other) {
    if (other != levels.cluster()) plan.send(levels.leader_of(other), out[other]);
  }
  for (const uint32_t mate : mates) {
    if (mate != problem.rank) plan.send(mate, buffers.sent(mate));
  }
  plan.copy(buffers.received(0), buffers.sent(problem.rank));
}

}  // namespace

// A tree over the distance from the root: its lowest bit leads to the parent.
void broadcast_tree(const Members& among, uint32_t root, const Range& all, PlanBuilder& plan) {
  const uint32_t distance = among.distance_from(root);
  uint32_t bit = 1;
  while (bit < among.count && (distance & bit) == 0) bit *= 2;
  if (distance != 0) {
    plan.receive(among.before(bit), all);
    plan.next_round();
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (distance + bit < among.count) plan.send(among.after(bit), all);
  }
}

// Every block goes to one rank of each other cluster, which hands it to its mates.
void allgather_two_level(const SegmentBuffers& buffers, std::span<const Range> targets,
                         PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const uint32_t cluster = levels.cluster();
  for (const uint32_t mate : levels.mates()) {
    if (mate == problem.rank) continue;
    plan.send(mate, buffers.sent(0));
    plan.receive(mate, targets[mate]);
  }
  for (uint32_t other = 0; other < levels.count(); ++other) {
    if (other == cluster) continue;
    plan.send(levels.counterpart(problem.rank, other), buffers.sent(0));
    for (const uint32_t from : levels.ranks_of(other)) {
      if (levels.counterpart(from, cluster) == problem.rank) plan.receive(from, targets[from]);
    }
  }
  if (targets[problem.rank].buffer != BufferKind::kSend) {
    plan.copy(targets[problem.rank], buffers.sent(0));
  }
  plan.next_round();
  for (uint32_t from = 0; from < problem.ranks; ++from) {
    if (levels.cluster_of(from) == cluster) continue;
    const uint32_t has = levels.counterpart(from, cluster);
    if (has != problem.rank) {
      plan.receive(has, targets[from]);
      continue;
    }
    for (const uint32_t mate : levels.mates()) {
      if (mate != problem.rank) plan.send(mate, targets[from]);
    }
  }
}

void plan_barrier(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  if (problem.monitored) return barrier_monitored(problem, plan);
  if (problem.algorithm == Algorithm::kTwoLevel) return barrier_two_level(problem, plan);
  disseminate(all_ranks(problem), plan);
}

void plan_broadcast(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Problem& problem = buffers.problem();
  if (problem.algorithm == Algorithm::kTwoLevel) return broadcast_two_level(buffers, plan);
  if (problem.algorithm == Algorithm::kRing) return broadcast_ring(buffers, plan);
  broadcast_tree(all_ranks(problem), problem.root, buffers.received(0), plan);
}

void plan_allgather(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Algorithm algorithm = buffers.problem().algorithm;
  if (algorithm == Algorithm::kRing) return allgather_ring(buffers, plan);
  if (algorithm == Algorithm::kTwoLevel) {
    return allgather_two_level(buffers, buffers.received_blocks(), plan);
  }
  allgather_at_once(buffers, plan);
}

void plan_alltoall(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const Algorithm algorithm = buffers.problem().algorithm;
  if (algorithm == Algorithm::kTwoLevel) return alltoall_two_level(buffers, plan);
  alltoall_direct(buffers, algorithm == Algorithm::kLinear, plan);
}

void plan_gather(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const bool two_level = buffers.problem().algorithm == Algorithm::kTwoLevel;
  return two_level ? gather_two_level(buffers, plan) : gather_linear(buffers, plan);
}

void plan_scatter(const SegmentBuffers& buffers, PlanBuilder& plan) {
  const bool two_level = buffers.problem().algorithm == Algorithm::kTwoLevel;
  return two_level ? scatter_two_level(buffers, plan) : scatter_linear(buffers, plan);
}

}  // namespace hetcomm::collectives
