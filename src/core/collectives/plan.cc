#include "src/core/collectives/plan.h"

#include <algorithm>
#include <array>

#include "src/core/collectives/plan_builder.h"

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
  if (!traits(problem.kind).reduces || problem.rounds) return false;
  if (problem.kind == Kind::kReduce) return problem.rank == problem.root;
  return problem.kind != Kind::kScan || !problem.exclusive || problem.rank != 0;
}

}  // namespace

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
    const uint64_t pieces = two_level ? problem.placement->smallest : problem.ranks;
    // A lane of what rounds has memory for a piece of each rank.
    const uint64_t most = problem.rounds ? kLaneBytes : 2 * kLaneBytes;
    if (!two_level) slice = std::clamp(pieces * kGoodPiece, kLaneBytes, most);
    slice = std::max(slice, pieces * kLeastPiece);
  } else if (problem.kind == Kind::kReduce && problem.rounds && two_level) {
    // Whoever speaks for a cluster has the inputs of all its ranks.
    slice = std::max(kLaneBytes / problem.placement->largest, kLeastPiece);
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
      if (problem_.rounds) return reduce_rounding();
      if (two_level) return reduce_two_level();
      if (ring) return reduce_ring();
      reduce_tree(all_ranks(), problem_.root, sent(0), received(0));
      return;
    case Kind::kAllreduce:
      if (problem_.rounds) return allreduce_rounding();
      if (two_level) return allreduce_two_level();
      return ring ? allreduce_ring(all_ranks(), sent(0), received(0))
                  : allreduce_doubling(all_ranks(), sent(0), received(0));
    case Kind::kAllgather:
    case Kind::kAllgatherv:
      if (ring) return allgather_ring();
      return two_level ? allgather_two_level(received_parts()) : allgather(received_parts());
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
      if (problem_.rounds) return chains() ? reduce_scatter_chained() : reduce_scatter();
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
      if (problem_.rounds) return scan_rounding();
      // The ranks before one are whole clusters and some of its own, or there is no use in clusters.
      if (two_level && placement_.contiguous) return scan_two_level();
      return ring ? scan_ring() : scan_doubling();
  }
}

void Builder::copy_own() {
  if (problem_.kind == Kind::kBroadcast || (problem_.kind == Kind::kScan && problem_.exclusive)) {
    return;
  }
  if (problem_.rounds) {
    reduce(received(0), std::vector{sent(0)});
  } else {
    copy(received(0), sent(0));
  }
}

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
  const RankPlacement& placement = *problem.placement;
  const bool has_levels =
      placement.has_levels() && (problem.kind != Kind::kScan || placement.contiguous);
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
