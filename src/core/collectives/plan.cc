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

constexpr std::array<Traits, kKinds> kTraits = {{
    {"barrier", false, false, false, false, {Algorithm::kDissemination, kNone, kNone}},
    {"broadcast", false, true, false, false, {Algorithm::kBinomial, Algorithm::kRing, kNone}},
    {"reduce", true, true, false, false, {Algorithm::kBinomial, Algorithm::kRing, kNone}},
    {"allreduce",
     true,
     false,
     false,
     false,
     {Algorithm::kRecursiveDoubling, Algorithm::kRing, kNone}},
    {"allgather", false, false, false, true, {Algorithm::kPairwise, Algorithm::kRing, kNone}},
    {"allgatherv", false, false, false, true, {Algorithm::kPairwise, Algorithm::kRing, kNone}},
    {"reduce_scatter", true, false, true, false, {Algorithm::kPairwise, Algorithm::kRing, kNone}},
    {"reduce_scatterv", true, false, true, false, {Algorithm::kPairwise, Algorithm::kRing, kNone}},
    {"alltoall", false, false, true, true, {Algorithm::kPairwise, Algorithm::kLinear, kNone}},
    {"alltoallv", false, false, true, true, {Algorithm::kPairwise, Algorithm::kLinear, kNone}},
    {"gather", false, true, false, true, {Algorithm::kLinear, kNone, kNone}},
    {"gatherv", false, true, false, true, {Algorithm::kLinear, kNone, kNone}},
    {"scatter", false, true, true, false, {Algorithm::kLinear, kNone, kNone}},
    {"scatterv", false, true, true, false, {Algorithm::kLinear, kNone, kNone}},
    {"scan", true, false, false, false, {Algorithm::kRecursiveDoubling, Algorithm::kRing, kNone}},
}};

const Traits& traits(Kind kind) { return kTraits[static_cast<size_t>(kind)]; }

// Up to here few rounds count for more than few bytes.
constexpr uint64_t kShortBytes = 16u << 10;
// Of a lane of ring algorithms: large enough for a link, small enough that several of them overlap
// and that memory for them stays small.
constexpr uint64_t kLaneBytes = 1u << 20;
constexpr uint64_t kLeastPiece = 64u << 10;

bool has_result(const Problem& problem) {
  if (!traits(problem.kind).reduces) return false;
  if (problem.kind == Kind::kReduce) return problem.rank == problem.root;
  return problem.kind != Kind::kScan || !problem.exclusive || problem.rank != 0;
}

// Steps of one lane.
class Builder {
 public:
  Builder(const Problem& problem, uint64_t lane, Plan& plan) : problem_(problem), plan_(plan) {
    plan_.steps.clear();
    plan_.scratch_bytes = 0;
    plan_.result = {};
    const uint64_t slice = slice_bytes(problem);
    begin_ = slice == UINT64_MAX ? 0 : lane * slice;
    end_ = slice == UINT64_MAX ? UINT64_MAX : begin_ + slice;
  }

  // Of each part, how much a lane has; UINT64_MAX: there is one lane.
  static uint64_t slice_bytes(const Problem& problem);
  static uint64_t longest_part(const Problem& problem);

  void build();

 private:
  uint32_t n() const { return problem_.ranks; }
  uint32_t me() const { return problem_.rank; }
  // The |distance|-th rank after this one.
  uint32_t after(uint32_t distance) const { return (me() + distance) % n(); }
  uint32_t before(uint32_t distance) const { return (me() + n() - distance % n()) % n(); }
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
  // The |index|-th of n pieces of |range|, whole elements each.
  Range piece(const Range& range, uint32_t index) const {
    const uint64_t elements = range.length / problem_.element_bytes;
    const uint64_t from = elements / n() * index + std::min<uint64_t>(index, elements % n());
    const uint64_t count = elements / n() + (index < elements % n() ? 1 : 0);
    return {range.place, range.part, range.offset + from * problem_.element_bytes,
            count * problem_.element_bytes};
  }
  void add(StepKind kind, uint32_t peer, const Range& to, const Range& first = {},
           const Range& second = {}) {
    // Both ends leave out what is empty; barriers are made of it.
    if (to.length == 0 && problem_.kind != Kind::kBarrier) return;
    plan_.steps.push_back({kind, round_, peer, to, first, second});
  }
  void send(uint32_t peer, const Range& what) { add(StepKind::kSend, peer, what); }
  void receive(uint32_t peer, const Range& where) { add(StepKind::kReceive, peer, where); }
  void copy(const Range& to, const Range& from) { add(StepKind::kCopy, me(), to, from); }
  void combine(const Range& to, const Range& first, const Range& second) {
    add(StepKind::kCombine, me(), to, first, second);
  }
  void next_round() { ++round_; }

  void barrier();
  void broadcast_binomial();
  void broadcast_ring();
  void reduce_binomial();
  void reduce_ring();
  void allreduce_doubling();
  void allreduce_ring();
  void allgather();
  void allgather_ring();
  void reduce_scatter();
  void reduce_scatter_ring();
  void alltoall(bool at_once);
  void gather();
  void scatter();
  void scan_doubling();
  void scan_ring();
  void copy_own();

