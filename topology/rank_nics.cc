#include "topology/rank_nics.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "src/base/config.h"
#include "topology/pairing.h"

namespace hetcomm::topology {
namespace {

constexpr uint64_t kMuchSlower = 4;

// Whether the kernel's list, such as "0-31,64-95", has |number|.
bool has_number(std::string_view list, int number) {
  for (const std::string_view item : split_list(list)) {
    const size_t dash = item.find('-');
    const std::string_view first = item.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : item.substr(dash + 1);
    int from = -1;
    int to = -2;
    std::from_chars(first.data(), first.data() + first.size(), from);
    std::from_chars(last.data(), last.data() + last.size(), to);
    if (from >= 0 && from <= number && number <= to) return true;
  }
  return false;
}

// Whether who reaches the one reaches the other too.
bool are_joined(const Nic& one, const Nic& other) {
  if (!one.fabric.empty() && !other.fabric.empty()) return one.fabric == other.fabric;
  return share_a_subnet(one.subnets, other.subnets);
}

}  // namespace

int numa_node_of_processor(const Machine& machine, int processor) {
  for (size_t i = 0; i < machine.numa_nodes.size(); ++i) {
    if (has_number(machine.numa_nodes[i].processors, processor)) return static_cast<int>(i);
  }
  return kNone;
}

std::vector<int> nics_of_rank(const Machine& machine, const Affinity& affinity,
                              const RankPlace& place, size_t most) {
  std::vector<const NicOrder*> orders;
  for (const int accelerator : place.accelerators) {
    orders.push_back(&affinity.accelerators[static_cast<size_t>(accelerator)]);
  }
  if (orders.empty()) {
    const auto node = static_cast<size_t>(std::max(place.numa_node, 0));
    if (node < affinity.numa_nodes.size()) orders.push_back(&affinity.numa_nodes[node]);
  }
  std::vector<int> chosen;
  for (size_t i = 0; i < most; ++i) {
    for (const NicOrder* const order : orders) {
      if (i >= order->size()) continue;
      const int nic = (*order)[i].nic;
      if (std::find(chosen.begin(), chosen.end(), nic) == chosen.end()) chosen.push_back(nic);
    }
  }
  // A peer whose NICs are in other subnets is reached by one more.
  for (const NicOrder* const order : orders) {
    for (const NicChoice& choice : *order) {
      const Nic& nic = machine.nics[static_cast<size_t>(choice.nic)];
      const bool tells_nothing = nic.subnets.empty() && nic.fabric.empty();
      const bool is_covered =
          tells_nothing || std::any_of(chosen.begin(), chosen.end(), [&](int other) {
            return other == choice.nic || are_joined(nic, machine.nics[static_cast<size_t>(other)]);
          });
      if (!is_covered) chosen.push_back(choice.nic);
    }
  }
  const auto rate_of = [&](int nic) {
    return counted_mbit_per_s(machine, machine.nics[static_cast<size_t>(nic)]);
  };
  uint64_t best = 0;
  for (const int nic : chosen) best = std::max(best, rate_of(nic));
  std::erase_if(chosen, [&](int nic) { return rate_of(nic) * kMuchSlower < best; });
  return chosen;
}

}  // namespace hetcomm::topology
