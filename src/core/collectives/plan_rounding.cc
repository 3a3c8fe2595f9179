// Reductions whose steps would round: every input comes as it is to where it is combined, in the
// order of ranks, and the result is rounded there. What has been combined so far goes on wide: from
// cluster to cluster, where these come one after the other, and in long scans from rank to rank.
#include <algorithm>
#include <bit>

#include "src/core/collectives/plan_builder.h"

namespace hetcomm::collectives {
namespace {

// One rank keeps the inputs of all ranks up to this many bytes together.
constexpr uint64_t kMostGathered = kLaneBytes;

}  // namespace

// Whether it is better to bring all inputs of |length| bytes to one rank than to share them out.
bool Builder::gathers(uint64_t length) const {
  if (length * n() > kMostGathered) return false;
  switch (algorithm_) {
    case Algorithm::kRing:
      return false;
    case Algorithm::kTwoLevel: {
      const LinkCost& link = placement_.across;
      const uint64_t wide = length / problem_.element_bytes * problem_.wide_bytes;
      return !placement_.contiguous ||
             link.time_ns(length * placement_.largest) <= link.time_ns(wide) + link.time_ns(length);
    }
    default:
      return true;
  }
}

// |out| is what all of |among| have as |inputs|, the first of them first: the last one has it.
// Part of a round, which it ends.
void Builder::chain(const Members& among, std::span<const Range> inputs, const Range& out) {
  const bool first = among.me == 0;
  const bool last = among.me + 1 == among.count;
  const Range before = first ? Range{} : wide(out);
  if (!first) receive(among.before(1), before);
  if (last) {
    reduce(out, inputs, before);
    next_round();
    return;
  }
  const Range sum = first ? wide(out) : before;
  reduce_wide(sum, inputs, before);
  next_round();
  send(among.after(1), sum);
}

// Each piece of |own| to the one that it belongs to; what came for this one's, by rank.
std::vector<Range> Builder::exchange_pieces(const Members& among, const Range& own) {
  const Range mine = piece(own, among.me, among.count);
  std::vector<Range> inputs(n());
  for (uint32_t distance = 1; distance < among.count; ++distance) {
    const uint32_t to = (among.me + distance) % among.count;
    send(among.rank_of(to), piece(own, to, among.count));
    Range& input = inputs[among.before(distance)];
    input = scratch(mine.length);
    receive(among.before(distance), input);
  }
  inputs[me()] = mine;
  return inputs;
}

// --- allreduce ----------------------------------------------------------------

void Builder::allreduce_rounding() {
  if (gathers(sent(0).length)) return allreduce_gathered();
  return chains() ? allreduce_chained() : allreduce_by_owners();
}

// Every rank combines everything.
void Builder::allreduce_gathered() {
  if (algorithm_ != Algorithm::kTwoLevel) return allreduce_rows();
  const std::vector<Range> inputs = places_for_all(sent(0));
  allgather_two_level(inputs);
  next_round();
  reduce(received(0), inputs);
}

// As allreduce_doubling, but what pairs exchange are rows of inputs, by rank.
void Builder::allreduce_rows() {
  const Range own = sent(0);
  const Range all = received(0);
  const uint32_t power = std::bit_floor(n());
  const uint32_t beyond = n() - power;
  const bool folded = me() < 2 * beyond;
  if (folded && me() % 2 == 0) {
    send(me() + 1, own);
    next_round();
    receive(me() + 1, all);
    return;
  }
  const Range inputs = scratch(own.length * n());
  // What |count| of those that exchange have between them, from number |from| on.
  const auto row = [&](uint32_t from, uint32_t count) {
    const auto rank_at = [&](uint32_t index) { return index + std::min(index, beyond); };
    Range part = unpacked(inputs, rank_at(from), own.length);
    part.length = (rank_at(from + count) - rank_at(from)) * own.length;
    return part;
  };
  if (folded) receive(me() - 1, unpacked(inputs, me() - 1, own.length));
  copy(unpacked(inputs, me(), own.length), own);
  next_round();
  const uint32_t index = folded ? me() / 2 : me() - beyond;
  for (uint32_t bit = 1; bit < power; bit *= 2) {
    const uint32_t partner = index ^ bit;
    const uint32_t peer = partner < beyond ? 2 * partner + 1 : partner + beyond;
    send(peer, row(index & ~(bit - 1), bit));
    receive(peer, row(partner & ~(bit - 1), bit));
    next_round();
  }
  std::vector<Range> list(n());
  for (uint32_t rank = 0; rank < n(); ++rank) list[rank] = unpacked(inputs, rank, own.length);
  reduce(all, list);
  next_round();
  if (folded) send(me() - 1, all);
}

// Each rank combines a piece.
void Builder::allreduce_by_owners() {
  const Members among = all_ranks();
  const Range all = received(0);
  reduce(piece(all, among.me, n()), exchange_pieces(among, sent(0)));
  next_round();
  gather_ring(among, all);
}

// There are as many pieces as the smallest cluster has ranks; each goes from cluster to cluster.
void Builder::allreduce_chained() {
  const uint32_t pieces = placement_.smallest;
  const std::vector<Range> inputs = collect_of_mates(pieces);
  if (index() < pieces) {
    const Range sum = piece(received(0), index(), pieces);
    const Members among = peers();
    chain(among, inputs, sum);
    broadcast_tree(among, among.count - 1, sum);
  }
  next_round();
  hand_to_mates(pieces);
}

// --- reduce -------------------------------------------------------------------

void Builder::reduce_rounding() {
  if (chains()) return reduce_chained();
  if (n() > 3 && !gathers(sent(0).length)) return reduce_by_owners();
  const std::vector<Range> inputs = collect({n(), me()}, problem_.root, sent(0));
  if (me() == problem_.root) reduce(received(0), inputs);
}

// What all of |among| have, by number, at the one of number |root|.
std::vector<Range> Builder::collect(const Members& among, uint32_t root, const Range& own) {
  std::vector<Range> inputs;
  if (among.me != root) {
    send(among.rank_of(root), own);
    return inputs;
  }
  for (uint32_t i = 0; i < among.count; ++i) {
    inputs.push_back(i == root ? own : scratch(own.length));
    if (i != root) receive(among.rank_of(i), inputs.back());
  }
  return inputs;
}

// Each rank combines a piece, and sends it to the root.
void Builder::reduce_by_owners() {
  const Members among = all_ranks();
  const bool at_root = me() == problem_.root;
  const Range own = sent(0);
  const Range mine = piece(at_root ? received(0) : own, among.me, n());
  const Range sum = at_root ? mine : scratch(mine.length);
  reduce(sum, exchange_pieces(among, own));
  next_round();
  if (!at_root) {
    send(problem_.root, sum);
    return;
  }
  for (uint32_t distance = 1; distance < n(); ++distance) {
    const uint32_t from = (among.me + distance) % n();
    receive(among.rank_of(from), piece(received(0), from, n()));
  }
}

// The sum goes from leader to leader, and from the last of them to the root.
void Builder::reduce_chained() {
  const Members among = own_cluster();
  const std::vector<Range> inputs =
      collect(among, placement_.index_of[leader_of(cluster())], sent(0));
  if (!leads()) return;
  const uint32_t last = leader_of(placement_.cluster_count() - 1);
  const bool at_root = me() == problem_.root;
  // The other leaders need no place for the result, but its length.
  const Range out = at_root        ? received(0)
                    : me() == last ? scratch(sent(0).length)
                                   : Range{.length = sent(0).length};
  chain(leaders(), inputs, out);
  if (last == problem_.root) return;
  if (me() == last) send(problem_.root, out);
  if (at_root) receive(last, out);
}

// --- reduce_scatter -----------------------------------------------------------

// What there is for each rank goes from cluster to cluster, at last to the rank.
void Builder::reduce_scatter_chained() {
  const uint32_t clusters = placement_.cluster_count();
  // Who in |cluster| adds to what goes to |rank|.
  const auto collector = [this](uint32_t rank, uint32_t in) {
    return placement_.cluster_of[rank] == in ? rank : counterpart(rank, in);
  };
  const bool last = cluster() + 1 == clusters;
  std::vector<Range> sums(n());  // of what this rank adds to, by where it goes
  std::vector<std::vector<Range>> inputs(n());
  std::vector<Range> before(n());
  for (uint32_t to = 0; to < n(); ++to) {
    if (collector(to, cluster()) != me()) {
      send(collector(to, cluster()), sent(to));
      continue;
    }
    for (const uint32_t mate : mates()) {
      inputs[to].push_back(mate == me() ? sent(to) : scratch(sent(to).length));
      if (mate != me()) receive(mate, inputs[to].back());
    }
    if (cluster() > 0) {
      before[to] = wide(sent(to));
      receive(collector(to, cluster() - 1), before[to]);
    }
  }
  for (uint32_t to = 0; to < n(); ++to) {
    if (inputs[to].empty()) continue;
    if (last) {
      sums[to] = to == me() ? received(0) : scratch(sent(to).length);
      reduce(sums[to], inputs[to], before[to]);
    } else {
      sums[to] = cluster() > 0 ? before[to] : wide(sent(to));
      reduce_wide(sums[to], inputs[to], before[to]);
    }
  }
  next_round();
  for (uint32_t to = 0; to < n(); ++to) {
    if (inputs[to].empty() || (last && to == me())) continue;
    send(last ? to : collector(to, cluster() + 1), sums[to]);
  }
  if (!last) receive(collector(me(), clusters - 1), received(0));
}

// --- scan ---------------------------------------------------------------------

void Builder::scan_rounding() {
  const Range own = sent(0);
  const Range all = received(0);
  const bool gets = !problem_.exclusive || me() > 0;
  if (gathers(own.length)) {
    std::vector<Range> inputs;
    for (uint32_t rank = 0; rank < me(); ++rank) {
      inputs.push_back(scratch(own.length));
      receive(rank, inputs.back());
    }
    for (uint32_t rank = me() + 1; rank < n(); ++rank) send(rank, own);
    if (!problem_.exclusive) inputs.push_back(own);
    if (gets) reduce(all, inputs);
    return;
  }
  const std::vector<Range> mine{own};
  Range before;
  if (me() > 0) {
    before = wide(own);
    receive(me() - 1, before);
  }
  const Range sum = wide(own);
  if (me() + 1 < n()) reduce_wide(sum, mine, before);
  if (gets) reduce(all, problem_.exclusive ? std::vector<Range>() : mine, before);
  next_round();
  if (me() + 1 < n()) send(me() + 1, sum);
}

}  // namespace hetcomm::collectives
