#include "reshard/proof.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/core.h>

namespace hetcomm::reshard {
namespace {

Status wrong(std::string text) { return Status(Code::kInternal, std::move(text)); }

// A Grid divides the tensor into cells that no box boundary crosses.
class Grid {
 public:
  explicit Grid(size_t dimensions) : cuts_(dimensions) {}

  void cut_at(const Box& box) {
    for (size_t d = 0; d < cuts_.size(); ++d) {
      cuts_[d].push_back(box.begin[d]);
      cuts_[d].push_back(box.end[d]);
    }
  }
  // Sorts the cuts, and removes duplicates. Returns the number of cells, or UINT64_MAX if the
  // number overflows.
  uint64_t finish() {
    uint64_t cells = 1;
    for (std::vector<uint64_t>& cuts : cuts_) {
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      const uint64_t count = cuts.empty() ? 0 : cuts.size() - 1;
      if (count != 0 && cells > UINT64_MAX / count) return UINT64_MAX;
      cells *= count;
    }
    return cells;
  }
  // Calls |use| with the number of each cell of |box| until |use| returns false. The boundaries of
  // |box| must be cuts of the grid.
  template <typename Use>
  bool for_each_cell(const Box& box, Use&& use) const {
    return visit(box, 0, 0, use);
  }
  // Returns cell |number| as a box.
  Box cell(uint64_t number) const {
    Box box;
    box.dimensions = cuts_.size();
    for (size_t d = cuts_.size(); d-- > 0;) {
      const uint64_t count = cuts_[d].size() - 1;
      box.begin[d] = cuts_[d][number % count];
      box.end[d] = cuts_[d][number % count + 1];
      number /= count;
    }
    return box;
  }

 private:
  template <typename Use>
  bool visit(const Box& box, size_t d, uint64_t number, Use& use) const {
    if (d == cuts_.size()) return use(number);
    const std::vector<uint64_t>& cuts = cuts_[d];
    auto at = std::lower_bound(cuts.begin(), cuts.end(), box.begin[d]);
    for (; at != cuts.end() && *at < box.end[d]; ++at) {
      const uint64_t next = number * (cuts.size() - 1) + static_cast<uint64_t>(at - cuts.begin());
      if (!visit(box, d + 1, next, use)) return false;
    }
    return true;
  }

  std::vector<std::vector<uint64_t>> cuts_;
};

// Identifies the memory of a part by three numbers. The first is 0 for the source, 1 for the
// destination, and 2 for scratch memory. The second is the layout for scratch memory, and 0
// otherwise. The third is the part.
using MemoryName = std::tuple<int, size_t, uint32_t>;

class Proof {
 public:
  explicit Proof(const MovePlan& plan) : plan_(plan), grid_(plan.source.shape.size()) {}

  Status run(uint64_t most_cells) {
    HETCOMM_RETURN_IF_ERROR(check_form());
    HETCOMM_RETURN_IF_ERROR(make_grid(most_cells));
    fill_source();
    for (size_t hop = 0; hop < plan_.hops.size(); ++hop) {
      for (const Move& move : plan_.hops[hop].moves) {
        HETCOMM_RETURN_IF_ERROR(follow(hop, move));
      }
    }
    return look_at_destination();
  }

 private:
  // The terms of the sum that a cell holds. A cell that was not written has no entry.
  using Terms = std::vector<bool>;
  struct Memory {
    std::map<uint64_t, Terms> cells;
  };

  Status check_form() const {
    if (plan_.hops.empty()) return wrong("the plan has no hop");
    for (size_t i = 0; i < plan_.hops.size(); ++i) {
      const Hop& hop = plan_.hops[i];
      if (hop.to.shape != plan_.source.shape) return wrong("a hop has another shape");
      const size_t expected = i + 1 == plan_.hops.size() ? 0 : hop.to.parts.size();
      if (hop.scratch.size() != expected) return wrong("a hop has parts without memory");
      for (size_t part = 0; part < hop.scratch.size(); ++part) {
        HETCOMM_RETURN_IF_ERROR(check_scratch(hop.to.parts[part], hop.scratch[part]));
      }
      for (const Move& move : hop.moves) {
        if (move.from >= plan_.from(i).parts.size() || move.to >= hop.to.parts.size() ||
            move.box.dimensions != plan_.source.shape.size() || move.box.is_empty()) {
          return wrong("a move of no box, or between parts that do not exist");
        }
      }
    }
    return {};
  }

