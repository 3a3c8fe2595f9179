// Makes layouts from a mesh of ranks and a placement for each of its axes, as in DTensor (PyTorch's
// DeviceMesh and placements), and from parallel degrees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/layout.h"

namespace hetcomm::reshard {

// A Mesh is a grid of ranks. |ranks| lists them in the order of the axes, the last axis fastest.
struct Mesh {
  std::vector<uint64_t> axes;  // number of ranks along each axis
  std::vector<int> ranks;
};

// Says how one axis of a mesh cuts the tensor. Axes apply from first to last: each one cuts the
// piece that the earlier axes have given to a rank.
struct Placement {
  enum class Kind : uint8_t {
    kReplicate,  // all ranks along the axis hold the same data
    kShard,      // rank i has piece i of |dimension|
    kZigzag,     // |dimension| is cut into twice as many pieces as ranks; rank i has the i-th piece
                 // from the beginning and the i-th from the end (context parallelism with causal
                 // attention)
    // |dimension| is cut into |split| pieces. Each of these is cut into as many pieces as there are
    // ranks, and rank i has piece i of each. The result is the same as if a later axis with |split|
    // ranks had cut |dimension| before this one (PyTorch's _StridedShard).
    kStrided,
    kPartial,  // the tensor is the sum of the data held by the ranks along the axis
    kAverage,  // like kPartial, but the sum is divided by the number of these ranks
  };
  Kind kind = Kind::kReplicate;
  size_t dimension = 0;
  uint64_t split = 1;
  // kShard only: the number of elements of each rank, which may be 0. Empty: equal pieces.
  std::vector<uint64_t> sizes;
};

inline Placement replicate() { return {}; }
inline Placement shard(size_t dimension, std::vector<uint64_t> sizes = {}) {
  return {Placement::Kind::kShard, dimension, 1, std::move(sizes)};
}
inline Placement zigzag(size_t dimension) { return {Placement::Kind::kZigzag, dimension, 1, {}}; }
inline Placement strided_shard(size_t dimension, uint64_t split) {
  return {Placement::Kind::kStrided, dimension, split, {}};
}
inline Placement partial() { return {Placement::Kind::kPartial, 0, 1, {}}; }
inline Placement average() { return {Placement::Kind::kAverage, 0, 1, {}}; }

// Says how a dimension is cut if its size is not a multiple of the number of pieces.
enum class Uneven : uint8_t {
  kRefuse,  // the cut fails with INVALID_ARGUMENT
  // Every piece has the rounded-up quotient until the elements run out. Later pieces are shorter or
  // empty (torch.chunk).
  kCeil,
};

// A View says where the piece of a rank is in the rank's memory.
struct View {
  uint64_t offset = 0;
  std::vector<uint64_t> strides;  // in elements; empty: stored without gaps, in C order
};

// Returns the layout of a tensor of |shape|. If a rank has several pieces of a dimension, they
// follow each other in its memory. A rank that gets no elements has no part. Fails with
// INVALID_ARGUMENT if the mesh names a rank twice, an axis has no ranks or no placement, or a
// dimension does not exist or cannot be cut. The error text names the axis.
Result<Layout> layout_of(const std::vector<uint64_t>& shape, const Mesh& mesh,
                         const std::vector<Placement>& placements, Uneven uneven = Uneven::kRefuse,
                         const View& view = {});

// The data (d), context (c) and tensor (t) parallel degrees of activations with b samples, s tokens
// and h features. The activations are cut as [b / d, s / (c t), h]. The tensor parallel degree
// includes sequence parallelism (HetAuto, section 5.2).
struct Degrees {
  uint64_t data = 1;
  uint64_t context = 1;
  uint64_t tensor = 1;
  // The order in which ranks are numbered, slowest first: a permutation of "dct".
  std::string_view order = "dct";
  bool zigzag = false;  // each rank has two pieces, as in Placement::Kind::kZigzag
};
// Returns the mesh of |ranks| with the axes data, context and tensor. |ranks| are in the order of
// |degrees.order|. Fails with INVALID_ARGUMENT if |degrees.order| is not a permutation of "dct", or
// if the number of |ranks| is not the product of the degrees.
Result<Mesh> mesh_of(const Degrees& degrees, const std::vector<int>& ranks);
Result<Layout> activations(uint64_t batch, uint64_t sequence, uint64_t hidden,
                           const Degrees& degrees, const std::vector<int>& ranks);

}  // namespace hetcomm::reshard
