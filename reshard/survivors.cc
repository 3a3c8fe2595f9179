#include "reshard/survivors.h"

#include <set>
#include <utility>

#include <fmt/core.h>

#include "reshard/faults.h"

namespace hetcomm::reshard {
namespace {

// A box of the first copy whose rank is lost.
struct LostBox {
  Box box;
  int rank;  // the old rank number
};

// Returns |whole| without |hole|, which is inside it, as disjoint boxes.
std::vector<Box> without(const Box& whole, const Box& hole) {
  std::vector<Box> rest;
  Box middle = whole;
  for (size_t d = 0; d < whole.dimensions; ++d) {
    if (middle.begin[d] < hole.begin[d]) {
      rest.push_back(middle);
      rest.back().end[d] = hole.begin[d];
      middle.begin[d] = hole.begin[d];
    }
    if (hole.end[d] < middle.end[d]) {
      rest.push_back(middle);
      rest.back().begin[d] = hole.end[d];
      middle.end[d] = hole.end[d];
    }
  }
  return rest;
}

// Returns the elements of |part| inside |box|, at their addresses in memory.
Part narrowed(const Part& part, const Box& box) {
  Part result = part;
  result.box = box;
  for (size_t d = 0; d < box.dimensions; ++d) {
    result.offset += (box.begin[d] - part.box.begin[d]) * part.strides[d];
  }
  return result;
}

// Checks that every rank of |layout| has an entry in |rank_now|, that no number is below -1, and
// that no two ranks have the same number.
Status check_numbers(const Layout& layout, const std::vector<int>& rank_now) {
  std::set<int> taken;
  for (size_t rank = 0; rank < rank_now.size(); ++rank) {
    if (rank_now[rank] < -1) {
      return invalid(fmt::format("rank {} cannot be rank {}", rank, rank_now[rank]));
    }
    if (rank_now[rank] >= 0 && !taken.insert(rank_now[rank]).second) {
      return invalid(fmt::format("two ranks are to be rank {}", rank_now[rank]));
    }
  }
  for (const Part& part : layout.parts) {
    if (static_cast<size_t>(part.rank) < rank_now.size()) continue;
    return invalid(fmt::format("rank {} holds {}, and has no number among {}", part.rank,
                               to_text(part.box), rank_now.size()));
  }
  return {};
}

// A Term holds the parts of one term that belong to surviving ranks.
class Term {
 public:
  void add(const Layout& layout, const Part& part, int rank_now) {
    if (rank_now >= 0) {
      parts_.push_back(part);
      parts_.back().rank = rank_now;
      return;
    }
    const Box box = clip(layout, part);
    if (part.copy == 0 && !box.is_empty()) lost_.push_back({box, part.rank});
  }
  // Replaces data that the first copy has lost with data of other copies. Returns the boxes that no
  // copy holds.
  std::vector<LostBox> repair() {
    std::vector<LostBox> orphans;
    while (!lost_.empty()) {
      const LostBox lost = lost_.back();
      lost_.pop_back();
      if (!take_over(lost)) orphans.push_back(lost);
    }
    return orphans;
  }
  std::vector<Part>& parts() { return parts_; }

 private:
  // Moves elements of another copy to the first one, where they replace a part of |lost|. Adds the
  // rest of |lost| to |lost_|. Returns false if no other copy holds any of it.
  bool take_over(const LostBox& lost) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part part = parts_[i];
      if (part.copy == 0 || !part.box.overlaps(lost.box)) continue;
      const Box common = intersection(part.box, lost.box);
      parts_[i] = narrowed(part, common);
      parts_[i].copy = 0;
      for (const Box& rest : without(part.box, common)) parts_.push_back(narrowed(part, rest));
      for (const Box& rest : without(lost.box, common)) lost_.push_back({rest, lost.rank});
      return true;
    }
    return false;
  }

  std::vector<Part> parts_;
  std::vector<LostBox> lost_;
};

bool comes_before(const Box& one, const Box& other) {
  return std::pair(one.begin, one.end) < std::pair(other.begin, other.end);
}

}  // namespace

Result<Layout> layout_of_survivors(const Layout& layout, const std::vector<int>& rank_now) {
  HETCOMM_RETURN_IF_ERROR(check_numbers(layout, rank_now));
  std::vector<Term> terms(layout.terms);
  for (const Part& part : layout.parts) {
    terms[part.term].add(layout, part, rank_now[static_cast<size_t>(part.rank)]);
  }
  Layout result = layout;
  result.parts.clear();
  for (uint32_t term = 0; term < layout.terms; ++term) {
    const std::vector<LostBox> orphans = terms[term].repair();
    if (!orphans.empty()) {
      const LostBox* first = &orphans.front();
      for (const LostBox& each : orphans) {
        if (comes_before(each.box, first->box)) first = &each;
      }
      const std::string of = layout.terms > 1 ? fmt::format("term {} of the sum: ", term) : "";
      return Status(Code::kPeerLost, fmt::format("{}rank {} was lost with {}, which no other holds",
                                                 of, first->rank, to_text(first->box)));
    }
    for (Part& part : terms[term].parts()) result.parts.push_back(std::move(part));
  }
  HETCOMM_RETURN_IF_ERROR(check(result));
  return result;
}

}  // namespace hetcomm::reshard
