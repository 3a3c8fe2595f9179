#include "reshard/strategies.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "reshard/faults.h"
#include "reshard/redistribute.h"

namespace hetcomm::reshard {
namespace {

constexpr std::array<std::string_view, kStrategies> kNames = {
    "auto", "direct", "leader", "gather_p2p_scatter", "sendrecv_allgather", "bsr"};

// Returns a layout with the shape of |other| and no parts.
Layout empty_like(const Layout& other) {
  Layout layout;
  layout.shape = other.shape;
  return layout;
}

void add_dense(Layout& layout, int rank, const Box& box) {
  Part part;
  part.rank = rank;
  part.box = box;
  part.strides = dense_strides(box);
  layout.parts.push_back(part);
}

// Makes the plan that goes from |source| through |between| to |destination|.
class MovePlanner {
 public:
  MovePlanner(const Layout& destination, std::optional<int> rank, uint64_t turn)
      : destination_(destination), rank_(rank), turn_(turn) {}

  Result<MovePlan> make(std::string strategy, const Layout& source, std::vector<Layout> between) {
    plan_.strategy = std::move(strategy);
    plan_.source = source;
    for (size_t i = 0; i < between.size(); ++i) {
      Hop hop;
      // Only the last intermediate layout may use the destination's memory. Otherwise a later hop
      // would overwrite data that an earlier hop left there.
      const bool is_last = i + 1 == between.size();
      for (const Part& part : between[i].parts) {
        hop.scratch.push_back(find_alias(part, is_last));
      }
      hop.to = std::move(between[i]);
      HETCOMM_RETURN_IF_ERROR(add(std::move(hop)));
    }
    Hop last;
    last.to = destination_;
    HETCOMM_RETURN_IF_ERROR(add(std::move(last)));
    return std::move(plan_);
  }

 private:
  // Returns the index of a part of |layout| that belongs to the same rank as |part| and contains
  // all of it. Returns nullopt if there is none, or if |layout| is a sum of several terms.
  static std::optional<uint32_t> find_holder(const Layout& layout, const Part& part) {
    for (uint32_t i = 0; layout.terms == 1 && i < layout.parts.size(); ++i) {
      const Part& other = layout.parts[i];
      if (other.rank == part.rank && other.box.contains(part.box)) return i;
    }
    return std::nullopt;
  }

  Scratch find_alias(const Part& part, bool may_be_destination) const {
    if (const auto found = find_holder(plan_.source, part)) return {Alias::kSource, *found};
    if (!may_be_destination) return {};
    if (const auto found = find_holder(destination_, part)) return {Alias::kDestination, *found};
    return {};
  }

  // Returns the memory of part |part| in layout |layout|, where 0 is the source.
  Scratch memory_of(size_t layout, uint32_t part) const {
    if (layout == 0) return {Alias::kSource, part};
    const Hop& hop = plan_.hops[layout - 1];
    return hop.scratch.empty() ? Scratch{Alias::kDestination, part} : hop.scratch[part];
  }

  Status add(Hop hop) {
    const size_t index = plan_.hops.size();
    Result<std::vector<Move>> moves =
        moves_between(plan_.from(index), hop.to, rank_, index == 0 ? turn_ : 0);
    if (!moves.ok()) return moves.status();
    plan_.hops.push_back(std::move(hop));
    for (const Move& move : moves.value()) {
      const Scratch from = memory_of(index, move.from);
      const Scratch to = memory_of(index + 1, move.to);
      // Nothing has to move if the target shares the memory of the source, which already holds the
      // elements, or if the elements already are in the memory that the target shares.
      const bool is_there = to.alias == Alias::kSource || (from == to && to.alias != Alias::kNone);
      if (!is_there) plan_.hops.back().moves.push_back(move);
    }
    return {};
  }

