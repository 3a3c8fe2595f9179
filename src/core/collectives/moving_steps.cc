#include "src/core/collectives/moving_steps.h"

#include <vector>

#include "src/core/collectives/two_levels.h"

namespace hetcomm::collectives {
namespace {

// --- barrier ----------------------------------------------------------------

// A dissemination barrier. In round k, each member sends a signal to the member 2^k positions after
// it. The receiver then knows that the 2^(k+1) - 1 members before it have entered the barrier.
void disseminate(const Members& among, StepBuilder& steps) {
  const Range nothing;
  for (uint32_t distance = 1; distance < among.count; distance *= 2) {
    steps.send(among.after(distance), nothing);
    steps.receive(among.before(distance), nothing);
    steps.next_round();
  }
}

// All ranks signal rank 0, and then rank 0 signals all ranks.
void barrier_monitored(const Problem& problem, StepBuilder& steps) {
  const Range nothing;
  const bool first = problem.rank == 0;
  for (uint32_t peer = 1; peer < problem.ranks && first; ++peer) steps.receive(peer, nothing);
  if (!first) steps.send(0, nothing);
  steps.next_round();
  for (uint32_t peer = 1; peer < problem.ranks && first; ++peer) steps.send(peer, nothing);
  if (!first) steps.receive(0, nothing);
}

void barrier_two_level(const Problem& problem, StepBuilder& steps) {
  const TwoLevels levels(problem);
  const Range nothing;
  if (!levels.leads()) {
    steps.send(levels.leader(), nothing);
    steps.next_round();
    steps.receive(levels.leader(), nothing);
    return;
  }
  for (const uint32_t mate : levels.mates()) {
    if (mate != problem.rank) steps.receive(mate, nothing);
  }
  steps.next_round();
  const std::vector<uint32_t> leaders = levels.leaders();
  disseminate(levels.between_clusters(leaders), steps);
  for (const uint32_t mate : levels.mates()) {
    if (mate != problem.rank) steps.send(mate, nothing);
  }
}

// --- broadcast --------------------------------------------------------------

// Sends the data from the root to one rank of each cluster, and from that rank to the rest of the
// cluster.
void broadcast_two_level(const SegmentBuffers& buffers, StepBuilder& steps) {
  const TwoLevels levels(buffers.problem());
  const Range all = buffers.received(0);
  if (levels.leads()) {
    const std::vector<uint32_t> leaders = levels.leaders();
    broadcast_tree(levels.between_clusters(leaders), levels.cluster_of(buffers.problem().root), all,
                   steps);
    steps.next_round();
  }
  broadcast_tree(levels.own_cluster(), levels.index_of(levels.leader()), all, steps);
}

// Each rank of the ring, except the last, forwards each segment to the next rank.
void broadcast_ring(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const Members all = all_ranks(problem);
  const uint32_t distance = all.distance_from(problem.placement->place_of[problem.root]);
  if (distance != 0) {
    steps.receive(all.before(1), buffers.received(0));
    steps.next_round();
  }
  if (distance + 1 < all.count) steps.send(all.after(1), buffers.received(0));
}

// --- allgather --------------------------------------------------------------

void allgather_at_once(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Members all = all_ranks(buffers.problem());
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    steps.send(all.after(distance), buffers.sent(0));
    steps.receive(all.before(distance), buffers.received(all.before(distance)));
  }
  steps.copy(buffers.received(buffers.problem().rank), buffers.sent(0));
}

void allgather_ring(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Members all = all_ranks(buffers.problem());
  for (uint32_t step = 0; step + 1 < all.count; ++step) {
    steps.send(all.after(1), step == 0 ? buffers.sent(0) : buffers.received(all.before(step)));
    steps.receive(all.before(1), buffers.received(all.before(step + 1)));
    if (step == 0) steps.copy(buffers.received(buffers.problem().rank), buffers.sent(0));
    steps.next_round();
  }
}

// --- alltoall ---------------------------------------------------------------

// Exchanges blocks with all ranks in one round if |at_once| is true. Otherwise exchanges them with
// one rank per round.
void alltoall_direct(const SegmentBuffers& buffers, bool at_once, StepBuilder& steps) {
  const uint32_t rank = buffers.problem().rank;
  const Members all = all_ranks(buffers.problem());
  if (!at_once) {
    steps.copy(buffers.received(rank), buffers.sent(rank));
    steps.next_round();
  }
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    steps.send(all.after(distance), buffers.sent(all.after(distance)));
    steps.receive(all.before(distance), buffers.received(all.before(distance)));
    if (!at_once) steps.next_round();
  }
  if (at_once) steps.copy(buffers.received(rank), buffers.sent(rank));
}

