#include "reshard/list_auto.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "reshard/capped.h"
#include "reshard/copy_turns.h"
#include "reshard/forecast.h"

namespace hetcomm::reshard {
namespace {

// The maximum number of kinds that are compared.
constexpr size_t kMaxKinds = 16;
// The maximum number of tensors of a kind that are planned, if the source has several copies.
constexpr uint64_t kMaxSamples = 16;
constexpr size_t kNone = SIZE_MAX;

// Assigns a number to each distinct form of a layout. A form says which ranks hold which fractions
// of a tensor. It leaves out positions in memory and sizes.
class Forms {
 public:
  size_t number_of(const Layout& layout) {
    const auto [known, added] = known_.try_emplace(&layout, 0);
    if (added) known->second = numbers_.try_emplace(form_of(layout), numbers_.size()).first->second;
    return known->second;
  }

 private:
  using Form = std::vector<uint64_t>;
  static constexpr uint64_t kFractions = 256;

  static Form form_of(const Layout& layout) {
    Form form = {layout.shape.size(), layout.terms};
    for (const Part& part : layout.parts) {
      const Box box = clip(layout, part);
      form.push_back(static_cast<uint64_t>(part.rank));
      form.push_back(uint64_t{part.copy} << 32 | part.term);
      for (size_t d = 0; d < box.dimensions; ++d) {
        const uint64_t extent = std::max<uint64_t>(layout.shape[d], 1);
        form.push_back((box.begin[d] * kFractions + extent / 2) / extent);
        form.push_back((box.end[d] * kFractions + extent / 2) / extent);
      }
    }
    return form;
  }

  std::map<const Layout*, size_t> known_;
  std::map<Form, size_t> numbers_;
};

struct Kind {
  Tensor tensor;       // the largest tensor of the kind
  size_t first = 0;    // index of |tensor|
  uint64_t count = 0;  // number of tensors of this size that have as many bytes as the whole kind
  uint64_t bytes = 0;  // total of all tensors of the kind
};

// The result of one strategy for one kind: the load of all its tensors, or the reason for a
// refusal.
struct Option {
  std::optional<JointForecast> load;
  std::string refused;
};

class ListChooser {
 public:
  ListChooser(const std::vector<Tensor>& tensors, const Wishes& wishes)
      : tensors_(tensors), wishes_(wishes), links_(*wishes.links) {}

  Result<ListChoice> choose() {
    HETCOMM_RETURN_IF_ERROR(find_kinds());
    for (const Strategy strategy : kCandidates) {
      // The loads and turns of one strategy accumulate over all kinds of the list.
      SendLoads loads(&links_);
      CopyTurns turns;
      std::vector<Option>& options = options_.emplace_back();
      for (size_t i = 0; i < compared(); ++i) {
        options.push_back(option_of(kinds_[i], strategy, loads, turns));
      }
    }
    HETCOMM_RETURN_IF_ERROR(find_fallbacks());
    ListChoice choice;
    size_t best = 0;
    for (size_t i = 0; i < kCandidates.size(); ++i) {
      choice.considered.push_back(considered_as(i));
      if (choice.considered[i].ns < choice.considered[best].ns) best = i;
    }
    std::vector<size_t> chosen;
    const uint64_t mixed_ns = mix(best, chosen);
    const bool is_mixed = mixed_ns < choice.considered[best].ns;
    std::vector<std::vector<size_t>> lists;
    if (is_mixed) lists.push_back(chosen);
    lists.emplace_back(compared(), best);
    for (size_t i = 0; i < kCandidates.size(); ++i) {
      if (i != best) lists.emplace_back(compared(), i);
    }
    if (!is_mixed) lists.push_back(chosen);
    HETCOMM_RETURN_IF_ERROR(decide_rest(kCandidates[best]));
    for (const std::vector<size_t>& list : lists) choice.lists.push_back(strategies_of(list));
    return choice;
  }

 private:
  size_t compared() const { return std::min(kinds_.size(), kMaxKinds); }

