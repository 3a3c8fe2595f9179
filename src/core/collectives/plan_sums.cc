#include <bit>

#include "src/core/collectives/plan_builder.h"

namespace hetcomm::collectives {

// What |mine| is in the end, on the root in |out|: the sum over those that this one stands for.
Range Builder::reduce_tree(const Members& among, uint32_t root, Range mine, const Range& out) {
  const uint32_t distance = (among.me + among.count - root) % among.count;
  const bool leaf = (distance & 1) != 0 || distance + 1 >= among.count;
  const Range sum = distance == 0 || leaf ? out : scratch(mine.length);
  const Range other = leaf ? Range{} : scratch(mine.length);
  for (uint32_t bit = 1; bit < among.count; bit *= 2) {
    if ((distance & bit) != 0) {
      send(among.before(bit), mine);
      return mine;
    }
    if (distance + bit >= among.count) continue;
    receive(among.after(bit), other);
    combine(sum, mine, other);
    mine = sum;
    next_round();
  }
  return mine;
}

// In each cluster to the rank that leads it, and of those to the root.
void Builder::reduce_two_level() {
  const Range out = me() == problem_.root ? received(0)
                    : leads()             ? scratch(sent(0).length)
                                          : Range{};
  const Range mine =
      reduce_tree(own_cluster(), placement_.index_of[leader_of(cluster())], sent(0), out);
  if (leads()) reduce_tree(leaders(), placement_.cluster_of[problem_.root], mine, out);
}

void Builder::reduce_ring() {
  const uint32_t distance = places_behind(problem_.root);
  Range mine = sent(0);
  if (distance + 1 < n()) {
    const Range other = scratch(mine.length);
    const Range out = distance == 0 ? received(0) : scratch(mine.length);
    receive(after(1), other);
    combine(out, mine, other);
    mine = out;
    next_round();
  }
  if (distance != 0) send(before(1), mine);
}

// Pairs exchange all that they have, at distances 1, 2, 4, ... Those beyond a power of two hand
// theirs to a neighbour first. The lower side comes first, so that both get the same bits.
void Builder::allreduce_doubling(const Members& among, const Range& own, const Range& all) {
  const uint32_t power = std::bit_floor(among.count);
  const uint32_t beyond = among.count - power;
  const bool folded = among.me < 2 * beyond;
  if (folded && among.me % 2 == 0) {
    send(among.rank_of(among.me + 1), own);
    next_round();
    receive(among.rank_of(among.me + 1), all);
    return;
  }
  const Range other = scratch(own.length);
  Range mine = own;
  uint32_t index = among.me - beyond;
  if (folded) {
    index = among.me / 2;
    receive(among.rank_of(among.me - 1), other);
    combine(all, other, own);
    mine = all;
    next_round();
  }
  for (uint32_t bit = 1; bit < power; bit *= 2) {
    const uint32_t partner = index ^ bit;
    const uint32_t peer = among.rank_of(partner < beyond ? 2 * partner + 1 : partner + beyond);
    send(peer, mine);
    receive(peer, other);
    if (partner < index) {
      combine(all, other, mine);
    } else {
      combine(all, mine, other);
    }
    mine = all;
    next_round();
  }
  if (folded) send(among.rank_of(among.me - 1), all);
}

// Every piece goes round once and is combined on its way, then round once more.
void Builder::allreduce_ring(const Members& among, const Range& own, const Range& all) {
  const uint32_t count = among.count;
  const auto index_before = [&](uint32_t distance) {
    return (among.me + count - distance % count) % count;
  };
  const Range other = scratch(piece(own, 0, count).length);
  for (uint32_t step = 0; step + 1 < count; ++step) {
    const uint32_t out = index_before(step + 1);
    const uint32_t in = index_before(step + 2);
    const Range target = piece(all, in, count);
    const Range arrives = {other.place, 0, other.offset, target.length};
    send(among.after(1), piece(step == 0 ? own : all, out, count));
    receive(among.before(1), arrives);
    combine(target, arrives, piece(own, in, count));
    next_round();
  }
  gather_ring(among, all);
}

// Every one has its own piece, which goes round once.
void Builder::gather_ring(const Members& among, const Range& all) {
  const uint32_t count = among.count;
  const auto piece_before = [&](uint32_t distance) {
    return piece(all, (among.me + count - distance % count) % count, count);
  };
  for (uint32_t step = 0; step + 1 < count; ++step) {
    send(among.after(1), piece_before(step));
    receive(among.before(1), piece_before(step + 1));
    next_round();
  }
}

// What the cluster has for the piece of this rank's index, if there is one, in the order of ranks.
std::vector<Range> Builder::collect_of_mates(uint32_t pieces) {
  const Range own = sent(0);
  const bool owns = index() < pieces;
  std::vector<Range> inputs;
  for (uint32_t i = 0; i < mates().size(); ++i) {
    if (i == index()) {
      if (owns) inputs.push_back(piece(own, i, pieces));
      continue;
    }
    if (i < pieces) send(mates()[i], piece(own, i, pieces));
    if (!owns) continue;
    inputs.push_back(scratch(piece(own, index(), pieces).length));
    receive(mates()[i], inputs.back());
  }
  return inputs;
}

void Builder::hand_to_mates(uint32_t pieces) {
  const Range all = received(0);
  for (uint32_t i = 0; i < mates().size(); ++i) {
    if (i == index()) continue;
    if (index() < pieces) send(mates()[i], piece(all, index(), pieces));
    if (i < pieces) receive(mates()[i], piece(all, i, pieces));
  }
}

// As many pieces as the smallest cluster has ranks. In each cluster the rank of that index sums a
// piece, exchanges it with those of the same index in the other clusters, and hands it to its mates.
void Builder::allreduce_two_level() {
  const uint32_t pieces = placement_.smallest;
  const std::vector<Range> inputs = collect_of_mates(pieces);
  if (index() < pieces) {
    const Range sum = piece(received(0), index(), pieces);
    if (inputs.size() > 1) reduce(sum, inputs);
    next_round();
    const Range mine = inputs.size() == 1 ? inputs[0] : sum;
    const bool few_rounds =
        placement_.cluster_count() == 2 || sent(0).length / pieces <= kShortBytes;
    if (few_rounds) {
      allreduce_doubling(peers(), mine, sum);
    } else {
      allreduce_ring(peers(), mine, sum);
    }
  }
  next_round();
  hand_to_mates(pieces);
}

// Every rank gets its part of all others at once.
void Builder::reduce_scatter() {
  const Range own = sent(me());
  std::vector<Range> inputs(n());
  for (uint32_t distance = 1; distance < n(); ++distance) {
    const uint32_t from = before(distance);
    inputs[from] = scratch(own.length);
    receive(from, inputs[from]);
    send(after(distance), sent(after(distance)));
  }
  inputs[me()] = own;
  reduce(received(0), inputs);
}

// What a cluster has for a rank of another one is summed by one of its ranks, which sends it there.
void Builder::reduce_scatter_two_level() {
  // Who in this rank's cluster sums what goes to |rank|.
  const auto collector = [this](uint32_t rank) {
    return placement_.cluster_of[rank] == cluster() ? rank : counterpart(rank, cluster());
  };
  std::vector<std::vector<Range>> inputs(n());  // of what this rank sums, by where it goes
  for (uint32_t to = 0; to < n(); ++to) {
    if (collector(to) != me()) {
      send(collector(to), sent(to));
      continue;
    }
    for (const uint32_t mate : mates()) {
      if (mate == me()) {
        inputs[to].push_back(sent(to));
      } else {
        inputs[to].push_back(scratch(sent(to).length));
        receive(mate, inputs[to].back());
      }
    }
  }
  const bool alone = placement_.cluster_count() == 1;
  std::vector<Range> sums(n());
  for (uint32_t to = 0; to < n(); ++to) {
    if (inputs[to].empty()) continue;
    sums[to] = inputs[to][0];
    if (inputs[to].size() == 1) continue;
    sums[to] = alone ? received(0) : scratch(sent(to).length);
    reduce(sums[to], inputs[to]);
  }
  if (alone) return;
  next_round();
  std::vector<Range> of_clusters;
  for (uint32_t to = 0; to < n(); ++to) {
    if (to != me() && !inputs[to].empty()) send(to, sums[to]);
  }
  for (uint32_t from = 0; from < placement_.cluster_count(); ++from) {
    if (from == cluster()) {
      of_clusters.push_back(sums[me()]);
      continue;
    }
    of_clusters.push_back(scratch(sent(me()).length));
    receive(counterpart(me(), from), of_clusters.back());
  }
  reduce(received(0), of_clusters);
}

void Builder::reduce_scatter_ring() {
  const auto length = [this](uint32_t part) { return sent(part).length; };
  uint64_t longest = 0;
  for (uint32_t part = 0; part < n(); ++part) longest = std::max(longest, length(part));
  Range buffers[2] = {scratch(longest), scratch(longest)};
  for (uint32_t step = 0; step + 1 < n(); ++step) {
    const uint32_t out = before(step + 1);
    const uint32_t in = before(step + 2);
    Range& arrives = buffers[step % 2];
    Range leaves = buffers[(step + 1) % 2];
    arrives.length = length(in);
    leaves.length = length(out);
    send(after(1), step == 0 ? sent(out) : leaves);
    receive(before(1), arrives);
    combine(step + 2 == n() ? received(0) : arrives, arrives, sent(in));
    next_round();
  }
}

// After distance d a rank has the elements of the 2d ranks up to it. |*exclusive|, if it is asked
// for, leaves out the rank's own and is not written for the first one.
void Builder::scan_doubling(const Members& among, const Range& own, const Range& inclusive,
                            const Range* exclusive) {
  const uint32_t own_place = among.me;
  const Range other = scratch(own.length);
  Range mine = own;
  bool first = true;
  for (uint32_t distance = 1; distance < among.count; distance *= 2) {
    if (own_place + distance < among.count) send(among.rank_of(own_place + distance), mine);
    if (own_place >= distance) {
      receive(among.rank_of(own_place - distance), other);
      combine(inclusive, other, mine);
      mine = inclusive;
      if (exclusive != nullptr && first) copy(*exclusive, other);
      if (exclusive != nullptr && !first) combine(*exclusive, other, *exclusive);
      first = false;
    }
    next_round();
  }
  if (own_place == 0) copy(inclusive, own);
}

void Builder::scan_doubling() {
  const Range all = received(0);
  if (problem_.exclusive) {
    scan_doubling(all_ranks(), sent(0), scratch(all.length), &all);
  } else {
    scan_doubling(all_ranks(), sent(0), all, nullptr);
  }
}

// What the clusters before this one have comes to its last rank, which hands it to its mates.
void Builder::scan_two_level() {
  const Range all = received(0);
  const Range inclusive = problem_.exclusive ? scratch(all.length) : all;
  scan_doubling(own_cluster(), sent(0), inclusive, problem_.exclusive ? &all : nullptr);
  next_round();
  const Range before = scratch(all.length);
  const uint32_t last = mates().back();
  if (me() == last) {
    const Members lasts =
        one_of_each([this](uint32_t cluster) { return placement_.clusters[cluster].back(); });
    scan_doubling(lasts, inclusive, scratch(all.length), &before);
    next_round();
  }
  if (cluster() == 0) return;
  for (const uint32_t mate : mates()) {
    if (mate != last && me() == last) send(mate, before);
  }
  if (me() != last) receive(last, before);
  if (problem_.exclusive && index() == 0) {
    copy(all, before);
  } else {
    combine(all, before, all);
  }
}

void Builder::scan_ring() {
  const Range own = sent(0);
  const Range all = received(0);
  if (me() == 0) {
    send(1, own);
    if (!problem_.exclusive) copy(all, own);
    return;
  }
  const Range other = scratch(own.length);
  const Range sum = problem_.exclusive ? scratch(own.length) : all;
  receive(me() - 1, other);
  combine(sum, other, own);
  if (problem_.exclusive) copy(all, other);
  next_round();
  if (me() + 1 < n()) send(me() + 1, sum);
}

}  // namespace hetcomm::collectives
