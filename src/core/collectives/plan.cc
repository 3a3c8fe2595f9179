#include "src/core/collectives/plan.h"

#include <algorithm>
#include <array>
#include <bit>

namespace hetcomm::collectives {
namespace {

struct Traits {
  const char* name;
  bool reduces;
  bool root;
  bool send_parts;
  bool receive_parts;
  std::array<Algorithm, 3> algorithms;  // those that there are; kChosen: no more
};

constexpr Algorithm kNone = Algorithm::kChosen;
constexpr Algorithm kTwo = Algorithm::kTwoLevel;

constexpr std::array<Traits, kKinds> kTraits = {{
    {"barrier", false, false, false, false, {Algorithm::kDissemination, kTwo, kNone}},
    {"broadcast", false, true, false, false, {Algorithm::kBinomial, Algorithm::kRing, kTwo}},
    {"reduce", true, true, false, false, {Algorithm::kBinomial, Algorithm::kRing, kTwo}},
    {"allreduce",
     true,
     false,
     false,
     false,
     {Algorithm::kRecursiveDoubling, Algorithm::kRing, kTwo}},
    {"allgather", false, false, false, true, {Algorithm::kPairwise, Algorithm::kRing, kTwo}},
    {"allgatherv", false, false, false, true, {Algorithm::kPairwise, Algorithm::kRing, kTwo}},
    {"reduce_scatter", true, false, true, false, {Algorithm::kPairwise, Algorithm::kRing, kTwo}},
    {"reduce_scatterv", true, false, true, false, {Algorithm::kPairwise, Algorithm::kRing, kTwo}},
    {"alltoall", false, false, true, true, {Algorithm::kPairwise, Algorithm::kLinear, kTwo}},
    {"alltoallv", false, false, true, true, {Algorithm::kPairwise, Algorithm::kLinear, kNone}},
    {"gather", false, true, false, true, {Algorithm::kLinear, kTwo, kNone}},
    {"gatherv", false, true, false, true, {Algorithm::kLinear, kNone, kNone}},
    {"scatter", false, true, true, false, {Algorithm::kLinear, kTwo, kNone}},
    {"scatterv", false, true, true, false, {Algorithm::kLinear, kNone, kNone}},
    {"scan", true, false, false, false, {Algorithm::kRecursiveDoubling, Algorithm::kRing, kTwo}},
}};

const Traits& traits(Kind kind) { return kTraits[static_cast<size_t>(kind)]; }

// Where there is no other reason: up to here few rounds count for more than few bytes.
constexpr uint64_t kShortBytes = 16u << 10;
constexpr uint64_t kLeastPiece = 64u << 10;
// Of a ring's lane, up to twice a lane: each piece costs a few short messages besides.
constexpr uint64_t kGoodPiece = 512u << 10;
// Of a part: a lane has memory for several times the parts of all ranks.
constexpr uint64_t kLeastPacked = 4u << 10;

// Whether two levels put parts of several ranks into one message.
bool packs_parts(Kind kind) {
  return kind == Kind::kAlltoall || kind == Kind::kGather || kind == Kind::kScatter;
}

bool has_result(const Problem& problem) {
  if (!traits(problem.kind).reduces) return false;
  if (problem.kind == Kind::kReduce) return problem.rank == problem.root;
  return problem.kind != Kind::kScan || !problem.exclusive || problem.rank != 0;
}

// Ranks that do something among themselves: the |count| ranks rank_of(0), rank_of(1), ..., of which
// this one is number |me|.
template <typename RankOf>
struct Members {
  uint32_t count;
  uint32_t me;
  RankOf rank_of;