// Receives one message from every other cluster, which holds a block from each rank of that
// cluster. |sender_of(cluster)| returns the rank that sends the message.
template <typename SenderOf>
void receive_of_clusters(const SegmentBuffers& buffers, const TwoLevels& levels, uint64_t length,
                         SenderOf&& sender_of, StepBuilder& steps) {
  std::vector<Range> packed(levels.count());
  for (uint32_t other = 0; other < levels.count(); ++other) {
    if (other == levels.cluster()) continue;
    packed[other] = steps.scratch(levels.ranks_of(other).size() * length);
    steps.receive(sender_of(other), packed[other]);
  }
  for (uint32_t from = 0; from < buffers.problem().ranks; ++from) {
    const uint32_t other = levels.cluster_of(from);
    if (other == levels.cluster()) continue;
    steps.copy(buffers.received(from), packed_block(packed[other], levels.index_of(from), length));
  }
}

// For each rank of another cluster, one rank of this cluster collects the cluster's data and sends
// it in one message.
void alltoall_two_level(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const std::vector<uint32_t>& mates = levels.mates();
  const uint32_t index = levels.index();
  const uint64_t length = buffers.sent(0).length;
  // The ranks of other clusters for which each rank of this cluster collects data.
  std::vector<std::vector<uint32_t>> targets(mates.size());
  for (uint32_t rank = 0; rank < problem.ranks; ++rank) {
    if (levels.cluster_of(rank) == levels.cluster()) continue;
    targets[levels.index_of(levels.counterpart(rank, levels.cluster()))].push_back(rank);
  }
  std::vector<Range> leaving(mates.size());  // data that each rank of this cluster forwards
  for (size_t mate = 0; mate < mates.size(); ++mate) {
    if (mate == index) continue;
    leaving[mate] = steps.scratch(targets[mate].size() * length);
    for (size_t i = 0; i < targets[mate].size(); ++i) {
      steps.copy(packed_block(leaving[mate], i, length), buffers.sent(targets[mate][i]));
    }
  }
  steps.copy(buffers.received(problem.rank), buffers.sent(problem.rank));
  steps.next_round();

  const std::vector<uint32_t>& mine = targets[index];
  std::vector<Range> handed(mates.size());  // data from each mate for this rank to forward
  for (size_t mate = 0; mate < mates.size(); ++mate) {
    if (mate == index) continue;
    steps.send(mates[mate], buffers.sent(mates[mate]));
    steps.receive(mates[mate], buffers.received(mates[mate]));
    steps.send(mates[mate], leaving[mate]);
    handed[mate] = steps.scratch(mine.size() * length);
    steps.receive(mates[mate], handed[mate]);
  }
  std::vector<Range> out(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    out[i] = steps.scratch(mates.size() * length);
    for (size_t mate = 0; mate < mates.size(); ++mate) {
      steps.copy(packed_block(out[i], mate, length),
                 mate == index ? buffers.sent(mine[i]) : packed_block(handed[mate], i, length));
    }
  }
  steps.next_round();

  for (size_t i = 0; i < mine.size(); ++i) steps.send(mine[i], out[i]);
  receive_of_clusters(
      buffers, levels, length,
      [&](uint32_t other) { return levels.counterpart(problem.rank, other); }, steps);
}

// --- gather and scatter -----------------------------------------------------

void gather_linear(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  if (problem.rank != problem.root) {
    steps.send(problem.root, buffers.sent(0));
    return;
  }
  const Members all = all_ranks(problem);
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    steps.receive(all.after(distance), buffers.received(all.after(distance)));
  }
  steps.copy(buffers.received(problem.rank), buffers.sent(0));
}

// The root receives the blocks of each other cluster in one message from its leader.
void gather_two_level(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const std::vector<uint32_t>& mates = levels.mates();
  const uint64_t length = buffers.sent(0).length;
  if (!levels.leads()) {
    steps.send(levels.leader(), buffers.sent(0));
    return;
  }
  if (problem.rank != problem.root) {
    const Range packed = steps.scratch(mates.size() * length);
    for (size_t mate = 0; mate < mates.size(); ++mate) {
      if (mate != levels.index()) steps.receive(mates[mate], packed_block(packed, mate, length));
    }
    steps.copy(packed_block(packed, levels.index(), length), buffers.sent(0));
    steps.next_round();
    steps.send(problem.root, packed);
    return;
  }
  for (const uint32_t mate : mates) {
    if (mate != problem.rank) steps.receive(mate, buffers.received(mate));
  }
  receive_of_clusters(
      buffers, levels, length, [&](uint32_t other) { return levels.leader_of(other); }, steps);
  steps.copy(buffers.received(problem.rank), buffers.sent(0));
}

void scatter_linear(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  if (problem.rank != problem.root) {
    steps.receive(problem.root, buffers.received(0));
    return;
  }
  const Members all = all_ranks(problem);
  for (uint32_t distance = 1; distance < all.count; ++distance) {
    steps.send(all.after(distance), buffers.sent(all.after(distance)));
  }
  steps.copy(buffers.received(0), buffers.sent(problem.rank));
}

