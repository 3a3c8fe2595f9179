#include "topology/machine/pairing.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <tuple>

namespace hetcomm::topology {
namespace {

// Computes a minimum-cost maximum flow from the lower side's ports to the upper side's, by shortest
// augmenting paths. Capacities are the rates of the ports. Costs prefer ports that come first, and
// pairs that are known to work.
class Flow {
 public:
  Flow(std::vector<uint64_t> lower, std::vector<uint64_t> upper, const ReachFunction& reach)
      : left_(std::move(lower)), right_(std::move(upper)), pairs_(left_.size() * right_.size()) {
    for (size_t i = 0; i < left_.size(); ++i) {
      for (size_t j = 0; j < right_.size(); ++j) {
        const Reach how = reach(i, j);
        Edge& edge = at(i, j);
        edge.exists = how != Reach::kNo;
        const auto position_i = static_cast<int64_t>(i);
        const auto position_j = static_cast<int64_t>(j);
        edge.cost = (how == Reach::kMaybe ? kDoubt : 0) + kPosition * (position_i + position_j) +
                    std::abs(position_i - position_j);
      }
    }
  }

  void run() {
    while (augment()) {
    }
    while (open_a_ring()) {
    }
  }

  // Returns the pairs that carry data.
  std::vector<PortPair> result() const {
    std::vector<PortPair> pairs;
    for (size_t i = 0; i < left_.size(); ++i) {
      for (size_t j = 0; j < right_.size(); ++j) {
        if (const uint64_t carried = at(i, j).carried; carried > 0)
          pairs.push_back({i, j, carried});
      }
    }
    return pairs;
  }

 private:
  struct Edge {
    bool exists = false;
    int64_t cost = 0;
    uint64_t carried = 0;
  };
  // The parts of a pair's cost. A pair that may not work costs kDoubt, more than a detour over any
  // number of pairs that work. Each step of a port's position in its list costs kPosition. Each
  // step of difference between the two ports' positions costs only 1.
  static constexpr int64_t kPosition = int64_t{1} << 16;
  static constexpr int64_t kDoubt = int64_t{1} << 40;
  static constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
  static constexpr size_t kStart = SIZE_MAX;

  Edge& at(size_t i, size_t j) { return pairs_[i * right_.size() + j]; }
  const Edge& at(size_t i, size_t j) const { return pairs_[i * right_.size() + j]; }

  // Finds the cheapest path from a lower port with spare capacity to an upper port with
  // spare capacity (Bellman-Ford), and sends data along it. The path goes from lower to upper ports
  // along any pair. It goes back along pairs that carry data, whose load it reduces. Returns false
  // if there is no path.
  bool augment() {
    std::vector<int64_t> left_cost(left_.size(), kFar);
    std::vector<int64_t> right_cost(right_.size(), kFar);
    std::vector<size_t> left_from(left_.size(), kStart);
    std::vector<size_t> right_from(right_.size(), kStart);
    for (size_t i = 0; i < left_.size(); ++i) {
      if (left_[i] > 0) left_cost[i] = 0;
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < left_.size(); ++i) {
        for (size_t j = 0; j < right_.size(); ++j) {
          const Edge& edge = at(i, j);
          if (edge.exists && left_cost[i] + edge.cost < right_cost[j]) {
            right_cost[j] = left_cost[i] + edge.cost;
            right_from[j] = i;
            changed = true;
          }
          if (edge.carried > 0 && right_cost[j] - edge.cost < left_cost[i]) {
            left_cost[i] = right_cost[j] - edge.cost;
            left_from[i] = j;
            changed = true;
          }
        }
      }
    }
    size_t best = kStart;
    for (size_t j = 0; j < right_.size(); ++j) {
      if (right_[j] == 0 || right_cost[j] >= kFar) continue;
      if (best == kStart || right_cost[j] < right_cost[best]) best = j;
    }
    if (best == kStart) return false;
    push(best, left_from, right_from);
    return true;
  }

  void push(size_t last, const std::vector<size_t>& left_from,
            const std::vector<size_t>& right_from) {
    uint64_t amount = right_[last];
    size_t i = right_from[last];
    for (; left_from[i] != kStart; i = right_from[left_from[i]]) {
      amount = std::min(amount, at(i, left_from[i]).carried);
    }
    amount = std::min(amount, left_[i]);
    left_[i] -= amount;
    right_[last] -= amount;
    for (size_t j = last;;) {
      i = right_from[j];
      at(i, j).carried += amount;
      if (left_from[i] == kStart) return;
      j = left_from[i];
      at(i, j).carried -= amount;
    }
  }

  // If some pairs that carry data form a ring, moves load along the ring until one of them carries
  // nothing. Fewer pairs then carry as much in total. Returns false if there is no ring.
  bool open_a_ring() {
    // Ports have one numbering here, with upper ports after lower ports. The loop adds pairs to a
    // forest until both ports of a pair are already connected: that pair closes a ring.
    std::vector<std::vector<size_t>> neighbours(left_.size() + right_.size());
    for (size_t i = 0; i < left_.size(); ++i) {
      for (size_t j = 0; j < right_.size(); ++j) {
        if (at(i, j).carried == 0) continue;
        const size_t upper = left_.size() + j;
        std::vector<size_t> way;
        if (find_way(neighbours, i, upper, kStart, way)) {
          move_around(way);
          return true;
        }
        neighbours[i].push_back(upper);
        neighbours[upper].push_back(i);
      }
    }
    return false;
  }