  Status find_kinds() {
    Forms forms;
    std::map<std::tuple<size_t, size_t, uint64_t>, size_t> numbers;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i];
      if (is_empty(tensor) || tensor.source->shape != tensor.destination->shape) {
        kind_of_.push_back(kNone);
        continue;
      }
      const auto [found, added] =
          numbers.try_emplace({forms.number_of(*tensor.source),
                               forms.number_of(*tensor.destination), tensor.element_bytes},
                              kinds_.size());
      if (added) {
        const Status known = check_known(*tensor.source, *tensor.destination, links_);
        if (!known.ok()) return known.annotate(fmt::format("tensor {}", i));
        kinds_.push_back({tensor, i, 0, 0});
      }
      Kind& kind = kinds_[found->second];
      const uint64_t bytes = bytes_of(tensor);
      if (bytes > bytes_of(kind.tensor)) {
        kind.tensor = tensor;
        kind.first = i;
      }
      kind.bytes = capped_sum(kind.bytes, bytes);
      all_bytes_ = capped_sum(all_bytes_, bytes);
      kind_of_.push_back(found->second);
    }
    sort_kinds();
    return {};
  }

  // Sorts the kinds by their bytes, in descending order.
  void sort_kinds() {
    std::vector<size_t> order(kinds_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [this](size_t one, size_t other) {
      return kinds_[one].bytes > kinds_[other].bytes;
    });
    std::vector<size_t> number_of(kinds_.size());
    std::vector<Kind> sorted;
    for (size_t i = 0; i < order.size(); ++i) {
      number_of[order[i]] = i;
      sorted.push_back(kinds_[order[i]]);
    }
    for (size_t& kind : kind_of_) {
      if (kind != kNone) kind = number_of[kind];
    }
    kinds_ = std::move(sorted);
    for (Kind& kind : kinds_) {
      const uint64_t each = bytes_of(kind.tensor);
      kind.count = std::max<uint64_t>((kind.bytes + each / 2) / each, 1);
    }
  }

  Option option_of(const Kind& kind, Strategy strategy, SendLoads& loads, CopyTurns& turns) const {
    const uint64_t copies = count_copies(*kind.tensor.source);
    const uint64_t samples = copies > 1 ? std::min({kind.count, copies, kMaxSamples}) : 1;
    Option option;
    JointForecast load(links_);
    for (uint64_t i = 0; i < samples; ++i) {
      // The number of tensors that this sample represents.
      const uint64_t count = kind.count / samples + (i < kind.count % samples ? 1 : 0);
      const uint64_t turn = turns.take(*kind.tensor.source, *kind.tensor.destination,
                                       kind.tensor.element_bytes, count);
      const SendLoads before = loads;
      Result<MovePlan> plan = plan_with(strategy, kind.tensor, wishes_, loads, std::nullopt, turn);
      if (!plan.ok()) {
        option.refused = plan.status().text();
        return option;
      }
      if (std::optional<std::string> why = find_second_copy(plan.value(), links_)) {
        option.refused = *why;
        return option;
      }
      if (count > 1) loads.repeat_since(before, count);
      load.add(plan.value(), kind.tensor.element_bytes, count,
               tensors_a_message(kind.tensor, wishes_));
    }
    option.load = std::move(load);
    return option;
  }

  Result<Choice> choose_alone(const Kind& kind) const {
    Result<Choice> choice = plan_auto(kind.tensor, wishes_, std::nullopt);
    if (!choice.ok()) return choice.status().annotate(fmt::format("tensor {}", kind.first));
    return choice;
  }

  // Finds the strategies that replace refused ones, for the compared kinds.
  Status find_fallbacks() {
    for (size_t kind = 0; kind < compared(); ++kind) {
      Fallback& fallback =
          fallbacks_.emplace_back(Fallback{Strategy::kAuto, JointForecast(links_)});
      const bool is_needed =
          std::any_of(options_.begin(), options_.end(),
                      [&](const std::vector<Option>& each) { return !each[kind].load; });
      if (!is_needed) continue;
      Result<Choice> choice = choose_alone(kinds_[kind]);
      if (!choice.ok()) return choice.status();
      fallback.strategy = strategy_named(choice->plan.strategy).value_or(Strategy::kDirect);
      fallback.load.add(choice->plan, kinds_[kind].tensor.element_bytes, kinds_[kind].count,
                        tensors_a_message(kinds_[kind].tensor, wishes_));
    }
    return {};
  }

