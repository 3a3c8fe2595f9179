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

// Records which dimensions have larger strides than which others. A dimension with one element in a
// part is left out there, since its stride has no effect.
class Relations {
 public:
  void add(const Layout& layout) {
    for (const Part& part : layout.parts) {
      for (size_t a = 0; a < part.box.dimensions; ++a) {
        if (part.box.extent(a) <= 1) continue;
        for (size_t b = 0; b < part.box.dimensions; ++b) {
          if (part.box.extent(b) > 1 && part.strides[a] > part.strides[b]) is_outside_[a][b] = true;
        }
      }
    }
  }

  // Returns the order that agrees with all recorded relations and otherwise with C order. Returns C
  // order if relations contradict each other.
  MemoryOrder order(size_t dimensions) const {
    MemoryOrder result = c_order();
    std::array<bool, kMaxDimensions> taken{};
    for (size_t i = 0; i < dimensions; ++i) {
      size_t next = 0;
      while (next < dimensions && (taken[next] || !is_outermost(next, taken, dimensions))) ++next;
      if (next == dimensions) return c_order();
      taken[next] = true;
      result[i] = static_cast<uint8_t>(next);
    }
    return result;
  }

 private:
  bool is_outermost(size_t d, const std::array<bool, kMaxDimensions>& taken,
                    size_t dimensions) const {
    for (size_t other = 0; other < dimensions; ++other) {
      if (!taken[other] && is_outside_[other][d]) return false;
    }
    return true;
  }

  std::array<std::array<bool, kMaxDimensions>, kMaxDimensions> is_outside_{};
};

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

// Returns |layout| with its dimensions permuted to |order|. With |dense|, the parts are in scratch
// memory, and become dense in |order|. Otherwise each dimension keeps its stride.
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
  if (source.whole().is_empty()) return c_order();
  Relations relations;
  relations.add(source);
  relations.add(destination);
  return relations.order(source.shape.size());
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