  const Problem& problem_;
  Plan& plan_;
  uint64_t begin_;
  uint64_t end_;
  uint32_t round_ = 0;
};

uint64_t Builder::longest_part(const Problem& problem) {
  const std::span<const uint64_t> parts =
      traits(problem.kind).receive_parts ? problem.receive_parts : problem.send_parts;
  return parts.empty() ? problem.bytes : *std::max_element(parts.begin(), parts.end());
}

uint64_t Builder::slice_bytes(const Problem& problem) {
  const Algorithm algorithm = choose(problem);
  const bool lanes =
      algorithm == Algorithm::kRing || (traits(problem.kind).reduces && problem.ranks > 1);
  // What is only moved is cut by the connections.
  const bool moves = !traits(problem.kind).reduces && problem.kind != Kind::kBroadcast;
  if (!lanes || moves) return UINT64_MAX;
  uint64_t slice = kLaneBytes;
  if (problem.kind == Kind::kAllreduce && algorithm == Algorithm::kRing) {
    slice = std::max(kLaneBytes, problem.ranks * kLeastPiece);
  } else if (traits(problem.kind).send_parts) {
    slice = std::max(kLaneBytes / problem.ranks, kLeastPiece);
  } else if (algorithm == Algorithm::kRing) {
    slice = kLaneBytes / 4;
  }
  return slice / problem.element_bytes * problem.element_bytes;
}

void Builder::build() {
  if (has_result(problem_)) plan_.result = received(0);
  if (n() == 1 && problem_.kind != Kind::kBarrier) {
    copy_own();
    return;
  }
  const bool ring = choose(problem_) == Algorithm::kRing;
  switch (problem_.kind) {
    case Kind::kBarrier:
      return barrier();
    case Kind::kBroadcast:
      return ring ? broadcast_ring() : broadcast_binomial();
    case Kind::kReduce:
      return ring ? reduce_ring() : reduce_binomial();
    case Kind::kAllreduce:
      return ring ? allreduce_ring() : allreduce_doubling();
    case Kind::kAllgather:
    case Kind::kAllgatherv:
      return ring ? allgather_ring() : allgather();
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
      return ring ? reduce_scatter_ring() : reduce_scatter();
    case Kind::kAlltoall:
    case Kind::kAlltoallv:
      return alltoall(choose(problem_) == Algorithm::kLinear);
    case Kind::kGather:
    case Kind::kGatherv:
      return gather();
    case Kind::kScatter:
    case Kind::kScatterv:
      return scatter();
    case Kind::kScan:
      return ring ? scan_ring() : scan_doubling();
  }
}

void Builder::copy_own() {
  if (problem_.kind == Kind::kBroadcast || (problem_.kind == Kind::kScan && problem_.exclusive)) {
    return;
  }
  copy(received(0), sent(0));
}

// In round k every rank tells the one 2^k after it that all 2^k before it have entered. Monitored:
// all tell the first, and it tells all.
void Builder::barrier() {
  const Range nothing;
  if (!problem_.monitored) {
    for (uint32_t distance = 1; distance < n(); distance *= 2) {
      send(after(distance), nothing);
      receive(before(distance), nothing);
      next_round();
    }
    return;
  }
  for (uint32_t peer = 1; peer < n() && me() == 0; ++peer) receive(peer, nothing);
  if (me() != 0) send(0, nothing);
  next_round();
  for (uint32_t peer = 1; peer < n() && me() == 0; ++peer) send(peer, nothing);
  if (me() != 0) receive(0, nothing);
}

// A tree over the distance from the root: its lowest bit leads to the parent.
void Builder::broadcast_binomial() {
  const uint32_t distance = before(problem_.root);
  const Range all = received(0);
  uint32_t bit = 1;
  while (bit < n() && (distance & bit) == 0) bit *= 2;
  if (distance != 0) {
    receive(before(bit), all);
    next_round();
  }
  for (bit /= 2; bit > 0; bit /= 2) {
    if (distance + bit < n()) send(after(bit), all);
  }
}

// Lane by lane from one rank to the next.
void Builder::broadcast_ring() {
  const uint32_t distance = before(problem_.root);
  if (distance != 0) {
    receive(before(1), received(0));
    next_round();
  }
  if (distance + 1 < n()) send(after(1), received(0));
}

void Builder::reduce_binomial() {
  const uint32_t distance = before(problem_.root);
  Range mine = sent(0);
  const Range out = distance == 0 ? received(0) : scratch(mine.length);
  const Range other = scratch(mine.length);
  for (uint32_t bit = 1; bit < n(); bit *= 2) {
    if ((distance & bit) != 0) {
      send(before(bit), mine);
      return;
    }
    if (distance + bit >= n()) continue;
    receive(after(bit), other);
    combine(out, mine, other);
    mine = out;
    next_round();
  }
}

