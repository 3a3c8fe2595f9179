#include "reshard/slicing.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "reshard/memory_order.h"

namespace hetcomm::reshard {
namespace {

// Returns the boundaries of all boxes in the layouts of |plan|, in one dimension.
std::vector<uint64_t> cuts_of(const MovePlan& plan, size_t dimension) {
  const uint64_t extent = plan.source.shape[dimension];
  std::vector<uint64_t> cuts = {0, extent};
  for (size_t i = 0; i <= plan.hops.size(); ++i) {
    for (const Part& part : plan.from(i).parts) {
      cuts.push_back(std::min(part.box.begin[dimension], extent));
      cuts.push_back(std::min(part.box.end[dimension], extent));
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// Says how a tensor is cut into slices. Every piece between two consecutive cuts along |dimension|
// is divided among all slices. If its size is not a multiple of the number of slices, the slices
// that get one more element vary from piece to piece. A piece with fewer elements than slices is in
// only some of them.
struct Cuts {
  size_t dimension = 0;
  uint32_t slices = 1;
  std::vector<uint64_t> cuts;

  // Returns the part of [begin, end), a piece between two cuts, that belongs to |slice|.
  std::pair<uint64_t, uint64_t> share(uint64_t begin, uint64_t end, uint32_t slice) const {
    const uint64_t size = end - begin;
    // Determines which slices get the larger shares: the sum of the digits of |begin| in base
    // |slices|. It varies between neighbouring pieces, and between pieces at regular distances.
    uint64_t turn = 0;
    for (uint64_t rest = begin; rest > 0; rest /= slices) turn += rest % slices;
    turn %= slices;
    const auto bound = [&](uint64_t index) {
      return begin + size / slices * index + (size % slices * index + turn) / slices;
    };
    return {bound(slice), bound(uint64_t{slice} + 1)};
  }
  // Calls |use| with each part of |box| that belongs to |slice|.
  template <typename Use>
  void for_each(const Box& box, uint32_t slice, Use&& use) const {
    if (slices == 1) return use(box);
    auto at = std::lower_bound(cuts.begin(), cuts.end(), box.begin[dimension]);
    for (; *at < box.end[dimension]; ++at) {
      Box piece = box;
      std::tie(piece.begin[dimension], piece.end[dimension]) = share(*at, *(at + 1), slice);
      if (piece.begin[dimension] < piece.end[dimension]) use(piece);
    }
  }
};

// Returns the largest number of slices, at most |wanted|, for which at least half of the extent is
// in pieces that have an element for every slice. The result is at least 1.
uint64_t slices_along(const std::vector<uint64_t>& cuts, uint64_t wanted) {
  std::vector<uint64_t> sizes;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) sizes.push_back(cuts[i + 1] - cuts[i]);
  std::sort(sizes.rbegin(), sizes.rend());
  uint64_t held = 0;
  for (const uint64_t size : sizes) {
    held += size;
    if (held >= cuts.back() - held) return std::clamp<uint64_t>(size, 1, wanted);
  }
  return 1;
}

// Chooses the outermost dimension that can be cut into |slices|. Rows then stay whole, and most
// ranks have a share of each slice. If there is no such dimension, chooses the one with the most
// slices. MovePlan::cuts do not affect the choice, but slices are cut at them, too.
Cuts choose_cuts(const MovePlan& plan, uint32_t slices) {
  // A tensor with many parts gets few slices, which limits the memory for the boxes of all slices.
  constexpr uint64_t kAlways = 64;
  constexpr uint64_t kMaxPieces = uint64_t{1} << 20;
  uint64_t parts = plan.source.parts.size();
  for (const Hop& hop : plan.hops) parts += hop.to.parts.size();
  const uint64_t room = std::max(kAlways, kMaxPieces / std::max<uint64_t>(parts, 1));
  Cuts best;
  uint64_t most = 0;
  const uint64_t wanted = std::clamp<uint64_t>(slices, 1, room);
  for (size_t d = 0; d < plan.source.shape.size() && most < wanted; ++d) {
    std::vector<uint64_t> cuts = cuts_of(plan, d);
    const uint64_t possible = slices_along(cuts, wanted);
    if (possible <= most) continue;
    most = possible;
    best.dimension = d;
    best.cuts = std::move(cuts);
  }
  for (const Cut& cut : plan.cuts) {
    if (cut.dimension == best.dimension) best.cuts.push_back(cut.at);
  }
  std::sort(best.cuts.begin(), best.cuts.end());
  best.cuts.erase(std::unique(best.cuts.begin(), best.cuts.end()), best.cuts.end());
  best.slices = static_cast<uint32_t>(std::max<uint64_t>(most, 1));
  return best;
}

// Removes dimensions of one element, and merges contiguous ones.
StridedBox simplified(const StridedBox& box) {
  StridedBox result = box;
  result.dimensions = 0;
  result.extents = {};
  result.strides = {};
  for (size_t d = 0; d < box.dimensions; ++d) {
    if (box.extents[d] == 1) continue;
    const size_t last = result.dimensions - 1;
    if (result.dimensions > 0 && result.strides[last] == box.strides[d] * box.extents[d]) {
      result.extents[last] *= box.extents[d];
      result.strides[last] = box.strides[d];
      continue;
    }
    result.extents[result.dimensions] = box.extents[d];
    result.strides[result.dimensions++] = box.strides[d];
  }
  return result;
}

// Assigns space in kSum to the sums that one rank forms in one phase. Each piece of a part that
// belongs to the slice is stored densely.
class Sums {
 public:
  // Returns the location in kSum of the sums of |box|, which belongs to |slice| of part |part|. No
  // cut divides |box|. The first call for a part reserves space for all its pieces.
  StridedBox locate(const Layout& layout, const Cuts& cuts, uint32_t slice, uint32_t part,
                    const Box& box) {
    std::vector<Piece>& pieces = parts_[part];
    if (pieces.empty()) {
      cuts.for_each(clip(layout, layout.parts[part]), slice, [&](const Box& piece) {
        pieces.push_back({piece, elements_});
        elements_ += piece.elements();
      });
    }
    const auto after = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return piece.box.begin[cuts.dimension] <= box.begin[cuts.dimension];
    });
    const Piece& piece = *(after - 1);
    const Numbers strides = dense_strides(piece.box);
    StridedBox result;
    result.memory = Space::kSum;
    result.offset = piece.offset;
    result.dimensions = box.dimensions;
    for (size_t d = 0; d < box.dimensions; ++d) {
      result.offset += (box.begin[d] - piece.box.begin[d]) * strides[d];
      result.extents[d] = box.extent(d);
      result.strides[d] = strides[d];
    }
    return simplified(result);
  }
  uint64_t elements() const { return elements_; }
  // Calls use(part, box, sum) for each piece. |box| is the box of the piece in the tensor, and
  // |sum| is its location in kSum.
  template <typename Use>
  void for_each(Use&& use) const {
    for (const auto& [part, pieces] : parts_) {
      for (const Piece& piece : pieces) {
        StridedBox flat;
        flat.memory = Space::kSum;
        flat.offset = piece.offset;
        flat.dimensions = 1;
        flat.extents[0] = piece.box.elements();
        flat.strides[0] = 1;
        use(part, piece.box, simplified(flat));
      }
    }
  }

 private:
  struct Piece {
    Box box;
    uint64_t offset;
  };
  std::map<uint32_t, std::vector<Piece>> parts_;
  uint64_t elements_ = 0;
};

class Slicer {
 public:
  Slicer(const MovePlan& plan, int rank, uint32_t slices, bool rounds)
      : plan_(plan), cuts_(choose_cuts(plan, slices)), rounds_(rounds) {
    slicing_.rank = rank;
    for (const Hop& hop : plan.hops) {
      std::vector<uint64_t>& offsets = scratch_.emplace_back(hop.scratch.size());
      for (size_t i = 0; i < hop.scratch.size(); ++i) {
        if (hop.to.parts[i].rank != rank || hop.scratch[i].alias != Alias::kNone) continue;
        offsets[i] = slicing_.scratch_elements;
        slicing_.scratch_elements += hop.to.parts[i].box.elements();
      }
    }
  }

