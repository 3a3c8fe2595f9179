#include "reshard/mesh.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/faults.h"

namespace hetcomm::reshard {
namespace {

using Kind = Placement::Kind;

// A range of indices in one dimension. The ranges of a rank are listed in memory order.
struct Range {
  uint64_t begin;
  uint64_t end;
};
using Indices = std::vector<Range>;

uint64_t count_of(const Indices& indices) {
  uint64_t count = 0;
  for (const Range& range : indices) count += range.end - range.begin;
  return count;
}

// A Taker copies indices from |from| to |into|, at ascending positions.
class Taker {
 public:
  Taker(const Indices& from, Indices* into) : from_(from), into_(into) {}
  // Appends the indices at positions [begin, end). Positions must ascend from call to call.
  void take(uint64_t begin, uint64_t end) {
    while (at_ < from_.size()) {
      const Range& range = from_[at_];
      const uint64_t size = range.end - range.begin;
      const uint64_t first = std::max(begin, position_);
      const uint64_t last = std::min(end, position_ + size);
      if (first < last) add({range.begin + (first - position_), range.begin + (last - position_)});
      if (position_ + size > end) return;
      position_ += size;
      ++at_;
    }
  }

 private:
  void add(const Range& taken) {
    if (!into_->empty() && into_->back().end == taken.begin) {
      into_->back().end = taken.end;
    } else {
      into_->push_back(taken);
    }
  }

