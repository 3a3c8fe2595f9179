#include "reshard/move_plan.h"

#include <set>
#include <utility>

namespace hetcomm::reshard {

size_t count_messages(const MovePlan& plan, size_t hop) {
  const Layout& from = plan.from(hop);
  const Layout& to = plan.hops[hop].to;
  std::set<std::pair<int, int>> pairs;
  for (const Move& move : plan.hops[hop].moves) {
    const std::pair<int, int> pair(from.parts[move.from].rank, to.parts[move.to].rank);
    if (pair.first != pair.second) pairs.insert(pair);
  }
  return pairs.size();
}

uint64_t count_elements(const MovePlan& plan) {
  uint64_t elements = 0;
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    for (const Move& move : plan.hops[i].moves) {
      const bool is_local =
          plan.from(i).parts[move.from].rank == plan.hops[i].to.parts[move.to].rank;
      if (!is_local) elements += move.box.elements();
    }
  }
  return elements;
}

}  // namespace hetcomm::reshard