  // Finds the only path |from| -> |to| in a forest. |before|: the port visited just before |from|.
  // |way| includes both ends. Returns false if there is no path.
  static bool find_way(const std::vector<std::vector<size_t>>& neighbours, size_t from, size_t to,
                       size_t before, std::vector<size_t>& way) {
    way.push_back(from);
    if (from == to) return true;
    for (const size_t next : neighbours[from]) {
      if (next != before && find_way(neighbours, next, to, from, way)) return true;
    }
    way.pop_back();
    return false;
  }

  // Moves load along |ring|, a list of ports. Each port is paired with the next one, and the last
  // with the first. Every second pair, including the last one, loses an amount. The pairs between
  // them gain that amount.
  void move_around(const std::vector<size_t>& ring) {
    const auto edge = [&](size_t k) -> Edge& {
      const size_t a = ring[k];
      const size_t b = ring[(k + 1) % ring.size()];
      return at(std::min(a, b), std::max(a, b) - left_.size());
    };
    uint64_t amount = UINT64_MAX;
    for (size_t k = 1; k < ring.size(); k += 2) amount = std::min(amount, edge(k).carried);
    for (size_t k = 0; k < ring.size(); ++k) {
      edge(k).carried += k % 2 == 1 ? -amount : amount;
    }
  }

  std::vector<uint64_t> left_;   // spare capacity of each lower port
  std::vector<uint64_t> right_;  // spare capacity of each upper port
  std::vector<Edge> pairs_;
};

// Returns the rates of |ports|, with |slowest| in place of unknown rates. If no rate is known, each
// port gets the number of ports on the other side, so that both sides have the same total.
std::vector<uint64_t> rates_of(const std::vector<Port>& ports, const std::vector<Port>& others,
                               uint64_t slowest) {
  const uint64_t unknown = slowest != 0 ? slowest : others.size();
  std::vector<uint64_t> rates;
  for (const Port& port : ports) rates.push_back(port.mbit_per_s != 0 ? port.mbit_per_s : unknown);
  return rates;
}

// Returns the slowest known rate of both sides, or 0 if no rate is known.
uint64_t slowest_of(const std::vector<Port>& lower, const std::vector<Port>& upper) {
  uint64_t slowest = UINT64_MAX;
  for (const std::vector<Port>* side : {&lower, &upper}) {
    for (const Port& port : *side) {
      if (port.mbit_per_s != 0) slowest = std::min(slowest, port.mbit_per_s);
    }
  }
  return slowest == UINT64_MAX ? 0 : slowest;
}

// Pairs ports as pair_ports() does, and makes no difference for ports of last resort.
std::vector<PortPair> pair_all_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                     size_t most, const ReachFunction& reach) {
  const uint64_t slowest = slowest_of(lower, upper);
  // If no rate is known, nothing shows that a pair that may not work is needed. A port that reaches
  // some port for certain is then not used for such a pair.
  const ReachFunction cautious = [&](size_t i, size_t j) {
    const Reach how = reach(i, j);
    if (how != Reach::kMaybe) return how;
    const auto is_sure = [&](size_t a, size_t b) { return reach(a, b) == Reach::kYes; };
    for (size_t other = 0; other < upper.size(); ++other) {
      if (is_sure(i, other)) return Reach::kNo;
    }
    for (size_t other = 0; other < lower.size(); ++other) {
      if (is_sure(other, j)) return Reach::kNo;
    }
    return how;
  };
  Flow flow(rates_of(lower, upper, slowest), rates_of(upper, lower, slowest),
            slowest == 0 ? cautious : reach);
  flow.run();
  std::vector<PortPair> pairs = flow.result();
  std::sort(pairs.begin(), pairs.end(), [](const PortPair& a, const PortPair& b) {
    return std::tuple(b.mbit_per_s, a.lower + a.upper, a.lower) <
           std::tuple(a.mbit_per_s, b.lower + b.upper, b.lower);
  });
  if (pairs.size() > most) pairs.resize(most);
  if (slowest == 0) {
    for (PortPair& pair : pairs) pair.mbit_per_s = 0;
  }
  return pairs;
}

}  // namespace

bool share_a_subnet(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  return std::any_of(one.begin(), one.end(), [&](const std::string& subnet) {
    return std::find(other.begin(), other.end(), subnet) != other.end();
  });
}

Reach reach(const Port& one, const Port& other) {
  if (!one.fabric.empty() && !other.fabric.empty()) {
    return one.fabric == other.fabric ? Reach::kYes : Reach::kNo;
  }
  return share_a_subnet(one.subnets, other.subnets) ? Reach::kYes : Reach::kMaybe;
}

std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most, const ReachFunction& reach) {
  // Pairs by how much they are a last resort: of neither, of one or of both sides.
  std::array<bool, 3> sure{};
  std::array<bool, 3> possible{};
  const auto kind = [&](size_t i, size_t j) {
    return static_cast<size_t>(lower[i].last_resort) + static_cast<size_t>(upper[j].last_resort);
  };
  for (size_t i = 0; i < lower.size(); ++i) {
    for (size_t j = 0; j < upper.size(); ++j) {
      const Reach how = reach(i, j);
      if (how == Reach::kYes) sure[kind(i, j)] = true;
      if (how != Reach::kNo) possible[kind(i, j)] = true;
    }
  }
  const size_t kept = sure[0]       ? 0
                      : sure[2]     ? 2
                      : sure[1]     ? 1
                      : possible[2] ? 2
                      : possible[1] ? 1
                                    : 0;
  const ReachFunction chosen = [&](size_t i, size_t j) {
    return kind(i, j) == kept ? reach(i, j) : Reach::kNo;
  };
  return pair_all_ports(lower, upper, most, chosen);
}

std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most) {
  return pair_ports(lower, upper, most,
                    [&](size_t i, size_t j) { return reach(lower[i], upper[j]); });
}

}  // namespace hetcomm::topology