  const Indices& from_;
  Indices* const into_;
  size_t at_ = 0;
  uint64_t position_ = 0;  // position at which range |at_| begins
};

bool has_terms(const Placement& placement) {
  return placement.kind == Kind::kPartial || placement.kind == Kind::kAverage;
}

Status check_placement(const std::vector<uint64_t>& shape, const Mesh& mesh, size_t axis,
                       const Placement& placement) {
  if (placement.kind == Kind::kReplicate || has_terms(placement)) return {};
  if (placement.dimension >= shape.size()) {
    return invalid(fmt::format("axis {} cuts dimension {} of a tensor that has {}", axis,
                               placement.dimension, shape.size()));
  }
  if (placement.kind == Kind::kStrided &&
      (placement.split == 0 || placement.split > kMaxParts / mesh.axes[axis] ||
       placement.split > std::max<uint64_t>(shape[placement.dimension], 1u << 16))) {
    return invalid(fmt::format("axis {}: a split factor of {}", axis, placement.split));
  }
  if (!placement.sizes.empty() && placement.sizes.size() != mesh.axes[axis]) {
    return invalid(fmt::format("axis {} has {} ranks and {} sizes", axis, mesh.axes[axis],
                               placement.sizes.size()));
  }
  return {};
}

Status check_mesh(const std::vector<uint64_t>& shape, const Mesh& mesh,
                  const std::vector<Placement>& placements) {
  if (shape.empty() || shape.size() > kMaxDimensions) {
    return invalid(fmt::format("a tensor of {} dimensions: it must have 1 to {}", shape.size(),
                               kMaxDimensions));
  }
  uint64_t elements = 1;
  for (const uint64_t extent : shape) {
    if (extent > kMaxElements / std::max<uint64_t>(elements, 1)) {
      return invalid("the tensor has more than 2^48 elements");
    }
    elements *= extent;
  }
  if (placements.size() != mesh.axes.size()) {
    return invalid(fmt::format("the mesh has {} axes, and {} placements are given",
                               mesh.axes.size(), placements.size()));
  }
  uint64_t ranks = 1;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (mesh.axes[axis] == 0 || mesh.axes[axis] > kMaxParts / ranks) {
      return invalid(fmt::format("axis {} has {} ranks", axis, mesh.axes[axis]));
    }
    ranks *= mesh.axes[axis];
    HETCOMM_RETURN_IF_ERROR(check_placement(shape, mesh, axis, placements[axis]));
  }
  if (ranks != mesh.ranks.size()) {
    return invalid(fmt::format("a mesh of {} has {} ranks, and {} are given",
                               fmt::join(mesh.axes, " x "), ranks, mesh.ranks.size()));
  }
  std::set<int> seen;
  for (const int rank : mesh.ranks) {
    if (!seen.insert(rank).second) {
      return invalid(fmt::format("rank {} is in two places of the mesh", rank));
    }
  }
  return {};
}

uint64_t pieces_of(const Placement& placement, uint64_t ranks) {
  if (placement.kind == Kind::kZigzag) return 2 * ranks;
  return placement.kind == Kind::kStrided ? placement.split * ranks : ranks;
}

// Takes piece |number| of |pieces| of the elements from |begin| to |end|. Every piece has the
// rounded-up quotient until the elements run out, as in torch.chunk().
void take_piece(uint64_t begin, uint64_t end, uint64_t pieces, uint64_t number, Taker& taker) {
  const uint64_t size = (end - begin + pieces - 1) / pieces;
  taker.take(std::min(end, begin + number * size), std::min(end, begin + (number + 1) * size));
}

// Returns the start of each rank's piece, followed by the end of the last one. A sum that would
// overflow is capped at the largest 64-bit number.
std::vector<uint64_t> starts_of(const std::vector<uint64_t>& sizes) {
  std::vector<uint64_t> starts{0};
  for (const uint64_t size : sizes) {
    const uint64_t before = starts.back();
    starts.push_back(size > std::numeric_limits<uint64_t>::max() - before
                         ? std::numeric_limits<uint64_t>::max()
                         : before + size);
  }
  return starts;
}

// Returns the piece of |indices| that goes to rank |position| of |ranks| along the axis. |starts|
// comes from starts_of(placement.sizes).
Result<Indices> cut(const Indices& indices, const Placement& placement,
                    const std::vector<uint64_t>& starts, uint64_t ranks, uint64_t position,
                    Uneven uneven) {
  const uint64_t count = count_of(indices);
  Indices kept;
  Taker taker(indices, &kept);
  if (!placement.sizes.empty()) {
    if (starts.back() != count) {
      return invalid(fmt::format("the sizes [{}] do not add up to the {} elements of dimension {}",
                                 fmt::join(placement.sizes, ", "), count, placement.dimension));
    }
    taker.take(starts[position], starts[position + 1]);
    return kept;
  }
  const uint64_t pieces = pieces_of(placement, ranks);
  if (uneven == Uneven::kRefuse && count % pieces != 0) {
    return invalid(fmt::format("{} pieces do not divide the {} elements of dimension {}", pieces,
                               count, placement.dimension));
  }
  if (placement.kind == Kind::kZigzag) {
    take_piece(0, count, pieces, position, taker);
    take_piece(0, count, pieces, pieces - 1 - position, taker);
  } else if (placement.kind == Kind::kStrided) {
    // Cuts along the later axis first, then cuts each of these pieces along this axis.
    const uint64_t size = (count + placement.split - 1) / placement.split;
    for (uint64_t i = 0; i < placement.split; ++i) {
      take_piece(std::min(count, i * size), std::min(count, (i + 1) * size), ranks, position,
                 taker);
    }
  } else {
    take_piece(0, count, pieces, position, taker);
  }
  return kept;
}

// Returns whether the combinations of ranges, at one box each, exceed kMaxParts together with
// |there| existing boxes.
bool are_too_many(const std::vector<Indices>& held, size_t there) {
  uint64_t boxes = 1;
  for (const Indices& ranges : held) {
    if (boxes > kMaxParts / std::max<uint64_t>(ranges.size(), 1)) return true;
    boxes *= ranges.size();
  }
  return boxes > kMaxParts - there;
}

// Adds the parts of one rank: one box per combination of ranges.
void add_parts(const std::vector<Indices>& held, const Numbers& strides, uint64_t offset,
               const Part& common, std::vector<Part>* parts) {
  const size_t dimensions = held.size();
  std::vector<std::vector<uint64_t>> offsets(dimensions);  // the offset of each range in memory
  for (size_t d = 0; d < dimensions; ++d) {
    uint64_t next = 0;
    for (const Range& range : held[d]) {
      offsets[d].push_back(next);
      next += (range.end - range.begin) * strides[d];
    }
  }
  std::vector<size_t> at(dimensions, 0);
  for (;;) {
    Part part = common;
    part.box.dimensions = dimensions;
    part.offset = offset;
    part.strides = strides;
    for (size_t d = 0; d < dimensions; ++d) {
      const Indices& ranges = held[d];
      part.box.begin[d] = ranges[at[d]].begin;
      part.box.end[d] = ranges[at[d]].end;
      part.offset += offsets[d][at[d]];
    }
    parts->push_back(part);
    size_t d = dimensions;
    while (d > 0 && ++at[d - 1] == held[d - 1].size()) at[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

Result<Layout> layout_of(const std::vector<uint64_t>& shape, const Mesh& mesh,
                         const std::vector<Placement>& placements, Uneven uneven,
                         const View& view) {
  HETCOMM_RETURN_IF_ERROR(check_mesh(shape, mesh, placements));
  if (!view.strides.empty() && view.strides.size() != shape.size()) {
    return invalid(fmt::format("a view with {} strides of a tensor of {} dimensions",
                               view.strides.size(), shape.size()));
  }
  Layout layout;
  layout.shape = shape;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!has_terms(placements[axis])) continue;
    layout.terms *= static_cast<uint32_t>(mesh.axes[axis]);
    if (placements[axis].kind != Kind::kAverage) continue;
    layout.divisor *= static_cast<uint32_t>(mesh.axes[axis]);
  }
  std::vector<std::vector<uint64_t>> starts;
  for (const Placement& placement : placements) starts.push_back(starts_of(placement.sizes));
  for (size_t index = 0; index < mesh.ranks.size(); ++index) {
    Part part;
    part.rank = mesh.ranks[index];
    std::vector<Indices> held;
    for (const uint64_t extent : shape) held.push_back({{0, extent}});
    uint64_t step = mesh.ranks.size();
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      const uint64_t ranks = mesh.axes[axis];
      step /= ranks;
      const uint64_t position = index / step % ranks;
      const Placement& placement = placements[axis];
      if (placement.kind == Kind::kReplicate) {
        part.copy = static_cast<uint32_t>(part.copy * ranks + position);
      } else if (has_terms(placement)) {
        part.term = static_cast<uint32_t>(part.term * ranks + position);
      } else {
        Indices& indices = held[placement.dimension];
        Result<Indices> left = cut(indices, placement, starts[axis], ranks, position, uneven);
        if (!left.ok()) return left.status().annotate(fmt::format("axis {}", axis));
        indices = std::move(left).value();
      }
    }
    Box local;  // the box of the rank's piece in the rank's own memory
    local.dimensions = shape.size();
    for (size_t d = 0; d < shape.size(); ++d) local.end[d] = count_of(held[d]);
    if (local.is_empty()) continue;
    Numbers strides = dense_strides(local);
    std::copy(view.strides.begin(), view.strides.end(), strides.begin());
    if (are_too_many(held, layout.parts.size())) {
      return invalid(fmt::format("more than {} boxes", kMaxParts));
    }
    add_parts(held, strides, view.offset, part, &layout.parts.edit());
  }
  HETCOMM_RETURN_IF_ERROR(check(layout));
  return layout;
}

Result<Mesh> mesh_of(const Degrees& degrees, const std::vector<int>& ranks) {
  Mesh mesh;
  mesh.ranks = ranks;
  // |ranks| are numbered in |degrees.order|. The mesh lists them in the order d, c, t, in which the
  // placements apply.
  std::string sorted(degrees.order);
  std::sort(sorted.begin(), sorted.end());
  if (sorted != "cdt") {
    return invalid(fmt::format("the order '{}' is no permutation of 'dct'", degrees.order));
  }
  const auto degree_of = [&](char name) {
    return name == 'd' ? degrees.data : name == 'c' ? degrees.context : degrees.tensor;
  };
  mesh.axes = {degrees.data, degrees.context, degrees.tensor};
  uint64_t count = 1;
  for (const uint64_t degree : mesh.axes) {
    count = degree == 0 || degree > ranks.size() / count ? 0 : count * degree;
    if (count == 0) break;
  }
  if (count == 0 || count != ranks.size()) {
    return invalid(fmt::format("{} x {} x {} ranks, and {} are given", degrees.data,
                               degrees.context, degrees.tensor, ranks.size()));
  }
  for (uint64_t index = 0; index < count; ++index) {
    // Computes the position of ranks[index] in the mesh.
    uint64_t position = 0;
    for (const char name : std::string_view("dct")) {
      uint64_t step = 1;
      for (size_t i = degrees.order.size(); degrees.order[i - 1] != name; --i) {
        step *= degree_of(degrees.order[i - 1]);
      }
      position = position * degree_of(name) + index / step % degree_of(name);
    }
    mesh.ranks[position] = ranks[index];
  }
  return mesh;
}

Result<Layout> activations(uint64_t batch, uint64_t sequence, uint64_t hidden,
                           const Degrees& degrees, const std::vector<int>& ranks) {
  Result<Mesh> mesh = mesh_of(degrees, ranks);
  if (!mesh.ok()) return mesh.status();
  return layout_of({batch, sequence, hidden}, mesh.value(),
                   {shard(0), degrees.zigzag ? zigzag(1) : shard(1), shard(1)});
}

}  // namespace hetcomm::reshard