  // The |distance|-th one after this one.
  uint32_t after(uint32_t distance) const { return rank_of((me + distance) % count); }
  uint32_t before(uint32_t distance) const {
    return rank_of((me + count - distance % count) % count);
  }
};
template <typename RankOf>
Members(uint32_t, uint32_t, RankOf) -> Members<RankOf>;

// Steps of one lane.
class Builder {
 public:
  Builder(const Problem& problem, uint64_t lane, Plan& plan)
      : problem_(problem), topology_(*problem.topology), algorithm_(choose(problem)), plan_(plan) {
    plan_.steps.clear();
    plan_.scratch_bytes = 0;
    plan_.result = {};
    const uint64_t slice = slice_bytes(problem);
    begin_ = slice == UINT64_MAX ? 0 : lane * slice;
    end_ = slice == UINT64_MAX ? UINT64_MAX : begin_ + slice;
  }

  // Of each part, how much a lane has; UINT64_MAX: there is one lane.
  static uint64_t slice_bytes(const Problem& problem);

  void build();

 private:
  uint32_t n() const { return problem_.ranks; }
  uint32_t me() const { return problem_.rank; }
  // Rings go from group to group, everything else by rank.
  uint32_t rank_at(uint32_t place) const {
    return algorithm_ == Algorithm::kRing ? topology_.ring[place] : place;
  }
  uint32_t place_of(uint32_t rank) const {
    return algorithm_ == Algorithm::kRing ? topology_.place_of[rank] : rank;
  }
  auto all_ranks() const {
    return Members{n(), place_of(me()), [this](uint32_t place) { return rank_at(place); }};
  }
  // The |distance|-th rank after this one.
  uint32_t after(uint32_t distance) const { return all_ranks().after(distance); }
  uint32_t before(uint32_t distance) const { return all_ranks().before(distance); }
  uint32_t places_behind(uint32_t rank) const {
    return (place_of(me()) + n() - place_of(rank)) % n();
  }

  // Of two levels: the groups, this rank's, and the one of each group that speaks for it.
  uint32_t group() const { return topology_.group_of[me()]; }
  uint32_t index() const { return topology_.index_of[me()]; }
  const std::vector<uint32_t>& mates() const { return topology_.groups[group()]; }
  uint32_t leader_of(uint32_t group) const {
    const bool of_root = has_root(problem_.kind) && topology_.group_of[problem_.root] == group;
    return of_root ? problem_.root : topology_.groups[group][0];
  }
  bool leads() const { return leader_of(group()) == me(); }
  auto leaders() const {
    return Members{topology_.group_count(), group(),
                   [this](uint32_t group) { return leader_of(group); }};
  }
  auto own_group() const {
    return Members{static_cast<uint32_t>(mates().size()), index(),
                   [this](uint32_t index) { return mates()[index]; }};
  }
  // The ranks of the same index in all groups; there has to be one in each.
  auto peers() const {
    return Members{topology_.group_count(), group(),
                   [this](uint32_t group) { return topology_.groups[group][index()]; }};
  }
  // Who in |group| is the other end of |rank|'s traffic with it.
  uint32_t counterpart(uint32_t rank, uint32_t group) const {
    const std::vector<uint32_t>& members = topology_.groups[group];
    return members[topology_.index_of[rank] % members.size()];
  }
  Range slice(Place place, uint32_t part, uint64_t length) const {
    const uint64_t from = std::min(begin_, length);
    return {place, part, from, std::min(end_, length) - from};
  }
  Range sent(uint32_t part) const { return slice(Place::kSend, part, problem_.send_part(part)); }
  Range received(uint32_t part) const {
    return slice(Place::kReceive, part, problem_.receive_part(part));
  }
  Range scratch(uint64_t length) {
    constexpr uint64_t kAlign = 64;
    const uint64_t at = plan_.scratch_bytes;
    plan_.scratch_bytes += (length + kAlign - 1) / kAlign * kAlign;
    return {Place::kScratch, 0, at, length};
  }
  // The |index|-th of the parts of |length| bytes each that |packed| has.
  static Range unpacked(const Range& packed, size_t index, uint64_t length) {
    return {packed.place, packed.part, packed.offset + index * length, length};
  }
  // The |index|-th of |pieces| pieces of |range|, whole elements each.
  Range piece(const Range& range, uint32_t index, uint32_t pieces) const {
    const uint64_t elements = range.length / problem_.element_bytes;
    const uint64_t from = elements / pieces * index + std::min<uint64_t>(index, elements % pieces);
    const uint64_t count = elements / pieces + (index < elements % pieces ? 1 : 0);
    return {range.place, range.part, range.offset + from * problem_.element_bytes,
            count * problem_.element_bytes};
  }
  void add(StepKind kind, uint32_t peer, const Range& to, const Range& first = {},
           const Range& second = {}) {
    // Both ends leave out what both know to be empty; barriers are made of it.
    if (to.length == 0 && problem_.kind != Kind::kBarrier && parts_are_known(problem_.kind)) return;
    plan_.steps.push_back({kind, round_, peer, to, first, second});
  }
  void send(uint32_t peer, const Range& what) { add(StepKind::kSend, peer, what); }
  void receive(uint32_t peer, const Range& where) { add(StepKind::kReceive, peer, where); }
  void copy(const Range& to, const Range& from) { add(StepKind::kCopy, me(), to, from); }
  void combine(const Range& to, const Range& first, const Range& second) {
    add(StepKind::kCombine, me(), to, first, second);
  }
  void next_round() { ++round_; }