// The root sends the blocks for each other cluster in one message to its leader.
void scatter_two_level(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const std::vector<uint32_t>& mates = levels.mates();
  const uint64_t length = buffers.received(0).length;
  if (!levels.leads()) {
    steps.receive(levels.leader(), buffers.received(0));
    return;
  }
  if (problem.rank != problem.root) {
    const Range packed = steps.scratch(mates.size() * length);
    steps.receive(problem.root, packed);
    steps.copy(buffers.received(0), packed_block(packed, levels.index(), length));
    steps.next_round();
    for (size_t mate = 0; mate < mates.size(); ++mate) {
      if (mate != levels.index()) steps.send(mates[mate], packed_block(packed, mate, length));
    }
    return;
  }
  std::vector<Range> out(levels.count());
  for (uint32_t other = 0; other < levels.count(); ++other) {
    if (other == levels.cluster()) continue;
    const std::vector<uint32_t>& ranks = levels.ranks_of(other);
    out[other] = steps.scratch(ranks.size() * length);
    for (size_t i = 0; i < ranks.size(); ++i) {
      steps.copy(packed_block(out[other], i, length), buffers.sent(ranks[i]));
    }
  }
  steps.next_round();
  for (uint32_t other = 0; other < levels.count(); ++other) {
    if (other != levels.cluster()) steps.send(levels.leader_of(other), out[other]);
  }
  for (const uint32_t mate : mates) {
    if (mate != problem.rank) steps.send(mate, buffers.sent(mate));
  }
  steps.copy(buffers.received(0), buffers.sent(problem.rank));
}

}  // namespace

// Broadcasts over a binomial tree. Clearing the lowest set bit of a member's distance from the root
// gives the distance of its parent.
void broadcast_tree(const Members& among, uint32_t root, const Range& all, StepBuilder& steps) {
  const uint32_t distance = among.distance_from(root);
  uint32_t bit = 1;
  while (bit < among.count && (distance & bit) == 0) bit *= 2;
  if (distance != 0) {
    steps.receive(among.before(bit), all);
    steps.next_round();
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (distance + bit < among.count) steps.send(among.after(bit), all);
  }
}

// Sends every block to all ranks of its own cluster, and to one rank of each other cluster. That
// rank forwards the block to the other ranks of its cluster.
void allgather_two_level(const SegmentBuffers& buffers, std::span<const Range> targets,
                         StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  const TwoLevels levels(problem);
  const uint32_t cluster = levels.cluster();
  for (const uint32_t mate : levels.mates()) {
    if (mate == problem.rank) continue;
    steps.send(mate, buffers.sent(0));
    steps.receive(mate, targets[mate]);
  }
  for (uint32_t other = 0; other < levels.count(); ++other) {
    if (other == cluster) continue;
    steps.send(levels.counterpart(problem.rank, other), buffers.sent(0));
    for (const uint32_t from : levels.ranks_of(other)) {
      if (levels.counterpart(from, cluster) == problem.rank) steps.receive(from, targets[from]);
    }
  }
  if (targets[problem.rank].buffer != BufferKind::kSend) {
    steps.copy(targets[problem.rank], buffers.sent(0));
  }
  steps.next_round();
  for (uint32_t from = 0; from < problem.ranks; ++from) {
    if (levels.cluster_of(from) == cluster) continue;
    const uint32_t has = levels.counterpart(from, cluster);
    if (has != problem.rank) {
      steps.receive(has, targets[from]);
      continue;
    }
    for (const uint32_t mate : levels.mates()) {
      if (mate != problem.rank) steps.send(mate, targets[from]);
    }
  }
}

void add_barrier(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  if (problem.monitored) return barrier_monitored(problem, steps);
  if (problem.algorithm == Algorithm::kTwoLevel) return barrier_two_level(problem, steps);
  disseminate(all_ranks(problem), steps);
}

void add_broadcast(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Problem& problem = buffers.problem();
  if (problem.algorithm == Algorithm::kTwoLevel) return broadcast_two_level(buffers, steps);
  if (problem.algorithm == Algorithm::kRing) return broadcast_ring(buffers, steps);
  broadcast_tree(all_ranks(problem), problem.root, buffers.received(0), steps);
}

void add_allgather(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Algorithm algorithm = buffers.problem().algorithm;
  if (algorithm == Algorithm::kRing) return allgather_ring(buffers, steps);
  if (algorithm == Algorithm::kTwoLevel) {
    return allgather_two_level(buffers, buffers.received_blocks(), steps);
  }
  allgather_at_once(buffers, steps);
}

void add_alltoall(const SegmentBuffers& buffers, StepBuilder& steps) {
  const Algorithm algorithm = buffers.problem().algorithm;
  if (algorithm == Algorithm::kTwoLevel) return alltoall_two_level(buffers, steps);
  alltoall_direct(buffers, algorithm == Algorithm::kLinear, steps);
}

void add_gather(const SegmentBuffers& buffers, StepBuilder& steps) {
  const bool two_level = buffers.problem().algorithm == Algorithm::kTwoLevel;
  return two_level ? gather_two_level(buffers, steps) : gather_linear(buffers, steps);
}

void add_scatter(const SegmentBuffers& buffers, StepBuilder& steps) {
  const bool two_level = buffers.problem().algorithm == Algorithm::kTwoLevel;
  return two_level ? scatter_two_level(buffers, steps) : scatter_linear(buffers, steps);
}

}  // namespace hetcomm::collectives