void Builder::reduce_ring() {
  const uint32_t distance = before(problem_.root);
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

// Pairs exchange all that they have, at distances 1, 2, 4, ... Ranks beyond a power of two hand
// theirs to a neighbour first. The lower side comes first, so that both get the same bits.
void Builder::allreduce_doubling() {
  const uint32_t power = std::bit_floor(n());
  const uint32_t beyond = n() - power;
  const Range own = sent(0);
  const Range all = received(0);
  const bool folded = me() < 2 * beyond;
  if (folded && me() % 2 == 0) {
    send(me() + 1, own);
    next_round();
    receive(me() + 1, all);
    return;
  }
  const Range other = scratch(own.length);
  Range mine = own;
  uint32_t index = me() - beyond;
  if (folded) {
    index = me() / 2;
    receive(me() - 1, other);
    combine(all, other, own);
    mine = all;
    next_round();
  }
  for (uint32_t bit = 1; bit < power; bit *= 2) {
    const uint32_t partner = index ^ bit;
    const uint32_t peer = partner < beyond ? 2 * partner + 1 : partner + beyond;
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
  if (folded) send(me() - 1, all);
}

// Every piece goes round once and is combined on its way, then round once more.
void Builder::allreduce_ring() {
  const Range own = sent(0);
  const Range all = received(0);
  const Range other = scratch(piece(own, 0).length);
  for (uint32_t step = 0; step + 1 < n(); ++step) {
    const uint32_t out = before(step + 1);
    const uint32_t in = before(step + 2);
    const Range target = piece(all, in);
    const Range arrives = {other.place, 0, other.offset, target.length};
    send(after(1), piece(step == 0 ? own : all, out));
    receive(before(1), arrives);
    combine(target, arrives, piece(own, in));
    next_round();
  }
  for (uint32_t step = 0; step + 1 < n(); ++step) {
    send(after(1), piece(all, before(step)));
    receive(before(1), piece(all, before(step + 1)));
    next_round();
  }
}

void Builder::allgather() {
  for (uint32_t distance = 1; distance < n(); ++distance) {
    send(after(distance), sent(0));
    receive(before(distance), received(before(distance)));
  }
  copy(received(me()), sent(0));
}

void Builder::allgather_ring() {
  for (uint32_t step = 0; step + 1 < n(); ++step) {
    send(after(1), step == 0 ? sent(0) : received(before(step)));
    receive(before(1), received(before(step + 1)));
    if (step == 0) copy(received(me()), sent(0));
    next_round();
  }
}

// Every rank gets its part of all others at once. The own part may lie where the result goes, so it
// is read before that is written.
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
  Range sum = inputs[0];
  const Range between = n() > 2 ? scratch(own.length) : Range{};
  for (uint32_t rank = 1; rank < n(); ++rank) {
    const Range to = rank + 1 == n() ? received(0) : between;
    combine(to, sum, inputs[rank]);
    sum = to;
  }
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

// After distance d a rank has the elements of the 2d ranks up to it.
void Builder::scan_doubling() {
  const Range own = sent(0);
  const Range all = received(0);
  const bool exclusive = problem_.exclusive;
  const Range sum = exclusive ? scratch(own.length) : all;
  const Range other = scratch(own.length);
  Range mine = own;
  bool first = true;
  for (uint32_t distance = 1; distance < n(); distance *= 2) {
    if (me() + distance < n()) send(me() + distance, mine);
    if (me() >= distance) {
      receive(me() - distance, other);
      combine(sum, other, mine);
      mine = sum;
      if (exclusive && first) copy(all, other);
      if (exclusive && !first) combine(all, other, all);
      first = false;
    }
    next_round();
  }
  if (!exclusive && me() == 0) copy(all, own);
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

Algorithm choose(const Problem& problem) {
  if (problem.algorithm != Algorithm::kChosen) return problem.algorithm;
  const auto& algorithms = traits(problem.kind).algorithms;
  if (problem.kind == Kind::kAlltoallv) return Algorithm::kLinear;
  // All ranks know the same parts where it matters.
  const bool is_short = Builder::longest_part(problem) <= kShortBytes;
  if (problem.kind == Kind::kAlltoall) {
    return is_short ? Algorithm::kLinear : Algorithm::kPairwise;
  }
  if (is_short || algorithms[1] == kNone) return algorithms[0];
  // Between two, pieces that go round are no better.
  const bool moves = problem.kind == Kind::kBroadcast || problem.kind == Kind::kAllgather ||
                     problem.kind == Kind::kAllgatherv;
  return problem.ranks == 2 && moves ? algorithms[0] : algorithms[1];
}

uint64_t count_lanes(const Problem& problem) {
  const uint64_t slice = Builder::slice_bytes(problem);
  if (slice == UINT64_MAX) return 1;
  const uint64_t length = Builder::longest_part(problem);
  return std::max<uint64_t>(1, (length + slice - 1) / slice);
}

void make_plan(const Problem& problem, uint64_t lane, Plan* plan) {
  Builder(problem, lane, *plan).build();
}

}  // namespace hetcomm::collectives