  template <typename RankOf>
  void disseminate(const Members<RankOf>& among);
  template <typename RankOf>
  void broadcast_tree(const Members<RankOf>& among, uint32_t root, const Range& all);
  template <typename RankOf>
  Range reduce_tree(const Members<RankOf>& among, uint32_t root, Range mine, const Range& out);
  template <typename RankOf>
  void allreduce_doubling(const Members<RankOf>& among, const Range& own, const Range& all);
  template <typename RankOf>
  void allreduce_ring(const Members<RankOf>& among, const Range& own, const Range& all);
  void combine_all(std::span<const Range> inputs, const Range& out);

  void barrier();
  void monitored_barrier();
  void barrier_two_level();
  void broadcast_ring();
  void broadcast_two_level();
  void reduce_ring();
  void reduce_two_level();
  void allreduce_two_level();
  void allgather_two_level();
  void reduce_scatter_two_level();
  void allgather();
  void allgather_ring();
  void reduce_scatter();
  void reduce_scatter_ring();
  void alltoall(bool at_once);
  template <typename SenderOf>
  void receive_of_groups(uint64_t length, SenderOf&& sender_of);
  void alltoall_two_level();
  void gather();
  void gather_two_level();
  void scatter();
  void scatter_two_level();
  template <typename RankOf>
  void scan_doubling(const Members<RankOf>& among, const Range& own, const Range& inclusive,
                     const Range* exclusive);
  void scan_doubling();
  void scan_ring();
  void scan_two_level();
  void copy_own();

