#include "reshard/list_auto.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "reshard/forecast.h"

namespace hetcomm::reshard {
namespace {

// The kinds of tensors that are considered one by one.
constexpr size_t kMaxKinds = 16;
constexpr size_t kNone = SIZE_MAX;
// The tensors of a kind that are planned, if the source has copies to choose from.
constexpr uint64_t kSamples = 4;

// Finds layouts that are alike. Many tensors of a model share their layouts, or have equal ones.
class LayoutNumbers {
 public:
  size_t number_of(const Layout& layout) {
    const auto [known, added] = known_.try_emplace(&layout, layouts_.size());
    if (!added) return known->second;
    std::vector<size_t>& alike = by_outline_[{layout.shape, layout.parts.size()}];
    for (const size_t number : alike) {
      if (*layouts_[number] == layout) return known->second = number;
    }
    alike.push_back(layouts_.size());
    layouts_.push_back(&layout);
    return known->second;
  }

 private:
  std::map<const Layout*, size_t> known_;
  std::map<std::pair<std::vector<uint64_t>, size_t>, std::vector<size_t>> by_outline_;
  std::vector<const Layout*> layouts_;
};

struct Kind {
  Tensor tensor;
  size_t first = 0;  // index of its first tensor
  uint64_t count = 0;
  uint64_t bytes = 0;  // total of its tensors; stops at 2^64 - 1 instead of overflowing
};

// A strategy for one kind: the load of all its tensors, or why it is refused.
struct Option {
  std::optional<JointForecast> load;
  std::string refused;
};

class ListPlanner {
 public:
  ListPlanner(const std::vector<Tensor>& tensors, const Wishes& wishes)
      : tensors_(tensors), wishes_(wishes), links_(*wishes.links) {}

  Result<ListChoice> choose() {
    HETCOMM_RETURN_IF_ERROR(find_kinds());
    for (const Strategy strategy : kCandidates) {
      // The tensors of one list use the copies of their sources by the same loads.
      SendLoads loads(&links_);
      uint64_t turn = 0;
      std::vector<Option>& options = options_.emplace_back();
      for (const Kind& kind : kinds_) options.push_back(option_of(kind, strategy, loads, turn));
    }
    HETCOMM_RETURN_IF_ERROR(find_fallbacks());
    std::vector<Considered> considered;
    size_t best = 0;
    uint64_t least_ns = UINT64_MAX;
    for (size_t i = 0; i < kCandidates.size(); ++i) {
      considered.push_back(considered_as(i));
      if (considered.back().ns == 0 || considered.back().ns >= least_ns) continue;
      best = i;
      least_ns = considered.back().ns;
    }
    std::vector<size_t> each(kinds_.size(), best);
    if (kinds_.size() > 1) {
      JointForecast mixed(links_);
      std::vector<size_t> mix = mix_of(best, mixed);
      if (ns_of(mixed) < least_ns) each = std::move(mix);
    }
    ListChoice choice;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const size_t kind = kind_of_[i];
      const bool is_known = kind < kinds_.size();
      const size_t candidate = is_known ? each[kind] : best;
      const bool is_refused = kind == kNone || (is_known && !options_[candidate][kind].load);
      choice.strategies.push_back(is_refused ? Strategy::kAuto : kCandidates[candidate]);
    }
    choice.considered = std::move(considered);
    return choice;
  }

