// A sum plan says which ranks add up which pieces of which gradients. The functions are pure.
//
// The ranks of a stage hold a tensor in one layout. A layout has one or more terms, which have to
// be added. Each term is cut into boxes, and several ranks can hold equal copies of a box. Other
// stages and pipelines that hold the same item of the model may cut it differently. The cuts of all
// of them together divide the tensor into pieces. A piece is added by a set of ranks, which has one
// copy of every term of every holder. If there are several copies, there are several sets. A rank
// that is in more than one of them keeps the result of the first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/box.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// A box of a tensor that a rank holds.
struct GradientPart {
  reshard::Box box;
  uint32_t copy = 0;
  uint32_t term = 0;
  uint64_t offset = 0;       // in elements; set only for this rank's parts
  reshard::Numbers strides;  // in elements; set only for this rank's parts
};

// A rank's part of the gradient of a tensor.
struct HeldGradient {
  uint32_t item = 0;
  uint32_t index = 0;   // index among the tensors of the item
  uint32_t holder = 0;  // number of the stage among all pipelines; its ranks hold one layout
  int32_t type = 0;
  uint32_t terms = 1;  // number of terms of the layout
  std::vector<uint64_t> shape;
  std::vector<GradientPart> parts;  // empty: the rank holds no elements of it
};

struct SumPiece {
  size_t gradient = 0;  // index in this rank's list
  reshard::Box box;
  uint64_t offset = 0;  // offset of the first element in this rank's memory, in elements
  reshard::Numbers strides;
  bool keeps_result = true;
  bool is_in_one_set = true;  // false: other sets also use this rank's values
};

// A piece of at least this size gets a bucket of its own.
inline constexpr uint64_t kLargePieceBytes = uint64_t{256} << 10;

// The unit that the ranks of a set add up together: small pieces of one item and type, or one large
// piece.
struct SumBucket {
  size_t set = 0;  // index in SumPlan::sets
  uint32_t item = 0;
  int32_t type = 0;
  uint64_t elements = 0;
  std::vector<SumPiece> pieces;  // in the same order on all ranks of the set
};

struct SumPlan {
  // The sets of all ranks, sorted. A set has at least two ranks, in the order of stage and term
  // numbers, so all sets of a piece add its terms in the same order.
  std::vector<std::vector<uint32_t>> sets;
  // The buckets that this rank adds. All ranks of a set have its buckets in the same order. The
  // last items come first, since backward steps produce their gradients first.
  std::vector<SumBucket> buckets;
  // The pieces that this rank includes in a norm. Each piece of a tensor is included on one rank
  // only.
  std::vector<SumPiece> counted;
};

// Plans the sums of |rank|. |held| has the gradients that each rank holds. Fails with
// kInvalidArgument if ranks disagree about a tensor or its layout, if a rank of a layout does not
// hold its part, or if a rank holds several terms. The error text names the rank, the item and the
// tensor. Fails with kOutOfRange if a tensor is cut into more than 2^20 pieces.
Result<SumPlan> plan_sums(const std::vector<std::vector<HeldGradient>>& held, uint32_t rank);

}  // namespace hetcomm::pipeline
