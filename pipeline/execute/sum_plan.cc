#include "pipeline/execute/sum_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/schedule/faults.h"
#include "src/base/element_type.h"

namespace hetcomm::pipeline {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 20;

// A rank's copy of a piece, which belongs to one term of a holder.
struct Holding {
  uint32_t holder = 0;
  uint32_t term = 0;
  uint32_t copy = 0;
  uint32_t rank = 0;
  auto key() const { return std::tie(holder, term, copy, rank); }
  bool operator<(const Holding& other) const { return key() < other.key(); }
};

std::string name_of(const HeldGradient& gradient) {
  return fmt::format("gradient {} of item {}", gradient.index, gradient.item);
}

// SharedTensor records which parts of one tensor each rank holds.
class SharedTensor {
 public:
  explicit SharedTensor(const HeldGradient& first) : first_(first), cuts_(first.shape.size()) {}

  Status add(const HeldGradient& gradient, uint32_t rank) {
    if (gradient.shape != first_.shape || gradient.type != first_.type) {
      return invalid(fmt::format("{}: rank {} has another shape or type of it than other ranks",
                                 name_of(gradient), rank));
    }
    const uint32_t terms = terms_.emplace(gradient.holder, gradient.terms).first->second;
    if (terms != gradient.terms) {
      return invalid(
          fmt::format("{}: rank {} has it in {} terms, and another rank of its stage in {}",
                      name_of(gradient), rank, gradient.terms, terms));
    }
    for (const GradientPart& part : gradient.parts) {
      for (size_t d = 0; d < cuts_.size(); ++d) {
        cuts_[d].insert({part.box.begin[d], part.box.end[d]});
      }
      const Holding holding{gradient.holder, part.term, part.copy, rank};
      boxes_[bounds_of(part.box)].push_back(holding);
    }
    return {};
  }

  // Calls use(box, sets of ranks) for each piece that a rank holds, in index order. Stops at the
  // first failure.
  template <typename Use>
  Status for_each_piece(Use&& use) const {
    std::vector<std::vector<uint64_t>> cuts;
    size_t pieces = 1;
    for (const std::set<uint64_t>& each : cuts_) {
      cuts.emplace_back(each.begin(), each.end());
      if (cuts.back().empty()) return {};  // no rank holds any elements
      const size_t count = cuts.back().size() - 1;
      if (count == 0 || pieces > kMaxPieces / count) return too_many();
      pieces *= count;
    }
    std::vector<std::vector<Holding>> holdings(pieces);
    for (const auto& each : boxes_) {
      for_each_in(cuts, each.first, [&](size_t piece) {
        holdings[piece].insert(holdings[piece].end(), each.second.begin(), each.second.end());
      });
    }
    for (size_t piece = 0; piece < pieces; ++piece) {
      if (holdings[piece].empty()) continue;
      const reshard::Box box = box_of(cuts, piece);
      auto sets = sets_of(holdings[piece]);
      if (!sets.ok()) return sets.status();
      HETCOMM_RETURN_IF_ERROR(use(box, sets.value()));
    }
    return {};
  }

 private:
  using Bounds = std::vector<std::pair<uint64_t, uint64_t>>;  // indexed by dimension

  Bounds bounds_of(const reshard::Box& box) const {
    Bounds bounds;
    for (size_t d = 0; d < cuts_.size(); ++d) bounds.emplace_back(box.begin[d], box.end[d]);
    return bounds;
  }

  Status too_many() const {
    return {Code::kOutOfRange,
            fmt::format("{} is cut into more than {} pieces", name_of(first_), kMaxPieces)};
  }

  // Calls use(piece) for each piece inside |bounds|.
  template <typename Use>
  static void for_each_in(const std::vector<std::vector<uint64_t>>& cuts, const Bounds& bounds,
                          Use&& use) {
    std::vector<size_t> first;
    std::vector<size_t> end;
    for (size_t d = 0; d < cuts.size(); ++d) {
      const auto at = [&](uint64_t cut) {
        return static_cast<size_t>(std::lower_bound(cuts[d].begin(), cuts[d].end(), cut) -
                                   cuts[d].begin());
      };
      first.push_back(at(bounds[d].first));
      end.push_back(at(bounds[d].second));
      if (first.back() == end.back()) return;
    }
    std::vector<size_t> at = first;
    while (true) {
      size_t piece = 0;
      for (size_t d = 0; d < at.size(); ++d) piece = piece * (cuts[d].size() - 1) + at[d];
      use(piece);
      size_t d = at.size();
      for (; d > 0; --d) {
        if (++at[d - 1] < end[d - 1]) break;
        at[d - 1] = first[d - 1];
      }
      if (d == 0) return;
    }
  }

