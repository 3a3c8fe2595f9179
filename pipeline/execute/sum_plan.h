// A sum plan says which ranks add which pieces of which gradients. Pure.
//
// The ranks of a stage hold a tensor by a layout. A layout has one or more terms, which have to be
// added. Each term is cut into boxes, and several ranks may hold equal copies of a box. Other
// stages and pipelines that hold the same item of the model may cut it in other ways. The cuts of
// all of them together divide the tensor into pieces. A set of ranks adds a piece: one copy of
// every term of every holder. With several copies there are several sets. A rank in more than one
// of them keeps the result of the first.
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
  uint64_t offset = 0;       // in elements; known for this rank's parts only
  reshard::Numbers strides;  // in elements; known for this rank's parts only
};

// A rank's part of the gradient of a tensor.
struct HeldGradient {
  uint32_t item = 0;
  uint32_t index = 0;   // among the tensors of the item
  uint32_t holder = 0;  // number of the stage among all pipelines; its ranks hold one layout
  int32_t type = 0;
  uint32_t terms = 1;  // number of terms of the layout
  std::vector<uint64_t> shape;
  std::vector<GradientPart> parts;  // none: the rank holds nothing of it
};

struct SumPiece {
  size_t gradient = 0;  // in this rank's list
  reshard::Box box;
  uint64_t offset = 0;  // of its first element in this rank's memory, in elements
  reshard::Numbers strides;
  bool keeps_result = true;
  bool is_in_one_set = true;  // false: other sets also need the rank's own values
};

// A piece of at least this size has a bucket of its own.
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
  // The sets of all ranks, sorted. A set has several ranks, in the order in which stages and terms
  // are numbered. So the sets of a piece add its copies in the same order.
  std::vector<std::vector<uint32_t>> sets;
  // The buckets that this rank adds. All ranks of a set have its buckets in the same order. The
  // last items come first, since backward steps make their gradients first.
  std::vector<SumBucket> buckets;
  // The pieces that this rank counts in a norm, where each piece of a tensor counts on one rank
  // only.
  std::vector<SumPiece> counted;
};

// Plans the sums of |rank|. |held| has what each rank holds. Fails with kInvalidArgument and a text
// that names the rank, the item and the tensor, if ranks disagree about a tensor or its layout,
// if a rank of a layout does not hold its part, or if one holds several terms. Fails with
// kOutOfRange if a tensor is cut into more than 2^20 pieces.
Result<SumPlan> plan_sums(const std::vector<std::vector<HeldGradient>>& held, uint32_t rank);

}  // namespace hetcomm::pipeline