  Status check_scratch(const Part& part, const Scratch& scratch) const {
    if (scratch.alias == Alias::kNone) return {};
    const Layout& of = scratch.alias == Alias::kSource ? plan_.source : plan_.destination();
    if (scratch.part >= of.parts.size()) return wrong("scratch memory that does not exist");
    const Part& other = of.parts[scratch.part];
    if (other.rank != part.rank || !other.box.contains(part.box)) {
      return wrong(fmt::format("rank {}, box {}: it is said to lie in memory that does not have it",
                               part.rank, to_text(part.box)));
    }
    return {};
  }

  Status make_grid(uint64_t most_cells) {
    grid_.cut_at(plan_.source.whole());
    const auto cut = [&](const Layout& layout) {
      for (const Part& part : layout.parts) {
        const Box box = inside(part.box);
        if (!box.is_empty()) grid_.cut_at(box);
      }
    };
    cut(plan_.source);
    for (const Hop& hop : plan_.hops) {
      cut(hop.to);
      for (const Move& move : hop.moves) {
        if (!plan_.source.whole().contains(move.box)) {
          return wrong(fmt::format("a move of {}, which is not in the tensor", to_text(move.box)));
        }
        grid_.cut_at(move.box);
      }
    }
    const uint64_t cells = grid_.finish();
    if (cells <= most_cells) return {};
    return Status(Code::kOutOfResources,
                  fmt::format("the boxes cut the tensor in {} pieces: at most {} are followed",
                              cells, most_cells));
  }

  // Returns the part of |box| inside the tensor.
  Box inside(Box box) const {
    for (size_t d = 0; d < box.dimensions; ++d) {
      box.begin[d] = std::min(box.begin[d], plan_.source.shape[d]);
      box.end[d] = std::min(box.end[d], plan_.source.shape[d]);
    }
    return box;
  }

  // Returns the memory of part |part| in layout |layout|. Layout 0 is the source, and layout
  // plan_.hops.size() is the destination.
  MemoryName name_of(size_t layout, uint32_t part) const {
    if (layout == 0) return {0, 0, part};
    if (layout == plan_.hops.size()) return {1, 0, part};
    const Scratch& scratch = plan_.hops[layout - 1].scratch[part];
    if (scratch.alias == Alias::kSource) return {0, 0, scratch.part};
    if (scratch.alias == Alias::kDestination) return {1, 0, scratch.part};
    return {2, layout, part};
  }

  void fill_source() {
    for (uint32_t i = 0; i < plan_.source.parts.size(); ++i) {
      const Part& part = plan_.source.parts[i];
      Memory& memory = memories_[{0, 0, i}];
      grid_.for_each_cell(inside(part.box), [&](uint64_t cell) {
        Terms terms(plan_.source.terms);
        terms[part.term] = true;
        memory.cells[cell] = std::move(terms);
        return true;
      });
    }
  }

  Status follow(size_t hop, const Move& move) {
    const Part& from = plan_.from(hop).parts[move.from];
    const Part& to = plan_.hops[hop].to.parts[move.to];
    const auto what = [&](const Box& box, std::string_view text) {
      return wrong(fmt::format("hop {}, rank {} to rank {}, {}: {}", hop, from.rank, to.rank,
                               to_text(box), text));
    };
    if (!from.box.contains(move.box)) return what(move.box, "the sender does not have it");
    if (!to.box.contains(move.box)) return what(move.box, "the receiver has no room for it");
    const MemoryName into = name_of(hop + 1, move.to);
    if (std::get<0>(into) == 0) return what(move.box, "it would be written to the source");
    Memory& source = memories_[name_of(hop, move.from)];
    Memory& target = memories_[into];
    Status failure;
    grid_.for_each_cell(move.box, [&](uint64_t cell) {
      const auto found = source.cells.find(cell);
      if (found == source.cells.end()) {
        failure = what(grid_.cell(cell), "it is read before it is written");
        return false;
      }
      const auto known = target.cells.find(cell);
      if (!move.adds && known != target.cells.end()) {
        failure = what(grid_.cell(cell), "it is written twice");
      } else if (move.adds && known == target.cells.end()) {
        failure = what(grid_.cell(cell), "it is added to what was never written");
      } else if (!move.adds) {
        const Terms copied = found->second;
        target.cells[cell] = copied;
      } else {
        for (size_t term = 0; term < found->second.size(); ++term) {
          if (!found->second[term]) continue;
          if (known->second[term]) failure = what(grid_.cell(cell), "a term is added twice");
          known->second[term] = true;
        }
      }
      return failure.ok();
    });
    return failure;
  }

