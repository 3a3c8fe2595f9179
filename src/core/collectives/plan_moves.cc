#include "src/core/collectives/plan_builder.h"

namespace hetcomm::collectives {

// In round k every one tells the one 2^k after it that all 2^k before it have entered.
void Builder::disseminate(const Members& among) {
  const Range nothing;
  for (uint32_t distance = 1; distance < among.count; distance *= 2) {
    send(among.after(distance), nothing);
    receive(among.before(distance), nothing);
    next_round();
  }
}

// All tell the first, and it tells all.
void Builder::monitored_barrier() {
  const Range nothing;
  for (uint32_t peer = 1; peer < n() && me() == 0; ++peer) receive(peer, nothing);
  if (me() != 0) send(0, nothing);
  next_round();
  for (uint32_t peer = 1; peer < n() && me() == 0; ++peer) send(peer, nothing);
  if (me() != 0) receive(0, nothing);
}

void Builder::barrier_two_level() {
  const Range nothing;
  if (!leads()) {
    send(leader_of(cluster()), nothing);
    next_round();
    receive(leader_of(cluster()), nothing);
    return;
  }
  for (const uint32_t mate : mates()) {
    if (mate != me()) receive(mate, nothing);
  }
  next_round();
  disseminate(leaders());
  for (const uint32_t mate : mates()) {
    if (mate != me()) send(mate, nothing);
  }
}

// A tree over the distance from the root: its lowest bit leads to the parent.
void Builder::broadcast_tree(const Members& among, uint32_t root, const Range& all) {
  const uint32_t distance = (among.me + among.count - root) % among.count;
  uint32_t bit = 1;
  while (bit < among.count && (distance & bit) == 0) bit *= 2;
  if (distance != 0) {
    receive(among.before(bit), all);
    next_round();
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (distance + bit < among.count) send(among.after(bit), all);
  }
}

// From the root to a rank of each cluster, and from there to the others of it.
void Builder::broadcast_two_level() {
  if (leads()) {
    broadcast_tree(leaders(), placement_.cluster_of[problem_.root], received(0));
    next_round();
  }
  broadcast_tree(own_cluster(), placement_.index_of[leader_of(cluster())], received(0));
}

// Lane by lane from one rank to the next.
void Builder::broadcast_ring() {
  const uint32_t distance = places_behind(problem_.root);
  if (distance != 0) {
    receive(before(1), received(0));
    next_round();
  }
  if (distance + 1 < n()) send(after(1), received(0));
}

// |places|: where the part of each rank goes.
void Builder::allgather(std::span<const Range> places) {
  for (uint32_t distance = 1; distance < n(); ++distance) {
    send(after(distance), sent(0));
    receive(before(distance), places[before(distance)]);
  }
  if (places[me()].place != Place::kSend) copy(places[me()], sent(0));
}

// Every part goes to one rank of each other cluster, which hands it to its mates.
void Builder::allgather_two_level(std::span<const Range> places) {
  for (const uint32_t mate : mates()) {
    if (mate == me()) continue;
    send(mate, sent(0));
    receive(mate, places[mate]);
  }
  for (uint32_t other = 0; other < placement_.cluster_count(); ++other) {
    if (other == cluster()) continue;
    send(counterpart(me(), other), sent(0));
    for (const uint32_t from : placement_.clusters[other]) {
      if (counterpart(from, cluster()) == me()) receive(from, places[from]);
    }
  }
  if (places[me()].place != Place::kSend) copy(places[me()], sent(0));
  next_round();
  for (uint32_t from = 0; from < n(); ++from) {
    if (placement_.cluster_of[from] == cluster()) continue;
    const uint32_t has = counterpart(from, cluster());
    if (has != me()) {
      receive(has, places[from]);
      continue;
    }
    for (const uint32_t mate : mates()) {
      if (mate != me()) send(mate, places[from]);
    }
  }
}

void Builder::allgather_ring() {
  for (uint32_t step = 0; step + 1 < n(); ++step) {
    send(after(1), step == 0 ? sent(0) : received(before(step)));
    receive(before(1), received(before(step + 1)));
    if (step == 0) copy(received(me()), sent(0));
    next_round();
  }
}

void Builder::alltoall(bool at_once) {
  copy(received(me()), sent(me()));
  if (!at_once) next_round();
  std::vector<Step> own;
  if (at_once) own.swap(plan_.steps);
  for (uint32_t distance = 1; distance < n(); ++distance) {
    send(after(distance), sent(after(distance)));
    receive(before(distance), received(before(distance)));
    if (!at_once) next_round();
  }
  plan_.steps.insert(plan_.steps.end(), own.begin(), own.end());
}

// A message with a part of each of its ranks from every other cluster; |sender_of| says from whom.
template <typename SenderOf>
void Builder::receive_of_clusters(uint64_t length, SenderOf&& sender_of) {
  std::vector<Range> packed(placement_.cluster_count());
  for (uint32_t other = 0; other < placement_.cluster_count(); ++other) {
    if (other == cluster()) continue;
    packed[other] = scratch(placement_.clusters[other].size() * length);
    receive(sender_of(other), packed[other]);
  }
  for (uint32_t from = 0; from < n(); ++from) {
    const uint32_t other = placement_.cluster_of[from];
    if (other == cluster()) continue;
    copy(received(from), unpacked(packed[other], placement_.index_of[from], length));
  }
}

// What a cluster has for a rank of another one goes there from one of its ranks, in one message.
void Builder::alltoall_two_level() {
  const uint64_t length = sent(0).length;
  // Who in this rank's cluster has what goes to |rank|; the ranks of other clusters, by that.
  std::vector<std::vector<uint32_t>> targets(mates().size());
  for (uint32_t rank = 0; rank < n(); ++rank) {
    if (placement_.cluster_of[rank] == cluster()) continue;
    targets[placement_.index_of[counterpart(rank, cluster())]].push_back(rank);
  }
  std::vector<Range> leaving(mates().size());  // for each mate, what it is to hand on
  for (size_t mate = 0; mate < mates().size(); ++mate) {
    if (mate == index()) continue;
    leaving[mate] = scratch(targets[mate].size() * length);
    for (size_t i = 0; i < targets[mate].size(); ++i) {
      copy(unpacked(leaving[mate], i, length), sent(targets[mate][i]));
    }
  }
  copy(received(me()), sent(me()));
  next_round();

  const std::vector<uint32_t>& mine = targets[index()];
  std::vector<Range> handed(mates().size());  // by each mate
  for (size_t mate = 0; mate < mates().size(); ++mate) {
    if (mate == index()) continue;
    send(mates()[mate], sent(mates()[mate]));
    receive(mates()[mate], received(mates()[mate]));
    send(mates()[mate], leaving[mate]);
    handed[mate] = scratch(mine.size() * length);
    receive(mates()[mate], handed[mate]);
  }
  std::vector<Range> out(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    out[i] = scratch(mates().size() * length);
    for (size_t mate = 0; mate < mates().size(); ++mate) {
      copy(unpacked(out[i], mate, length),
           mate == index() ? sent(mine[i]) : unpacked(handed[mate], i, length));
    }
  }
  next_round();

  for (size_t i = 0; i < mine.size(); ++i) send(mine[i], out[i]);
  receive_of_clusters(length, [this](uint32_t other) { return counterpart(me(), other); });
}

void Builder::gather() {
  if (me() != problem_.root) {
    send(problem_.root, sent(0));
    return;
  }
  for (uint32_t distance = 1; distance < n(); ++distance) {
    receive(after(distance), received(after(distance)));
  }
  copy(received(me()), sent(0));
}

// The parts of another cluster come in one message.
void Builder::gather_two_level() {
  const uint64_t length = sent(0).length;
  if (!leads()) {
    send(leader_of(cluster()), sent(0));
    return;
  }
  if (me() != problem_.root) {
    const Range packed = scratch(mates().size() * length);
    for (size_t mate = 0; mate < mates().size(); ++mate) {
      if (mate != index()) receive(mates()[mate], unpacked(packed, mate, length));
    }
    copy(unpacked(packed, index(), length), sent(0));
    next_round();
    send(problem_.root, packed);
    return;
  }
  for (const uint32_t mate : mates()) {
    if (mate != me()) receive(mate, received(mate));
  }
  receive_of_clusters(length, [this](uint32_t other) { return leader_of(other); });
  copy(received(me()), sent(0));
}

void Builder::scatter() {
  if (me() != problem_.root) {
    receive(problem_.root, received(0));
    return;
  }
  for (uint32_t distance = 1; distance < n(); ++distance) {
    send(after(distance), sent(after(distance)));
  }
  copy(received(0), sent(me()));
}

// The parts for another cluster leave in one message.
void Builder::scatter_two_level() {
  const uint64_t length = received(0).length;
  if (!leads()) {
    receive(leader_of(cluster()), received(0));
    return;
  }
  if (me() != problem_.root) {
    const Range packed = scratch(mates().size() * length);
    receive(problem_.root, packed);
    copy(received(0), unpacked(packed, index(), length));
    next_round();
    for (size_t mate = 0; mate < mates().size(); ++mate) {
      if (mate != index()) send(mates()[mate], unpacked(packed, mate, length));
    }
    return;
  }
  std::vector<Range> out(placement_.cluster_count());
  for (uint32_t other = 0; other < placement_.cluster_count(); ++other) {
    if (other == cluster()) continue;
    const std::vector<uint32_t>& ranks = placement_.clusters[other];
    out[other] = scratch(ranks.size() * length);
    for (size_t i = 0; i < ranks.size(); ++i) copy(unpacked(out[other], i, length), sent(ranks[i]));
  }
  next_round();
  for (uint32_t other = 0; other < placement_.cluster_count(); ++other) {
    if (other != cluster()) send(leader_of(other), out[other]);
  }
  for (const uint32_t mate : mates()) {
    if (mate != me()) send(mate, sent(mate));
  }
  copy(received(0), sent(me()));
}

}  // namespace hetcomm::collectives