  Slicing make() {
    for (uint32_t slice = 0; slice < cuts_.slices; ++slice) {
      for (uint32_t hop = 0; hop < plan_.hops.size(); ++hop) add_phase(slice, hop);
    }
    return std::move(slicing_);
  }

 private:
  // Returns the location of |box| in part |part| of layout |layout|. Layout 0 is the source, and
  // layout plan_.hops.size() is the destination.
  StridedBox locate(size_t layout, uint32_t part, const Box& box) const {
    const Part* of = &plan_.from(layout).parts[part];
    StridedBox result;
    Numbers strides = of->strides;
    if (layout == 0) {
      result.memory = Space::kSource;
    } else if (layout == plan_.hops.size()) {
      result.memory = Space::kDestination;
    } else if (const Scratch& scratch = plan_.hops[layout - 1].scratch[part];
               scratch.alias == Alias::kNone) {
      result.offset = scratch_[layout - 1][part];
    } else {
      const bool is_source = scratch.alias == Alias::kSource;
      result.memory = is_source ? Space::kSource : Space::kDestination;
      of = &(is_source ? plan_.source : plan_.destination()).parts[scratch.part];
      strides = of->strides;
    }
    if (result.memory != Space::kScratch) result.offset = of->offset;
    result.dimensions = box.dimensions;
    for (size_t d = 0; d < box.dimensions; ++d) {
      result.offset += (box.begin[d] - of->box.begin[d]) * strides[d];
      result.extents[d] = box.extent(d);
      result.strides[d] = strides[d];
    }
    return simplified(result);
  }

