#include "reshard/auto.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "reshard/faults.h"
#include "reshard/strategies.h"

namespace hetcomm::reshard {
namespace {

int last_rank(const Layout& layout) {
  int last = 0;
  for (const Part& part : layout.parts) last = std::max(last, part.rank);
  return last;
}

// Removes the moves of other ranks from |plan|.
void keep_only(int rank, MovePlan& plan) {
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    const Layout& from = plan.from(i);
    Hop& hop = plan.hops[i];
    std::erase_if(hop.moves, [&](const Move& move) {
      return from.parts[move.from].rank != rank && hop.to.parts[move.to].rank != rank;
    });
  }
}

}  // namespace

std::optional<std::string> find_second_copy(const MovePlan& plan, const Links& links) {
  std::map<std::pair<int, int>, uint64_t> elements;
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    for (const Move& move : plan.hops[i].moves) {
      const int from = links.cluster(plan.from(i).parts[move.from].rank);
      const int to = links.cluster(plan.hops[i].to.parts[move.to].rank);
      if (from != to) elements[{from, to}] += move.box.elements();
    }
  }
  // Every term of a sum counts as a separate tensor.
  const uint64_t most = plan.source.whole().elements() * plan.destination().terms;
  const auto& names = links.model().clusters;
  for (const auto& [clusters, sent] : elements) {
    if (sent <= most) continue;
    return fmt::format("it sends {:.2f} copies from cluster '{}' to '{}'",
                       static_cast<double>(sent) / static_cast<double>(most),
                       names[static_cast<size_t>(clusters.first)],
                       names[static_cast<size_t>(clusters.second)]);
  }
  return std::nullopt;
}

Status check_known(const Layout& source, const Layout& destination, const Links& links) {
  const int last = std::max(last_rank(source), last_rank(destination));
  if (static_cast<size_t>(last) < links.ranks()) return {};
  return invalid(fmt::format("rank {} holds a part, and the links of ranks 0 to {} are known", last,
                             static_cast<int64_t>(links.ranks()) - 1));
}

Result<Choice> plan_auto(const Layout& source, const Layout& destination, uint64_t element_bytes,
                         const Links& links, uint64_t slices, std::optional<int> rank,
                         uint64_t slice_bytes) {
  HETCOMM_RETURN_IF_ERROR(check_known(source, destination, links));
  const Tensor tensor{&source, &destination, element_bytes};
  const Wishes wishes{.slice_bytes = slice_bytes, .links = &links};
  SendLoads loads(&links);
  Choice choice;
  std::optional<MovePlan> best;
  // The fastest of the plans that are refused because they send a second copy. It is used if no
  // strategy gives another plan.
  std::optional<MovePlan> second_best;
  Forecast of_second_best;
  for (const Strategy strategy : kCandidates) {
    Considered& entry = choice.considered.emplace_back();
    entry.strategy = name_of(strategy);
    Result<MovePlan> plan = plan_with(strategy, tensor, wishes, loads, std::nullopt, 0);
    if (!plan.ok()) {
      entry.refused = plan.status().text();
      continue;
    }
    Forecast expected = forecast(plan.value(), element_bytes, links, slices);
    entry.ns = expected.ns;
    if (std::optional<std::string> why = find_second_copy(plan.value(), links)) {
      entry.refused = *why;
      if (second_best && of_second_best.ns <= expected.ns) continue;
      of_second_best = std::move(expected);
      second_best = std::move(plan).value();
    } else if (!best || expected.ns < choice.forecast.ns) {
      choice.forecast = std::move(expected);
      best = std::move(plan).value();
    }
  }
  if (!best && second_best) {
    best = std::move(second_best);
    choice.forecast = std::move(of_second_best);
  }
  if (!best) return unsupported(choice.considered.front().refused);
  choice.plan = std::move(*best);
  if (rank) keep_only(*rank, choice.plan);
  return choice;
}

Result<Choice> plan_auto(const Tensor& tensor, const Wishes& wishes, std::optional<int> rank) {
  return plan_auto(*tensor.source, *tensor.destination, tensor.element_bytes, *wishes.links,
                   slices_for(bytes_of(tensor), 3, wishes.bundle_bytes), rank, wishes.slice_bytes);
}

}  // namespace hetcomm::reshard
