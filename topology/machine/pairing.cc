#include "topology/machine/pairing.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <tuple>

namespace hetcomm::topology {
namespace {

// Computes a minimum-cost maximum flow from the lower side's ports to the upper side's by shortest
// augmenting paths. The capacities are the rates of the ports. The costs are lower for ports at the
// beginning of the lists, and for pairs that are known to work.
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

  // Returns the pairs that carry flow.
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
  // A pair's cost is a sum of these parts: kDoubt if the pair may not work, kPosition times the sum
  // of the ports' positions in their lists, and the difference between the two positions. kDoubt
  // exceeds the cost of any path over pairs that work.
  static constexpr int64_t kPosition = int64_t{1} << 16;
  static constexpr int64_t kDoubt = int64_t{1} << 40;
  static constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
  static constexpr size_t kStart = SIZE_MAX;

  Edge& at(size_t i, size_t j) { return pairs_[i * right_.size() + j]; }
  const Edge& at(size_t i, size_t j) const { return pairs_[i * right_.size() + j]; }

  // Finds the cheapest path from a lower port with spare capacity to an upper port with spare
  // capacity (Bellman-Ford), and adds flow along it. The path can follow any pair from its lower to
  // its upper port. It can follow a pair in the opposite direction if the pair carries flow, which
  // is then reduced. Returns false if there is no path.
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

  // If pairs that carry flow form a ring, shifts flow along the ring until one of these pairs
  // carries none. The total flow then uses fewer pairs. Returns false if there is no ring.
  bool open_a_ring() {
    // Here, lower and upper ports are numbered consecutively, with the lower ports first. The loop
    // adds pairs to a forest. If both ports of a pair are already connected in the forest, the pair
    // closes a ring.
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

  // Finds the path from |from| to |to| in a forest, and appends its ports to |way|, including both
  // ends. |before| is the port visited just before |from|. Returns false if there is no path.
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

  // Shifts flow along |ring|, a list of ports in which each port is paired with the next one, and
  // the last port with the first. Every second pair, including the last one, loses the same amount
  // of flow, and the other pairs gain it.
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

// Returns the rates of |ports|, with unknown rates replaced by |slowest|. If |slowest| is 0, no
// rate is known. The rate of each port is then the number of ports on the other side, so that both
// sides have the same total.
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

// Pairs ports as pair_ports() does, but treats last-resort ports like all others.
std::vector<PortPair> pair_all_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                     size_t most, const ReachFunction& reach) {
  const uint64_t slowest = slowest_of(lower, upper);
  // If no rate is known, the number of pairs that are needed is unknown too. A pair that may not
  // work is then used only if neither of its ports reaches any port for certain.
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
  // The arrays are indexed by the number of last-resort ports in a pair, which is 0, 1 or 2.
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