  void add_phase(uint32_t slice, uint32_t hop) {
    std::map<int, Message> sends;
    std::map<int, uint64_t> received;  // elements received, keyed by peer
    std::vector<std::pair<int, Arrival>> arrivals;
    const int rank = slicing_.rank;
    const Layout& layout = plan_.hops[hop].to;
    const bool sums = hop == 0 && plan_.source.terms > 1 && layout.terms == 1;
    Sums in_sums;
    for (const Move& move : plan_.hops[hop].moves) {
      const int from = plan_.from(hop).parts[move.from].rank;
      const int to = plan_.hops[hop].to.parts[move.to].rank;
      if (from != rank && to != rank) continue;
      cuts_.for_each(move.box, slice, [&](const Box& box) {
        if (to != rank) {
          Message& message = sends[to];
          message.elements += box.elements();
          message.boxes.push_back(locate(hop, move.from, box));
          return;
        }
        Arrival arrival;
        arrival.adds = move.adds;
        arrival.is_term = sums;
        arrival.to = sums && rounds_ ? in_sums.locate(layout, cuts_, slice, move.to, box)
                                     : locate(hop + 1, move.to, box);
        if (from == rank) {
          arrival.from = locate(hop, move.from, box);
        } else {
          arrival.position = received[from];
          received[from] += box.elements();
        }
        arrivals.emplace_back(from, arrival);
      });
    }
    if (sends.empty() && arrivals.empty()) return;
    in_sums.for_each([&](uint32_t part, const Box& box, const StridedBox& sum) {
      Arrival arrival;
      arrival.from = sum;
      arrival.to = locate(hop + 1, part, box);
      arrivals.emplace_back(rank, arrival);
    });
    Phase& phase = slicing_.phases.emplace_back();
    phase.sum_elements = in_sums.elements();
    phase.slice = slice;
    phase.hop = hop;
    for (auto& [peer, message] : sends) {
      message.peer = peer;
      slicing_.largest_message = std::max(slicing_.largest_message, message.elements);
      phase.sends.push_back(std::move(message));
    }
    std::map<int, int> number_of;
    for (const auto& [peer, elements] : received) {
      number_of[peer] = static_cast<int>(phase.receives.size());
      slicing_.largest_message = std::max(slicing_.largest_message, elements);
      phase.receives.push_back({peer, elements, {}});
    }
    for (auto& [from, arrival] : arrivals) {
      if (from != rank) arrival.receive = number_of[from];
      phase.arrivals.push_back(arrival);
    }
  }

  const MovePlan& plan_;
  const Cuts cuts_;
  const bool rounds_;
  std::vector<std::vector<uint64_t>> scratch_;  // offsets, indexed by hop and part
  Slicing slicing_;
};

}  // namespace

uint64_t StridedBox::elements() const {
  uint64_t product = 1;
  for (size_t d = 0; d < dimensions; ++d) product *= extents[d];
  return product;
}

Slicing slicing_of(const MovePlan& plan, int rank, uint32_t slices, bool rounds) {
  const MemoryOrder order = memory_order(plan.source, plan.destination());
  if (std::is_sorted(order.begin(), order.end())) return Slicer(plan, rank, slices, rounds).make();
  return Slicer(reordered(plan, order), rank, slices, rounds).make();
}

}  // namespace hetcomm::reshard