  Status look_at_destination() {
    const Layout& destination = plan_.destination();
    for (uint32_t i = 0; i < destination.parts.size(); ++i) {
      const Part& part = destination.parts[i];
      const Memory& memory = memories_[{1, 0, i}];
      Terms expected(plan_.source.terms, destination.terms == 1);
      if (destination.terms != 1 && destination.terms != plan_.source.terms) {
        return wrong("the destination has another number of terms");
      }
      if (destination.terms != 1) expected[part.term] = true;
      Status failure;
      grid_.for_each_cell(inside(part.box), [&](uint64_t cell) {
        const auto found = memory.cells.find(cell);
        if (found != memory.cells.end() && found->second == expected) return true;
        failure = wrong(fmt::format(
            "rank {}, {}: {}", part.rank, to_text(grid_.cell(cell)),
            found == memory.cells.end() ? "it is never written" : "it lacks a term of the sum"));
        return false;
      });
      HETCOMM_RETURN_IF_ERROR(failure);
    }
    return {};
  }

  const MovePlan& plan_;
  Grid grid_;
  std::map<MemoryName, Memory> memories_;
};

}  // namespace

Status prove(const MovePlan& plan, uint64_t most_cells) { return Proof(plan).run(most_cells); }

Status prove_progress(const std::vector<MovePlan>& plans) {
  // The position of a rank's next move in its plan. Local moves are skipped.
  struct Next {
    size_t hop = 0;
    size_t move = 0;
  };
  using Step = std::tuple<size_t, int, int, Box, bool>;  // hop, from, to, box, adds
  std::vector<Next> next(plans.size());
  const auto step_of = [&](size_t rank) -> std::optional<Step> {
    const MovePlan& plan = plans[rank];
    for (Next& at = next[rank]; at.hop < plan.hops.size(); ++at.hop, at.move = 0) {
      for (const auto& moves = plan.hops[at.hop].moves; at.move < moves.size(); ++at.move) {
        const Move& move = moves[at.move];
        const int from = plan.from(at.hop).parts[move.from].rank;
        const int to = plan.hops[at.hop].to.parts[move.to].rank;
        if (from != to) return Step(at.hop, from, to, move.box, move.adds);
      }
    }
    return std::nullopt;
  };
  std::vector<size_t> looking;
  for (size_t rank = 0; rank < plans.size(); ++rank) looking.push_back(rank);
  while (!looking.empty()) {
    const size_t rank = looking.back();
    looking.pop_back();
    const std::optional<Step> step = step_of(rank);
    if (!step) continue;
    const int from = std::get<1>(*step);
    const int to = std::get<2>(*step);
    const int other = from == static_cast<int>(rank) ? to : from;
    if ((from != static_cast<int>(rank) && to != static_cast<int>(rank)) || other < 0 ||
        static_cast<size_t>(other) >= plans.size()) {
      return wrong(fmt::format("rank {} has a move from rank {} to rank {}", rank, from, to));
    }
    // If |other| has earlier moves, |rank| is examined again after |other| has made them.
    if (step_of(static_cast<size_t>(other)) != step) continue;
    ++next[rank].move;
    ++next[static_cast<size_t>(other)].move;
    looking.push_back(rank);
    looking.push_back(static_cast<size_t>(other));
  }
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const std::optional<Step> step = step_of(rank);
    if (!step) continue;
    return wrong(fmt::format("hop {}: the move of {} from rank {} to rank {} never happens",
                             std::get<0>(*step), to_text(std::get<3>(*step)), std::get<1>(*step),
                             std::get<2>(*step)));
  }
  return {};
}

}  // namespace hetcomm::reshard
