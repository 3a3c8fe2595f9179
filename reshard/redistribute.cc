#include "reshard/redistribute.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/faults.h"

namespace hetcomm::reshard {
namespace {

// Returns the regions of |boxes| that are outside |taken|.
std::vector<Box> without(const std::vector<Box>& boxes, const Box& taken) {
  std::vector<Box> left;
  for (Box box : boxes) {
    if (!box.overlaps(taken)) {
      left.push_back(box);
      continue;
    }
    // Cuts off the regions before and after |taken|, dimension by dimension.
    for (size_t d = 0; d < box.dimensions; ++d) {
      if (box.begin[d] < taken.begin[d]) {
        left.push_back(box);
        left.back().end[d] = taken.begin[d];
        box.begin[d] = taken.begin[d];
      }
      if (box.end[d] > taken.end[d]) {
        left.push_back(box);
        left.back().begin[d] = taken.end[d];
        box.end[d] = taken.end[d];
      }
    }
  }
  return left;
}

class Redistribution {
 public:
  Redistribution(const Layout& from, const Layout& to, std::optional<int> rank, uint64_t turn)
      : from_(from), to_(to), rank_(rank), turn_(turn), terms_(from.terms) {
    for (uint32_t i = 0; i < from.parts.size(); ++i) {
      const Part& part = from.parts[i];
      const Box box = clip(from, part);
      clipped_.push_back(box);
      if (box.is_empty()) continue;
      Term& term = terms_[part.term];
      term.of_rank[part.rank].push_back(i);
      term.copies[part.copy].push_back(i);
      if (rank == part.rank) own_.push_back(i);
    }
    const uint64_t whole = from.whole().elements();
    for (Term& term : terms_) {
      for (const auto& [copy, parts] : term.copies) {
        uint64_t elements = 0;
        for (const uint32_t part : parts) elements += clipped_[part].elements();
        if (elements == whole) term.whole.push_back(&parts);
      }
    }
  }

  std::vector<Move> moves() {
    std::map<std::pair<uint32_t, uint32_t>, size_t> number_of;  // keyed by term and copy
    for (uint32_t i = 0; i < to_.parts.size(); ++i) {
      const Part& part = to_.parts[i];
      const size_t number = number_of[{part.term, part.copy}]++;
      const Box box = clip(to_, part);
      if (box.is_empty() || !concerns(part, box)) continue;
      if (to_.terms == from_.terms) {
        fill(i, box, part.term, number, false);
      } else {
        for (uint32_t term = 0; term < from_.terms; ++term) fill(i, box, term, number, term > 0);
      }
    }
    return std::move(moves_);
  }

 private:
  struct Term {
    std::map<int, std::vector<uint32_t>> of_rank;
    std::map<uint32_t, std::vector<uint32_t>> copies;
    std::vector<const std::vector<uint32_t>*> whole;  // copies that hold all elements
  };

  bool concerns(const Part& part, const Box& box) const {
    if (!rank_ || *rank_ == part.rank) return true;
    return std::any_of(own_.begin(), own_.end(),
                       [&](uint32_t own) { return clipped_[own].overlaps(box); });
  }

  // Adds the moves that fill |box| of part |to| with |term|.
  void fill(uint32_t to, const Box& box, uint32_t term, size_t number, bool adds) {
    const Part& part = to_.parts[to];
    const Term& of = terms_[term];
    std::vector<Box> rest = {box};
    if (const auto held = of.of_rank.find(part.rank); held != of.of_rank.end()) {
      for (const uint32_t from : held->second) {
        const Box here = intersection(clipped_[from], box);
        if (here.is_empty()) continue;
        add({from, to, here, adds});
        rest = without(rest, here);
      }
    }
    const auto& copy = *of.whole[(part.copy + number + turn_) % of.whole.size()];
    for (const Box& wanted : rest) {
      for (const uint32_t from : copy) {
        const Box there = intersection(clipped_[from], wanted);
        if (!there.is_empty()) add({from, to, there, adds});
      }
    }
  }

  void add(const Move& move) {
    if (rank_ && from_.parts[move.from].rank != *rank_ && to_.parts[move.to].rank != *rank_) return;
    moves_.push_back(move);
  }

  const Layout& from_;
  const Layout& to_;
  const std::optional<int> rank_;
  const uint64_t turn_;
  std::vector<Term> terms_;
  std::vector<Box> clipped_;   // indexed by part of |from_|
  std::vector<uint32_t> own_;  // parts of |from_| that |rank_| holds
  std::vector<Move> moves_;
};

}  // namespace

Result<std::vector<Move>> moves_between(const Layout& from, const Layout& to,
                                        std::optional<int> rank, uint64_t turn) {
  if (from.shape != to.shape) {
    return invalid(fmt::format("the source has shape [{}], the destination [{}]",
                               fmt::join(from.shape, ", "), fmt::join(to.shape, ", ")));
  }
  if (to.terms != 1 && to.terms != from.terms) {
    return Status(
        Code::kUnsupported,
        fmt::format("the source is a sum of {} terms, the destination of {}: only 1 term, "
                    "or as many, can be made of them",
                    from.terms, to.terms));
  }
  if (to.terms > 1 && to.divisor != from.divisor) {
    return Status(
        Code::kUnsupported,
        fmt::format("the sum of the source is divided by {}, that of the destination by {}",
                    from.divisor, to.divisor));
  }
  return Redistribution(from, to, rank, turn).moves();
}

}  // namespace hetcomm::reshard