  const JointForecast& load_of(size_t candidate, size_t kind) const {
    const Option& option = options_[candidate][kind];
    return option.load ? *option.load : fallbacks_[kind].load;
  }
  Strategy strategy_of(size_t candidate, size_t kind) const {
    return options_[candidate][kind].load ? kCandidates[candidate] : fallbacks_[kind].strategy;
  }
  uint64_t ns_of(const JointForecast& list) const {
    return list.forecast(slices_for(all_bytes_, 3, wishes_.bundle_bytes)).ns;
  }

  // Forecasts the compared kinds with strategy |candidate|, or with their fallbacks where it is
  // refused.
  Considered considered_as(size_t candidate) const {
    Considered entry;
    entry.strategy = name_of(kCandidates[candidate]);
    JointForecast list(links_);
    for (size_t kind = 0; kind < compared(); ++kind) {
      const Option& option = options_[candidate][kind];
      if (!option.load && entry.refused.empty()) {
        entry.refused = fmt::format("tensor {}: {}", kinds_[kind].first, option.refused);
      }
      list.add(load_of(candidate, kind));
    }
    entry.ns = std::max<uint64_t>(ns_of(list), 1);
    return entry;
  }

  // Chooses a strategy for each compared kind in turn, given the choices so far. Ties go to |best|.
  // Returns the forecast of the list.
  uint64_t mix(size_t best, std::vector<size_t>& chosen) const {
    JointForecast list(links_);
    for (size_t kind = 0; kind < compared(); ++kind) {
      size_t own = best;
      uint64_t least_ns = UINT64_MAX;
      for (size_t i = 0; i <= kCandidates.size(); ++i) {
        const size_t candidate = i == 0 ? best : i - 1;
        if (!options_[candidate][kind].load && candidate != best) continue;
        JointForecast with = list;
        with.add(load_of(candidate, kind));
        const uint64_t ns = ns_of(with);
        if (ns >= least_ns) continue;
        own = candidate;
        least_ns = ns;
      }
      list.add(load_of(own, kind));
      chosen.push_back(own);
    }
    return ns_of(list);
  }

  // Chooses strategies for the kinds that are not compared: |best|, or if it is refused, the choice
  // of plan_auto().
  Status decide_rest(Strategy best) {
    for (size_t kind = compared(); kind < kinds_.size(); ++kind) {
      SendLoads loads(&links_);
      CopyTurns turns;
      if (option_of(kinds_[kind], best, loads, turns).load) {
        rest_.push_back(best);
        continue;
      }
      Result<Choice> choice = choose_alone(kinds_[kind]);
      if (!choice.ok()) return choice.status();
      rest_.push_back(strategy_named(choice->plan.strategy).value_or(Strategy::kDirect));
    }
    return {};
  }

  // Returns the strategies of all tensors. |list| has the chosen candidate of each compared kind.
  std::vector<Strategy> strategies_of(const std::vector<size_t>& list) const {
    std::vector<Strategy> strategies;
    strategies.reserve(kind_of_.size());
    for (const size_t kind : kind_of_) {
      strategies.push_back(kind == kNone        ? Strategy::kAuto
                           : kind < list.size() ? strategy_of(list[kind], kind)
                                                : rest_[kind - list.size()]);
    }
    return strategies;
  }

  struct Fallback {
    Strategy strategy;
    JointForecast load;
  };

  const std::vector<Tensor>& tensors_;
  const Wishes& wishes_;
  const Links& links_;
  uint64_t all_bytes_ = 0;
  std::vector<Kind> kinds_;                   // the kinds with the most bytes first
  std::vector<size_t> kind_of_;               // indexed by tensor; kNone: no choice is made
  std::vector<std::vector<Option>> options_;  // indexed by candidate and compared kind
  std::vector<Fallback> fallbacks_;           // indexed by compared kind
  std::vector<Strategy> rest_;                // strategies of the kinds that are not compared
};

}  // namespace

Result<ListChoice> choose_for_list(const std::vector<Tensor>& tensors, const Wishes& wishes) {
  return ListChooser(tensors, wishes).choose();
}

}  // namespace hetcomm::reshard