  const Layout& destination_;
  const std::optional<int> rank_;
  const uint64_t turn_;
  MovePlan plan_;
};

Status check_shapes(const Layout& source, const Layout& destination) {
  return moves_between(empty_like(source), empty_like(destination)).status();
}

// Returns the number of distinct ranges of the first dimension in the first copy.
uint64_t pieces_of_batch(const Layout& layout) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const Part& part : layout.parts) {
    const Box box = clip(layout, part);
    if (part.copy == 0 && part.term == 0 && !box.is_empty()) {
      ranges.emplace_back(box.begin[0], box.end[0]);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  return static_cast<uint64_t>(std::unique(ranges.begin(), ranges.end()) - ranges.begin());
}

// Returns the layout in which the first rank of each group holds the whole slab of the group. Fails
// with UNSUPPORTED as plan_gather_p2p_scatter() does.
Result<Layout> gathered(const Layout& layout, uint64_t outer) {
  const uint64_t batch = layout.shape[0];
  if (batch % outer != 0) {
    return unsupported(fmt::format("{} slabs do not divide a batch of {}", outer, batch));
  }
  const uint64_t slab = batch / outer;
  // The boxes and ranks of each group, keyed by the begin and end of the group's slab.
  std::map<std::pair<Numbers, Numbers>, std::vector<std::pair<Box, int>>> groups;
  for (const Part& part : layout.parts) {
    const Box box = clip(layout, part);
    if (part.copy != 0 || part.term != 0 || box.is_empty()) continue;
    const uint64_t number = box.begin[0] / slab;
    if ((box.end[0] - 1) / slab != number) {
      return unsupported(
          fmt::format("rank {}, box {}: it reaches over the border of a slab of {} "
                      "of the batch",
                      part.rank, to_text(box), slab));
    }
    Box whole = box;
    whole.begin[0] = number * slab;
    whole.end[0] = (number + 1) * slab;
    groups[{whole.begin, whole.end}].emplace_back(box, part.rank);
  }
  Layout result = empty_like(layout);
  for (auto& [range, members] : groups) {
    const auto before = [](const auto& one, const auto& other) {
      return one.first.begin[0] < other.first.begin[0];
    };
    std::sort(members.begin(), members.end(), before);
    Box whole = members.front().first;
    whole.begin = range.first;
    whole.end = range.second;
    uint64_t held = 0;
    for (const auto& [box, rank] : members) held += box.extent(0);
    if (held != slab) {
      return unsupported(
          fmt::format("the ranks that hold {} of the other dimensions do not hold "
                      "the whole slab",
                      to_text(whole)));
    }
    add_dense(result, members.front().second, whole);
  }
  return result;
}

// Cuts |box| into |pieces| along the first dimension with enough elements. If no dimension has
// enough, makes fewer pieces.
std::vector<Box> cut(const Box& box, uint64_t pieces) {
  size_t along = 0;
  while (along + 1 < box.dimensions && box.extent(along) < pieces) ++along;
  if (box.extent(along) < pieces) {
    for (size_t d = 0; d < box.dimensions; ++d) {
      if (box.extent(d) > box.extent(along)) along = d;
    }
    pieces = std::min(pieces, box.extent(along));
  }
  std::vector<Box> result;
  for (uint64_t i = 0; i < pieces; ++i) {
    Box piece = box;
    piece.begin[along] = box.begin[along] + box.extent(along) * i / pieces;
    piece.end[along] = box.begin[along] + box.extent(along) * (i + 1) / pieces;
    result.push_back(piece);
  }
  return result;
}

// Returns the layout in which each of the ranks that hold the same data in |destination| has one
// piece of it.
Layout scattered(const Layout& source, const Layout& destination) {
  std::map<std::pair<Numbers, Numbers>, std::vector<int>> groups;
  for (const bool first : {true, false}) {
    for (const Part& part : destination.parts) {
      const Box box = clip(destination, part);
      if (box.is_empty() || (part.copy == 0) != first) continue;
      // Copies that are cut differently from the first copy get no separate pieces.
      if (!first && !groups.contains({box.begin, box.end})) continue;
      groups[{box.begin, box.end}].push_back(part.rank);
    }
  }
  const uint64_t senders = count_copies(source);
  Layout result = empty_like(destination);
  for (const auto& [range, ranks] : groups) {
    Box box;
    box.dimensions = destination.shape.size();
    box.begin = range.first;
    box.end = range.second;
    // Each receiver gets the same number of pieces. Each sender also sends the same number, unless
    // that would take more than kMaxPieces.
    constexpr uint64_t kMaxPieces = 64;
    uint64_t pieces = std::lcm(senders, ranks.size());
    if (pieces > kMaxPieces) pieces = ranks.size();
    const std::vector<Box> boxes = cut(box, pieces);
    for (size_t i = 0; i < boxes.size(); ++i) {
      add_dense(result, ranks[i * ranks.size() / boxes.size()], boxes[i]);
    }
  }
  return result;
}

}  // namespace

std::string_view name_of(Strategy strategy) { return kNames[static_cast<size_t>(strategy)]; }

std::optional<Strategy> strategy_named(std::string_view name) {
  for (int32_t i = 0; i < kStrategies; ++i) {
    if (kNames[static_cast<size_t>(i)] == name) return static_cast<Strategy>(i);
  }
  return std::nullopt;
}

Result<MovePlan> plan_direct(const Layout& source, const Layout& destination,
                             std::optional<int> rank, uint64_t turn) {
  return MovePlanner(destination, rank, turn).make("direct", source, {});
}

Result<MovePlan> plan_leader(const Layout& source, const Layout& destination,
                             std::optional<int> rank, uint64_t turn) {
  HETCOMM_RETURN_IF_ERROR(check_shapes(source, destination));
  std::vector<Layout> between;
  for (const Layout* side : {&source, &destination}) {
    add_dense(between.emplace_back(empty_like(source)), side->parts.front().rank, side->whole());
  }
  return MovePlanner(destination, rank, turn).make("leader", source, std::move(between));
}

Result<MovePlan> plan_gather_p2p_scatter(const Layout& source, const Layout& destination,
                                         uint64_t outer, std::optional<int> rank, uint64_t turn) {
  HETCOMM_RETURN_IF_ERROR(check_shapes(source, destination));
  if (outer == 0) outer = std::gcd(pieces_of_batch(source), pieces_of_batch(destination));
  std::vector<Layout> between;
  for (const Layout* side : {&source, &destination}) {
    Result<Layout> at_leaders = gathered(*side, outer);
    if (!at_leaders.ok()) {
      return at_leaders.status().annotate(side == &source ? "source" : "destination");
    }
    between.push_back(std::move(at_leaders).value());
  }
  return MovePlanner(destination, rank, turn)
      .make("gather_p2p_scatter", source, std::move(between));
}

Result<MovePlan> plan_sendrecv_allgather(const Layout& source, const Layout& destination,
                                         std::optional<int> rank, uint64_t turn) {
  HETCOMM_RETURN_IF_ERROR(check_shapes(source, destination));
  return MovePlanner(destination, rank, turn)
      .make("sendrecv_allgather", source, {scattered(source, destination)});
}

}  // namespace hetcomm::reshard
