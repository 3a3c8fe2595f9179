#include "src/core/collectives/problem.h"

#include <algorithm>
#include <array>

namespace hetcomm::collectives {
namespace {

struct Traits {
  const char* name;
  bool reduces;
  bool root;
  bool send_blocks;
  bool receive_blocks;
  std::array<Algorithm, 3> algorithms;  // kChosen fills unused entries
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

std::span<const Algorithm> algorithms_of(Kind kind) {
  const std::array<Algorithm, 3>& all = traits(kind).algorithms;
  return {all.begin(), std::find(all.begin(), all.end(), kNone)};
}

bool find_algorithm(Kind kind, std::string_view name, Algorithm* algorithm, std::string* known) {
  for (const Algorithm each : algorithms_of(kind)) {
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
bool sends_blocks(Kind kind) { return traits(kind).send_blocks; }
bool receives_blocks(Kind kind) { return traits(kind).receive_blocks; }
bool blocks_are_known(Kind kind) {
  return kind != Kind::kAlltoallv && kind != Kind::kGatherv && kind != Kind::kScatterv;
}
bool sends_many(Kind kind) {
  return kind == Kind::kReduceScatterv || kind == Kind::kAlltoallv || kind == Kind::kScatterv;
}
bool receives_many(Kind kind) {
  return kind == Kind::kAllgatherv || kind == Kind::kAlltoallv || kind == Kind::kGatherv;
}

uint64_t longest_block(const Problem& problem) {
  const std::span<const uint64_t> blocks =
      traits(problem.kind).receive_blocks ? problem.receive_blocks : problem.send_blocks;
  return blocks.empty() ? problem.bytes : *std::max_element(blocks.begin(), blocks.end());
}

}  // namespace hetcomm::collectives
