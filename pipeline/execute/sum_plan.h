// A sum plan says which ranks add which pieces of which gradients. Pure.
//
// The ranks of a stage hold a tensor by a layout: in terms that have to be added, each cut into
// boxes, of which there may be equal copies. Other stages and pipelines that hold the same item of
// the model may cut it in other ways. The cuts of all of them together divide the tensor into
// pieces. For each piece the ranks that add it are one copy of every term of every holder. With
// several copies there are several such sets of ranks; a rank that is in more than one of them
// keeps the result of its first one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/box.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// A box of a tensor, as a rank holds it.
struct GradientPart {
  reshard::Box box;
  uint32_t copy = 0;
  uint32_t term = 0;
  uint64_t offset = 0;       // in elements; of this rank's parts only
  reshard::Numbers strides;  // likewise
};

// A rank's part of the gradient of a tensor.
struct HeldGradient {
  uint32_t item = 0;
  uint32_t index = 0;   // among the tensors of the item
  uint32_t holder = 0;  // numbers the stages of all pipelines: ranks with the same hold one layout
  int32_t type = 0;
  uint32_t terms = 1;  // of the layout
  std::vector<uint64_t> shape;
  std::vector<GradientPart> parts;  // none: the rank holds nothing of it
};

struct SumPiece {
  size_t gradient = 0;  // in this rank's list
  reshard::Box box;
  uint64_t offset = 0;  // of its first element in this rank's memory, in elements
  reshard::Numbers strides;
  bool keeps_result = true;
  bool is_in_one_set = true;  // otherwise other sets need the rank's own values, too
};

// A piece of at least so many bytes has a bucket of its own.
inline constexpr uint64_t kLargePieceBytes = uint64_t{256} << 10;

// Ranks of a set add up one bucket at a time: small pieces of one item and type, or a large one.
struct SumBucket {
  size_t set = 0;  // in SumPlan::sets
  uint32_t item = 0;
  int32_t type = 0;
  uint64_t elements = 0;
  std::vector<SumPiece> pieces;  // all ranks of the set have them in the same order
};

struct SumPlan {
  // These are the sets of all ranks, sorted. A set has several ranks, in the order in which stages
  // and terms are numbered: copies are added in the same order by each of their sets.
  std::vector<std::vector<uint32_t>> sets;
  // This rank adds these. Those of a set are in one order on all of its ranks: the last items come
  // first, as backward steps make their gradients.
  std::vector<SumBucket> buckets;
  // The pieces that this rank counts where each of a tensor may count once only, as in a norm.
  std::vector<SumPiece> counted;
};

// Plans the sums of |rank|. |held| has what each rank holds. Fails with kInvalidArgument and a text
// that names the rank, the item and the tensor, if ranks disagree about a tensor or its layout,
// if a rank of a layout does not hold its part, or if one holds several terms. Fails with
// kOutOfRange if a tensor is cut into more than 2^20 pieces.
Result<SumPlan> plan_sums(const std::vector<std::vector<HeldGradient>>& held, uint32_t rank);

}  // namespace hetcomm::pipeline