 private:
  Status find_kinds() {
    LayoutNumbers layouts;
    std::map<std::tuple<size_t, size_t, uint64_t>, size_t> numbers;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i];
      // Every strategy refuses tensors whose shapes differ.
      if (is_empty(tensor) || tensor.source->shape != tensor.destination->shape) {
        kind_of_.push_back(kNone);
        continue;
      }
      const auto [found, added] =
          numbers.try_emplace({layouts.number_of(*tensor.source),
                               layouts.number_of(*tensor.destination), tensor.element_bytes},
                              kinds_.size());
      if (added) {
        const Status known = check_known(*tensor.source, *tensor.destination, links_);
        if (!known.ok()) return known.annotate(fmt::format("tensor {}", i));
        kinds_.push_back({tensor, i, 0, 0});
      }
      Kind& kind = kinds_[found->second];
      ++kind.count;
      const uint64_t bytes = bytes_of(tensor);
      kind.bytes = bytes > UINT64_MAX - kind.bytes ? UINT64_MAX : kind.bytes + bytes;
      all_bytes_ = bytes > UINT64_MAX - all_bytes_ ? UINT64_MAX : all_bytes_ + bytes;
      kind_of_.push_back(found->second);
    }
    // The kinds with the most bytes come first.
    std::vector<size_t> order(kinds_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [this](size_t one, size_t other) {
      return kinds_[one].bytes > kinds_[other].bytes;
    });
    std::vector<size_t> rank_of(kinds_.size());
    std::vector<Kind> sorted;
    for (size_t i = 0; i < order.size(); ++i) {
      rank_of[order[i]] = i;
      if (i < kMaxKinds) sorted.push_back(kinds_[order[i]]);
    }
    for (size_t& kind : kind_of_) {
      if (kind != kNone) kind = rank_of[kind];
    }
    kinds_ = std::move(sorted);
    return {};
  }

  // Returns how many tensors of |kind| have room in one message.
  uint64_t shared_by(const Kind& kind) const {
    const uint64_t bytes = std::max<uint64_t>(bytes_of(kind.tensor), 1);
    return std::max<uint64_t>(wishes_.bundle_bytes / bytes, 1);
  }

  Option option_of(const Kind& kind, Strategy strategy, SendLoads& loads, uint64_t& turn) const {
    const bool differ = has_copies(*kind.tensor.source);
    const uint64_t samples = differ ? std::min(kind.count, kSamples) : 1;
    Option option;
    JointForecast load(links_);
    for (uint64_t i = 0; i < samples; ++i) {
      Result<MovePlan> plan = plan_with(strategy, kind.tensor, wishes_, loads, std::nullopt, turn);
      if (differ) ++turn;
      if (!plan.ok()) {
        option.refused = plan.status().text();
        return option;
      }
      if (std::optional<std::string> why = find_second_copy(plan.value(), links_)) {
        option.refused = *why;
        return option;
      }
      // The samples stand for all tensors of the kind.
      const uint64_t count = kind.count / samples + (i < kind.count % samples ? 1 : 0);
      load.add(plan.value(), kind.tensor.element_bytes, count, shared_by(kind));
    }
    option.load = std::move(load);
    return option;
  }

  // Finds the loads of kinds that a strategy does not cover.
  Status find_fallbacks() {
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      fallbacks_.emplace_back(links_);
      const bool is_needed =
          std::any_of(options_.begin(), options_.end(),
                      [&](const std::vector<Option>& each) { return !each[kind].load; });
      if (!is_needed) continue;
      const Kind& own = kinds_[kind];
      Result<Choice> choice =
          plan_auto(*own.tensor.source, *own.tensor.destination, own.tensor.element_bytes, links_,
                    slices_for(bytes_of(own.tensor), 3, wishes_.bundle_bytes), std::nullopt,
                    wishes_.slice_bytes);
      if (!choice.ok()) return choice.status().annotate(fmt::format("tensor {}", own.first));
      fallbacks_.back().add(choice->plan, own.tensor.element_bytes, own.count, shared_by(own));
    }
    return {};
  }

  const JointForecast& load_of(size_t candidate, size_t kind) const {
    const Option& option = options_[candidate][kind];
    return option.load ? *option.load : fallbacks_[kind];
  }
  uint64_t ns_of(const JointForecast& list) const {
    return list.forecast(slices_for(all_bytes_, 3, wishes_.bundle_bytes)).ns;
  }

  // Returns the list in which all kinds use one strategy.
  Considered considered_as(size_t candidate) const {
    Considered entry;
    entry.strategy = name_of(kCandidates[candidate]);
    JointForecast list(links_);
    bool covers_any = false;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      const Option& option = options_[candidate][kind];
      covers_any = covers_any || option.load;
      if (!option.load && entry.refused.empty()) {
        entry.refused = fmt::format("tensor {}: {}", kinds_[kind].first, option.refused);
      }
      list.add(load_of(candidate, kind));
    }
    if (covers_any || candidate == 0) entry.ns = std::max<uint64_t>(ns_of(list), 1);
    return entry;
  }

  // Chooses for one kind after the other, given the choices so far. Ties go to |best|.
  std::vector<size_t> mix_of(size_t best, JointForecast& mixed) const {
    std::vector<size_t> mix;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      size_t chosen = best;
      uint64_t least_ns = UINT64_MAX;
      for (size_t i = 0; i <= kCandidates.size(); ++i) {
        const size_t candidate = i == 0 ? best : i - 1;
        if (!options_[candidate][kind].load && candidate != best) continue;
        JointForecast with = mixed;
        with.add(load_of(candidate, kind));
        const uint64_t ns = ns_of(with);
        if (ns >= least_ns) continue;
        chosen = candidate;
        least_ns = ns;
      }
      mixed.add(load_of(chosen, kind));
      mix.push_back(chosen);
    }
    return mix;
  }

  const std::vector<Tensor>& tensors_;
  const Wishes& wishes_;
  const Links& links_;
  uint64_t all_bytes_ = 0;
  std::vector<Kind> kinds_;      // those with the most bytes, in this order
  std::vector<size_t> kind_of_;  // by tensor; beyond |kinds_|: not considered; or kNone
  std::vector<std::vector<Option>> options_;  // by candidate and kind
  std::vector<JointForecast> fallbacks_;      // by kind: the load of plan_auto()
};

}  // namespace

Result<ListChoice> choose_for_list(const std::vector<Tensor>& tensors, const Wishes& wishes) {
  return ListPlanner(tensors, wishes).choose();
}

}  // namespace hetcomm::reshard