  reshard::Box box_of(const std::vector<std::vector<uint64_t>>& cuts, size_t piece) const {
    reshard::Box box = reshard::whole_of(first_.shape);
    for (size_t d = cuts.size(); d > 0; --d) {
      const size_t count = cuts[d - 1].size() - 1;
      box.begin[d - 1] = cuts[d - 1][piece % count];
      box.end[d - 1] = cuts[d - 1][piece % count + 1];
      piece /= count;
    }
    return box;
  }

  // Returns the sets of ranks that add a piece. Each has one copy of each term of each holder.
  Result<std::vector<std::vector<uint32_t>>> sets_of(std::vector<Holding> holdings) const {
    std::sort(holdings.begin(), holdings.end());
    std::vector<std::vector<uint32_t>> copies;  // ranks, for each term of each holder
    for (size_t i = 0; i < holdings.size(); ++i) {
      const Holding* const before = i == 0 ? nullptr : &holdings[i - 1];
      const bool is_new = before == nullptr || holdings[i].holder != before->holder ||
                          holdings[i].term != before->term;
      if (is_new) copies.emplace_back();
      if (!is_new && holdings[i].copy == before->copy) {
        return invalid(fmt::format("{}: ranks {} and {} both hold copy {} of some of its elements",
                                   name_of(first_), before->rank, holdings[i].rank,
                                   holdings[i].copy));
      }
      copies.back().push_back(holdings[i].rank);
    }
    size_t terms = 0;
    for (const auto& [holder, count] : terms_) terms += count;
    if (copies.size() != terms) {
      return invalid(fmt::format("{}: some of its elements are there in {} terms, and others in {}",
                                 name_of(first_), copies.size(), terms));
    }
    size_t count = 0;
    for (const auto& each : copies) count = std::max(count, each.size());
    std::vector<std::vector<uint32_t>> sets(count);
    for (size_t c = 0; c < count; ++c) {
      std::set<uint32_t> seen;
      for (const auto& each : copies) {
        const uint32_t rank = each[c % each.size()];
        sets[c].push_back(rank);
        if (seen.insert(rank).second) continue;
        return invalid(
            fmt::format("{}: rank {} holds several terms of it; it has to add them itself",
                        name_of(first_), rank));
      }
    }
    return sets;
  }

  const HeldGradient& first_;
  std::vector<std::set<uint64_t>> cuts_;  // indexed by dimension
  std::map<uint32_t, uint32_t> terms_;    // keyed by holder: number of terms
  std::map<Bounds, std::vector<Holding>> boxes_;
};

// Fails unless copy 0 of each term has as many elements as the tensor.
Status check_whole(const std::vector<std::vector<HeldGradient>>& held) {
  using Term = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;  // item, index, holder, term
  std::map<Term, uint64_t> elements;                                // elements of copy 0
  std::map<Term, const HeldGradient*> named;
  for (const auto& of_rank : held) {
    for (const HeldGradient& gradient : of_rank) {
      for (const GradientPart& part : gradient.parts) {
        const Term term{gradient.item, gradient.index, gradient.holder, part.term};
        named.emplace(term, &gradient);
        if (part.copy == 0) elements[term] += part.box.elements();
      }
    }
  }
  for (const auto& [term, gradient] : named) {
    uint64_t whole = 1;
    for (const uint64_t length : gradient->shape) whole *= length;
    if (elements[term] == whole) continue;
    return invalid(fmt::format(
        "{}: the ranks of a stage hold {} of its {} elements; each has to give its part",
        name_of(*gradient), elements[term], whole));
  }
  return {};
}

// Writes the location of |box| in this rank's memory to |piece|. Returns false if the rank does not
// hold |box|.
bool find_place(const HeldGradient& gradient, const reshard::Box& box, SumPiece& piece) {
  const size_t dimensions = gradient.shape.size();
  for (const GradientPart& part : gradient.parts) {
    bool is_inside = true;
    uint64_t offset = part.offset;
    for (size_t d = 0; d < dimensions; ++d) {
      is_inside &= part.box.begin[d] <= box.begin[d] && box.end[d] <= part.box.end[d];
      offset += (box.begin[d] - part.box.begin[d]) * part.strides[d];
    }
    if (!is_inside) continue;
    piece.offset = offset;
    piece.strides = part.strides;
    return true;
  }
  return false;
}

}  // namespace