  const Problem& problem_;
  const Topology& topology_;
  const Algorithm algorithm_;
  Plan& plan_;
  uint64_t begin_;
  uint64_t end_;
  uint32_t round_ = 0;
};

uint64_t Builder::slice_bytes(const Problem& problem) {
  const Algorithm algorithm = choose(problem);
  const bool two_level = algorithm == Algorithm::kTwoLevel;
  const bool lanes = algorithm == Algorithm::kRing || two_level ||
                     (traits(problem.kind).reduces && problem.ranks > 1);
  // What is only moved is cut by the connections, unless it is packed on its way.
  const bool packs = two_level && packs_parts(problem.kind);
  const bool moves = !traits(problem.kind).reduces && problem.kind != Kind::kBroadcast;
  if (!lanes || (moves && !packs)) return UINT64_MAX;
  uint64_t slice = kLaneBytes;
  if (packs) {
    slice = std::max(kLaneBytes / problem.ranks, kLeastPacked);
  } else if (problem.kind == Kind::kAllreduce && (algorithm == Algorithm::kRing || two_level)) {
    const uint64_t pieces = two_level ? problem.topology->smallest : problem.ranks;
    if (!two_level) slice = std::clamp(pieces * kGoodPiece, kLaneBytes, 2 * kLaneBytes);
    slice = std::max(slice, pieces * kLeastPiece);
  } else if (traits(problem.kind).send_parts) {
    slice = std::max(kLaneBytes / problem.ranks, kLeastPiece);
  }
  return slice / problem.element_bytes * problem.element_bytes;
}

void Builder::build() {
  if (has_result(problem_)) plan_.result = received(0);
  if (n() == 1 && problem_.kind != Kind::kBarrier) {
    copy_own();
    return;
  }
  const bool ring = algorithm_ == Algorithm::kRing;
  const bool two_level = algorithm_ == Algorithm::kTwoLevel;
  switch (problem_.kind) {
    case Kind::kBarrier:
      if (problem_.monitored) return monitored_barrier();
      return two_level ? barrier_two_level() : disseminate(all_ranks());
    case Kind::kBroadcast:
      if (two_level) return broadcast_two_level();
      return ring ? broadcast_ring() : broadcast_tree(all_ranks(), problem_.root, received(0));
    case Kind::kReduce:
      if (two_level) return reduce_two_level();
      if (ring) return reduce_ring();
      reduce_tree(all_ranks(), problem_.root, sent(0), received(0));
      return;
    case Kind::kAllreduce:
      if (two_level) return allreduce_two_level();
      return ring ? allreduce_ring(all_ranks(), sent(0), received(0))
                  : allreduce_doubling(all_ranks(), sent(0), received(0));
    case Kind::kAllgather:
    case Kind::kAllgatherv:
      if (two_level) return allgather_two_level();
      return ring ? allgather_ring() : allgather();
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
      if (two_level) return reduce_scatter_two_level();
      return ring ? reduce_scatter_ring() : reduce_scatter();
    case Kind::kAlltoall:
    case Kind::kAlltoallv:
      return two_level ? alltoall_two_level() : alltoall(algorithm_ == Algorithm::kLinear);
    case Kind::kGather:
    case Kind::kGatherv:
      return two_level ? gather_two_level() : gather();
    case Kind::kScatter:
    case Kind::kScatterv:
      return two_level ? scatter_two_level() : scatter();
    case Kind::kScan:
      // The ranks before one are whole groups and some of its own, or there is no use in groups.
      if (two_level && topology_.contiguous) return scan_two_level();
      return ring ? scan_ring() : scan_doubling();
  }
}

void Builder::copy_own() {
  if (problem_.kind == Kind::kBroadcast || (problem_.kind == Kind::kScan && problem_.exclusive)) {
    return;
  }
  copy(received(0), sent(0));
}

// In round k every one tells the one 2^k after it that all 2^k before it have entered.
template <typename RankOf>
void Builder::disseminate(const Members<RankOf>& among) {
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
    send(leader_of(group()), nothing);
    next_round();
    receive(leader_of(group()), nothing);
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
template <typename RankOf>
void Builder::broadcast_tree(const Members<RankOf>& among, uint32_t root, const Range& all) {
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

// From the root to a rank of each group, and from there to the others of it.
void Builder::broadcast_two_level() {
  if (leads()) {
    broadcast_tree(leaders(), topology_.group_of[problem_.root], received(0));
    next_round();
  }
  broadcast_tree(own_group(), topology_.index_of[leader_of(group())], received(0));
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

// What |mine| is in the end, on the root in |out|: the sum over those that this one stands for.
template <typename RankOf>
Range Builder::reduce_tree(const Members<RankOf>& among, uint32_t root, Range mine,
                           const Range& out) {
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

// In each group to the rank that leads it, and of those to the root.
void Builder::reduce_two_level() {
  const Range out = me() == problem_.root ? received(0)
                    : leads()             ? scratch(sent(0).length)
                                          : Range{};
  const Range mine = reduce_tree(own_group(), topology_.index_of[leader_of(group())], sent(0), out);
  if (leads()) reduce_tree(leaders(), topology_.group_of[problem_.root], mine, out);
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
template <typename RankOf>
void Builder::allreduce_doubling(const Members<RankOf>& among, const Range& own, const Range& all) {
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
template <typename RankOf>
void Builder::allreduce_ring(const Members<RankOf>& among, const Range& own, const Range& all) {
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
  for (uint32_t step = 0; step + 1 < count; ++step) {
    send(among.after(1), piece(all, index_before(step), count));
    receive(among.before(1), piece(all, index_before(step + 1), count));
    next_round();
  }
}

// |out| may be one of the inputs: it is written when all of them have been read.
void Builder::combine_all(std::span<const Range> inputs, const Range& out) {
  Range sum = inputs[0];
  const Range between = inputs.size() > 2 ? scratch(out.length) : Range{};
  for (size_t i = 1; i < inputs.size(); ++i) {
    const Range to = i + 1 == inputs.size() ? out : between;
    combine(to, sum, inputs[i]);
    sum = to;
  }
}

// As many pieces as the smallest group has ranks. In each group the rank of that index sums a
// piece, exchanges it with those of the same index in the other groups, and hands it to its mates.
void Builder::allreduce_two_level() {
  const uint32_t pieces = topology_.smallest;
  const Range own = sent(0);
  const Range all = received(0);
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
  if (owns) {
    const Range sum = piece(all, index(), pieces);
    combine_all(inputs, sum);
    next_round();
    const Range mine = inputs.size() == 1 ? inputs[0] : sum;
    const bool few_rounds = topology_.group_count() == 2 || own.length / pieces <= kShortBytes;
    if (few_rounds) {
      allreduce_doubling(peers(), mine, sum);
    } else {
      allreduce_ring(peers(), mine, sum);
    }
  }
  next_round();
  for (uint32_t i = 0; i < mates().size(); ++i) {
    if (i == index()) continue;
    if (owns) send(mates()[i], piece(all, index(), pieces));
    if (i < pieces) receive(mates()[i], piece(all, i, pieces));
  }
}

void Builder::allgather() {
  for (uint32_t distance = 1; distance < n(); ++distance) {
    send(after(distance), sent(0));
    receive(before(distance), received(before(distance)));
  }
  copy(received(me()), sent(0));
}

// Every part goes to one rank of each other group, which hands it to its mates.
void Builder::allgather_two_level() {
  for (const uint32_t mate : mates()) {
    if (mate == me()) continue;
    send(mate, sent(0));
    receive(mate, received(mate));
  }
  for (uint32_t other = 0; other < topology_.group_count(); ++other) {
    if (other == group()) continue;
    send(counterpart(me(), other), sent(0));
    for (const uint32_t from : topology_.groups[other]) {
      if (counterpart(from, group()) == me()) receive(from, received(from));
    }
  }
  copy(received(me()), sent(0));
  next_round();
  for (uint32_t from = 0; from < n(); ++from) {
    if (topology_.group_of[from] == group()) continue;
    const uint32_t has = counterpart(from, group());
    if (has != me()) {
      receive(has, received(from));
      continue;
    }
    for (const uint32_t mate : mates()) {
      if (mate != me()) send(mate, received(from));
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
  combine_all(inputs, received(0));
}

// What a group has for a rank of another one is summed by one of its ranks, which sends it there.
void Builder::reduce_scatter_two_level() {
  // Who in this rank's group sums what goes to |rank|.
  const auto collector = [this](uint32_t rank) {
    return topology_.group_of[rank] == group() ? rank : counterpart(rank, group());
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
  const bool alone = topology_.group_count() == 1;
  std::vector<Range> sums(n());
  for (uint32_t to = 0; to < n(); ++to) {
    if (inputs[to].empty()) continue;
    sums[to] = inputs[to][0];
    if (inputs[to].size() == 1) continue;
    sums[to] = alone ? received(0) : scratch(sent(to).length);
    combine_all(inputs[to], sums[to]);
  }
  if (alone) return;
  next_round();
  std::vector<Range> of_groups;
  for (uint32_t to = 0; to < n(); ++to) {
    if (to != me() && !inputs[to].empty()) send(to, sums[to]);
  }
  for (uint32_t from = 0; from < topology_.group_count(); ++from) {
    if (from == group()) {
      of_groups.push_back(sums[me()]);
      continue;
    }
    of_groups.push_back(scratch(sent(me()).length));
    receive(counterpart(me(), from), of_groups.back());
  }
  combine_all(of_groups, received(0));
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

// A message with a part of each of its ranks from every other group; |sender_of| says from whom.
template <typename SenderOf>
void Builder::receive_of_groups(uint64_t length, SenderOf&& sender_of) {
  std::vector<Range> packed(topology_.group_count());
  for (uint32_t other = 0; other < topology_.group_count(); ++other) {
    if (other == group()) continue;
    packed[other] = scratch(topology_.groups[other].size() * length);
    receive(sender_of(other), packed[other]);
  }
  for (uint32_t from = 0; from < n(); ++from) {
    const uint32_t other = topology_.group_of[from];
    if (other == group()) continue;
    copy(received(from), unpacked(packed[other], topology_.index_of[from], length));
  }
}

// What a group has for a rank of another one goes there from one of its ranks, in one message.
void Builder::alltoall_two_level() {
  const uint64_t length = sent(0).length;
  // Who in this rank's group has what goes to |rank|; the ranks of other groups, by that.
  std::vector<std::vector<uint32_t>> targets(mates().size());
  for (uint32_t rank = 0; rank < n(); ++rank) {
    if (topology_.group_of[rank] == group()) continue;
    targets[topology_.index_of[counterpart(rank, group())]].push_back(rank);
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
  receive_of_groups(length, [this](uint32_t other) { return counterpart(me(), other); });
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

// The parts of another group come in one message.
void Builder::gather_two_level() {
  const uint64_t length = sent(0).length;
  if (!leads()) {
    send(leader_of(group()), sent(0));
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
  receive_of_groups(length, [this](uint32_t other) { return leader_of(other); });
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

// The parts for another group leave in one message.
void Builder::scatter_two_level() {
  const uint64_t length = received(0).length;
  if (!leads()) {
    receive(leader_of(group()), received(0));
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
  std::vector<Range> out(topology_.group_count());
  for (uint32_t other = 0; other < topology_.group_count(); ++other) {
    if (other == group()) continue;
    const std::vector<uint32_t>& ranks = topology_.groups[other];
    out[other] = scratch(ranks.size() * length);
    for (size_t i = 0; i < ranks.size(); ++i) copy(unpacked(out[other], i, length), sent(ranks[i]));
  }
  next_round();
  for (uint32_t other = 0; other < topology_.group_count(); ++other) {
    if (other != group()) send(leader_of(other), out[other]);
  }
  for (const uint32_t mate : mates()) {
    if (mate != me()) send(mate, sent(mate));
  }
  copy(received(0), sent(me()));
}

// After distance d a rank has the elements of the 2d ranks up to it. |*exclusive|, if it is asked
// for, leaves out the rank's own and is not written for the first one.
template <typename RankOf>
void Builder::scan_doubling(const Members<RankOf>& among, const Range& own, const Range& inclusive,
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

// What the groups before this one have comes to its last rank, which hands it to its mates.
void Builder::scan_two_level() {
  const Range all = received(0);
  const Range inclusive = problem_.exclusive ? scratch(all.length) : all;
  scan_doubling(own_group(), sent(0), inclusive, problem_.exclusive ? &all : nullptr);
  next_round();
  const Range before = scratch(all.length);
  const uint32_t last = mates().back();
  if (me() == last) {
    const Members lasts{topology_.group_count(), group(),
                        [this](uint32_t group) { return topology_.groups[group].back(); }};
    scan_doubling(lasts, inclusive, scratch(all.length), &before);
    next_round();
  }
  if (group() == 0) return;
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

}  // namespace

const char* name_of(Kind kind) { return traits(kind).name; }

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kChosen:
      return "chosen";
    case Algorithm::kBinomial:
      return "binomial";
    case Algorithm::kDissemination:
      return "dissemination";
    case Algorithm::kLinear:
      return "linear";
    case Algorithm::kPairwise:
      return "pairwise";
    case Algorithm::kRecursiveDoubling:
      return "recursive_doubling";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kTwoLevel:
      return "two_level";
  }
  return "";
}

bool find_algorithm(Kind kind, std::string_view name, Algorithm* algorithm, std::string* known) {
  for (const Algorithm each : traits(kind).algorithms) {
    if (each == kNone) continue;
    if (name == name_of(each)) {
      *algorithm = each;
      return true;
    }
    *known += known->empty() ? name_of(each) : std::string(", ") + name_of(each);
  }
  return false;
}

bool reduces(Kind kind) { return traits(kind).reduces; }
bool has_root(Kind kind) { return traits(kind).root; }
bool sends_parts(Kind kind) { return traits(kind).send_parts; }
bool receives_parts(Kind kind) { return traits(kind).receive_parts; }
bool parts_are_known(Kind kind) {
  return kind != Kind::kAlltoallv && kind != Kind::kGatherv && kind != Kind::kScatterv;
}
bool sends_many(Kind kind) {
  return kind == Kind::kReduceScatterv || kind == Kind::kAlltoallv || kind == Kind::kScatterv;
}
bool receives_many(Kind kind) {
  return kind == Kind::kAllgatherv || kind == Kind::kAlltoallv || kind == Kind::kGatherv;
}

uint64_t longest_part(const Problem& problem) {
  const std::span<const uint64_t> parts =
      traits(problem.kind).receive_parts ? problem.receive_parts : problem.send_parts;
  return parts.empty() ? problem.bytes : *std::max_element(parts.begin(), parts.end());
}

Algorithm choose(const Problem& problem) {
  if (problem.algorithm != Algorithm::kChosen) return problem.algorithm;
  const auto& algorithms = traits(problem.kind).algorithms;
  // Of these not all ranks know how long the parts are.
  if (problem.kind == Kind::kAlltoallv) return Algorithm::kLinear;
  const Topology& topology = *problem.topology;
  const bool has_levels =
      topology.has_levels() && (problem.kind != Kind::kScan || topology.contiguous);
  Algorithm best = algorithms[0];
  uint64_t least = UINT64_MAX;
  for (const Algorithm algorithm : algorithms) {
    if (algorithm == kNone || (algorithm == kTwo && !has_levels)) continue;
    // Long messages of many ranks at once are in each other's way, which no estimate tells.
    const bool at_once = problem.bytes <= kShortBytes;
    if (problem.kind == Kind::kAlltoall &&
        algorithm == (at_once ? Algorithm::kPairwise : Algorithm::kLinear)) {
      continue;
    }
    const uint64_t time = algorithms[1] == kNone ? 0 : estimate_ns(problem, algorithm);
    if (time >= least) continue;
    best = algorithm;
    least = time;
  }
  return best;
}

uint64_t count_lanes(const Problem& problem) {
  const uint64_t slice = Builder::slice_bytes(problem);
  if (slice == UINT64_MAX) return 1;
  const uint64_t length = longest_part(problem);
  return std::max<uint64_t>(1, (length + slice - 1) / slice);
}

void make_plan(const Problem& problem, uint64_t lane, Plan* plan) {
  Builder(problem, lane, *plan).build();
}

}  // namespace hetcomm::collectives
