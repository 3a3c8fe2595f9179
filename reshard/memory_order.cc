#include "reshard/memory_order.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace hetcomm::reshard {
namespace {

MemoryOrder c_order() {
  MemoryOrder order;
  std::iota(order.begin(), order.end(), uint8_t{0});
  return order;
}

// Returns whether |part| holds its elements in |order|: strides do not grow from one dimension to
// the next. The stride of a dimension of one element does not count.
bool is_in_order(const Part& part, const MemoryOrder& order) {
  uint64_t above = UINT64_MAX;
  for (size_t i = 0; i < part.box.dimensions; ++i) {
    const size_t d = order[i];
    if (part.box.extent(d) <= 1) continue;
    if (part.strides[d] > above) return false;
    above = part.strides[d];
  }
  return true;
}

bool are_in_order(const Layout& layout, const MemoryOrder& order) {
  return std::all_of(layout.parts.begin(), layout.parts.end(),
                     [&](const Part& part) { return is_in_order(part, order); });
}

MemoryOrder order_of(const Part& part) {
  MemoryOrder order = c_order();
  std::stable_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(part.box.dimensions),
                   [&](uint8_t a, uint8_t b) { return part.strides[a] > part.strides[b]; });
  return order;
}

std::vector<uint64_t> reordered(const std::vector<uint64_t>& shape, const MemoryOrder& order) {
  std::vector<uint64_t> result(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) result[i] = shape[order[i]];
  return result;
}

Numbers reordered(const Numbers& numbers, size_t dimensions, const MemoryOrder& order) {
  Numbers result{};
  for (size_t i = 0; i < dimensions; ++i) result[i] = numbers[order[i]];
  return result;
}

Box reordered(const Box& box, const MemoryOrder& order) {
  return {.dimensions = box.dimensions,
          .begin = reordered(box.begin, box.dimensions, order),
          .end = reordered(box.end, box.dimensions, order)};
}

// |dense|: the parts are not in a caller's memory, and become dense in |order|.
Layout reordered(const Layout& layout, const MemoryOrder& order, bool dense) {
  Layout result;
  result.shape = reordered(layout.shape, order);
  result.padded_shape = reordered(layout.padded_shape, order);
  result.terms = layout.terms;
  result.divisor = layout.divisor;
  result.parts.reserve(layout.parts.size());
  for (const Part& part : layout.parts) {
    Part own = part;
    own.box = reordered(part.box, order);
    own.strides =
        dense ? dense_strides(own.box) : reordered(part.strides, part.box.dimensions, order);
    result.parts.push_back(own);
  }
  return result;
}

}  // namespace

MemoryOrder memory_order(const Layout& source, const Layout& destination) {
  const MemoryOrder plain = c_order();
  if (are_in_order(source, plain) && are_in_order(destination, plain)) return plain;
  // A part with one element in some dimension does not say where that dimension is.
  for (const Layout* layout : {&source, &destination}) {
    for (const Part& part : layout->parts) {
      if (is_in_order(part, plain)) continue;
      const MemoryOrder order = order_of(part);
      if (are_in_order(source, order) && are_in_order(destination, order)) return order;
      return plain;
    }
  }
  return plain;
}

MovePlan reordered(const MovePlan& plan, const MemoryOrder& order) {
  MovePlan result;
  result.strategy = plan.strategy;
  result.source = reordered(plan.source, order, false);
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    const Hop& hop = plan.hops[i];
    Hop& own = result.hops.emplace_back();
    own.to = reordered(hop.to, order, i + 1 < plan.hops.size());
    own.scratch = hop.scratch;
    own.moves = hop.moves;
    for (Move& move : own.moves) move.box = reordered(move.box, order);
  }
  for (Cut cut : plan.cuts) {
    const auto* const at = std::find(order.begin(), order.end(), cut.dimension);
    cut.dimension = static_cast<size_t>(at - order.begin());
    result.cuts.push_back(cut);
  }
  std::sort(result.cuts.begin(), result.cuts.end());
  return result;
}

}  // namespace hetcomm::reshard
