#include "topology/machine/rank_nics.h"

#include <algorithm>
#include <numeric>

#include "topology/machine/pairing.h"

namespace hetcomm::topology {
namespace {

constexpr uint64_t kMuchSlower = 4;
constexpr uint64_t kWorthUsing =
    16;  // slow NICs are left out if they add at most 1/16 to the others' rate

// Returns whether both NICs are in the same fabric or, unless both have a fabric, share a subnet. A
// peer that reaches one of the NICs then also reaches the other.
bool are_joined(const Nic& one, const Nic& other) {
  if (!one.fabric.empty() && !other.fabric.empty()) return one.fabric == other.fabric;
  return share_a_subnet(one.subnets, other.subnets);
}

// Divides |chosen| into the NICs to use and those that are much slower than the fastest, and that
// together add little to the others. Keeps the order.
RankNics without_slow_ones(const Machine& machine, const std::vector<int>& chosen) {
  const auto rate_of = [&](int nic) {
    return counted_mbit_per_s(machine, machine.nics[static_cast<size_t>(nic)]);
  };
  std::vector<uint64_t> rates;
  for (const int nic : chosen) rates.push_back(rate_of(nic));
  std::sort(rates.begin(), rates.end());
  uint64_t kept = std::accumulate(rates.begin(), rates.end(), uint64_t{0});
  uint64_t left_out = 0;
  uint64_t slowest_used = 0;
  for (const uint64_t rate : rates) {
    slowest_used = rate;
    kept -= rate;
    left_out += rate;
    if (rate * kMuchSlower >= rates.back() || left_out * kWorthUsing > kept) break;
  }
  RankNics nics;
  for (const int nic : chosen) {
    (rate_of(nic) < slowest_used ? nics.slower : nics.used).push_back(nic);
  }
  return nics;
}

}  // namespace

std::vector<int> numa_nodes_of_processors(const Machine& machine, const ProcessorSet& processors) {
  std::vector<int> nodes;
  for (size_t i = 0; i < machine.numa_nodes.size(); ++i) {
    ProcessorSet shared =
        ProcessorSet::parse(machine.numa_nodes[i].processors).value_or(ProcessorSet());
    shared.keep(processors);
    if (!shared.empty()) nodes.push_back(static_cast<int>(i));
  }
  return nodes;
}

RankNics nics_of_rank(const Machine& machine, const Affinity& affinity,
                      const RankLocation& location, size_t most) {
  std::vector<const NicOrder*> orders;
  for (const int accelerator : location.accelerators) {
    orders.push_back(&affinity.accelerators[static_cast<size_t>(accelerator)]);
  }
  if (orders.empty()) {
    const auto node =
        static_cast<size_t>(location.numa_nodes.size() == 1 ? location.numa_nodes[0] : 0);
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
  // A peer may be reachable only in a subnet or fabric in which no NIC has been chosen yet.
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
  return without_slow_ones(machine, chosen);
}

std::vector<size_t> nics_of_user(const NicOrder& order, const std::vector<int>& chosen,
                                 size_t most) {
  std::vector<size_t> taken;
  for (const NicChoice& choice : order) {
    if (taken.size() == most) break;
    const auto found = std::find(chosen.begin(), chosen.end(), choice.nic);
    if (found != chosen.end()) taken.push_back(static_cast<size_t>(found - chosen.begin()));
  }
  return taken;
}

}  // namespace hetcomm::topology
