// What a rank does in a collective operation: sends, receives and local steps, in rounds. Pure: the
// same problem gives plans that fit together on every rank.
//
// A round's sends and receives are all under way at once; when they are over its local steps are
// done in order, then the next round begins. Large data is cut into lanes, slices of it with a plan
// each, of which several are under way at once: what one lane reduces another one moves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/job/rank_placement.h"
#include "src/core/plan/steps.h"

namespace hetcomm::collectives {

enum class Kind : uint8_t {
  kBarrier,
  kBroadcast,
  kReduce,
  kAllreduce,
  kAllgather,
  kAllgatherv,
  kReduceScatter,
  kReduceScatterv,
  kAlltoall,
  kAlltoallv,
  kGather,
  kGatherv,
  kScatter,
  kScatterv,
  kScan,
};
inline constexpr size_t kKinds = 15;

enum class Algorithm : uint8_t {
  kChosen,
  kBinomial,
  kDissemination,
  kLinear,
  kPairwise,
  kRecursiveDoubling,
  kRing,
  kTwoLevel,
};

const char* name_of(Kind kind);
const char* name_of(Algorithm algorithm);
// False when |kind| has no algorithm of this name; |*known| are those that it has, with commas.
bool find_algorithm(Kind kind, std::string_view name, Algorithm* algorithm, std::string* known);
// Whether the elements are combined.
bool reduces(Kind kind);
bool has_root(Kind kind);
// Whether there is a buffer for each rank, or one with a part for each rank, on either side.
bool sends_parts(Kind kind);
bool receives_parts(Kind kind);
// Whether every rank knows how long all parts are.
bool parts_are_known(Kind kind);
// Whether there is a buffer for each rank.
bool sends_many(Kind kind);
bool receives_many(Kind kind);

struct Problem {
  Kind kind = Kind::kBarrier;
  Algorithm algorithm = Algorithm::kChosen;
  bool exclusive = false;
  bool monitored = false;
  // Whether a step of the reduction rounds. Then inputs are combined in the order of ranks, and the
  // result is rounded once. What one rank hands on to be combined with more has elements of
  // |wide_bytes|.
  bool rounds = false;
  uint32_t ranks = 1;
  uint32_t rank = 0;
  uint32_t root = 0;
  uint64_t element_bytes = 1;
  uint64_t wide_bytes = 0;
  uint64_t bytes = 0;                        // of the buffer, or of one part where there are parts
  const RankPlacement* placement = nullptr;  // of the ranks
  // Of the forms with v, as far as this rank knows them: bytes of each part.
  std::span<const uint64_t> send_parts;
  std::span<const uint64_t> receive_parts;

  uint64_t send_part(uint32_t part) const { return send_parts.empty() ? bytes : send_parts[part]; }
  uint64_t receive_part(uint32_t part) const {
    return receive_parts.empty() ? bytes : receive_parts[part];
  }
};

using plan::Place;
using plan::Plan;
using plan::Range;
using plan::Step;
using plan::StepKind;

// Of a lane: large enough for a link, small enough that several of them overlap
// and that memory for them stays small.
inline constexpr uint64_t kLaneBytes = 1u << 20;

// Bytes of the longest of the parts that all ranks know.
uint64_t longest_part(const Problem& problem);
// The algorithm for |problem|: its own if it has one, else the one that is estimated to take least.
Algorithm choose(const Problem& problem);
// How long |algorithm| takes, roughly; only good for comparing algorithms of one problem.
uint64_t estimate_ns(const Problem& problem, Algorithm algorithm);
// The same on all ranks; at least 1.
uint64_t count_lanes(const Problem& problem);
// Plan of one lane; |plan| is overwritten.
void make_plan(const Problem& problem, uint64_t lane, Plan* plan);

}  // namespace hetcomm::collectives