Result<SumPlan> plan_sums(const std::vector<std::vector<HeldGradient>>& held, uint32_t rank) {
  using Tensor = std::pair<uint32_t, uint32_t>;  // item, index
  std::map<Tensor, SharedTensor> tensors;
  std::map<Tensor, size_t> own;
  for (uint32_t each = 0; each < held.size(); ++each) {
    for (size_t i = 0; i < held[each].size(); ++i) {
      const HeldGradient& gradient = held[each][i];
      const Tensor tensor(gradient.item, gradient.index);
      HETCOMM_RETURN_IF_ERROR(
          tensors.try_emplace(tensor, gradient).first->second.add(gradient, each));
      if (each == rank) own.emplace(tensor, i);
    }
  }
  HETCOMM_RETURN_IF_ERROR(check_whole(held));
  std::set<std::vector<uint32_t>> all_sets;
  // Orders the buckets by item, the last one first, then by set, type and number of a large piece.
  // This order is the same on all ranks. Small pieces have the number 0.
  using Place = std::tuple<int64_t, std::vector<uint32_t>, int32_t, uint64_t>;
  std::map<Place, SumBucket> buckets;
  std::vector<SumPiece> counted;
  for (const auto& [tensor, shared] : tensors) {
    const auto mine = own.find(tensor);
    uint64_t number = uint64_t{tensor.second} << 32;
    const auto use = [&](const reshard::Box& box,
                         const std::vector<std::vector<uint32_t>>& sets) -> Status {
      ++number;
      const auto has_rank = [&](const std::vector<uint32_t>& ranks) {
        return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
      };
      const bool is_in_one_set = std::count_if(sets.begin(), sets.end(), has_rank) == 1;
      if (sets.front().front() == rank) {
        SumPiece piece{.gradient = mine->second, .box = box};
        static_cast<void>(find_place(held[rank][mine->second], box, piece));
        counted.push_back(piece);
      }
      bool is_first = true;
      for (const std::vector<uint32_t>& ranks : sets) {
        const bool is_in = has_rank(ranks);
        const bool keeps = std::exchange(is_first, is_first && !is_in);
        if (ranks.size() == 1) continue;  // the sum is already complete
        all_sets.insert(ranks);
        if (!is_in) continue;
        const HeldGradient& gradient = held[rank][mine->second];
        SumPiece piece{.gradient = mine->second,
                       .box = box,
                       .keeps_result = keeps,
                       .is_in_one_set = is_in_one_set};
        // Succeeds, because a rank is in the set only if it holds the piece.
        static_cast<void>(find_place(gradient, box, piece));
        const bool is_large =
            box.elements() * size_of(static_cast<ElementType>(gradient.type)) >= kLargePieceBytes;
        SumBucket& bucket = buckets[{-static_cast<int64_t>(gradient.item), ranks, gradient.type,
                                     is_large ? number : 0}];
        bucket.item = gradient.item;
        bucket.type = gradient.type;
        bucket.elements += box.elements();
        bucket.pieces.push_back(piece);
      }
      return {};
    };
    HETCOMM_RETURN_IF_ERROR(shared.for_each_piece(use));
  }
  SumPlan plan;
  plan.counted = std::move(counted);
  plan.sets.assign(all_sets.begin(), all_sets.end());
  for (auto& [place, bucket] : buckets) {
    const auto& ranks = std::get<1>(place);
    bucket.set = static_cast<size_t>(std::lower_bound(plan.sets.begin(), plan.sets.end(), ranks) -
                                     plan.sets.begin());
    plan.buckets.push_back(std::move(bucket));
  }
  return plan;
}

}  // namespace hetcomm::pipeline
