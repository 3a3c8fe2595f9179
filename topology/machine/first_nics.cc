#include "topology/machine/first_nics.h"

#include <algorithm>
#include <array>
#include <compare>
#include <deque>
#include <optional>
#include <utility>

namespace hetcomm::topology {
namespace {

// The cost of an assignment, or of a change of it. Costs are added and subtracted like vectors, and
// compared by their highest loads first.
class Cost {
 public:
  Cost() = default;
  explicit Cost(const Load& load) : loads_{{load, 1}} {}
  Cost(const Path& path, uint64_t nic_mbit_per_s) {
    if (path.mbit_per_s < nic_mbit_per_s) loads_.push_back({{1, path.mbit_per_s}, 1});
    constexpr auto kFarthest = static_cast<size_t>(Distance::kOther);
    lengths_[kFarthest - static_cast<size_t>(path.distance)] = 1;
    lengths_[kDistances] = path.bridges;
    lengths_[kDistances + 1] = path.numa_distance;
    lengths_[kDistances + 2] = path.is_other_package ? 1 : 0;
  }

  // Adds |other| multiplied by |times|, which can be negative.
  void add(const Cost& other, int times) {
    for (size_t i = 0; i < lengths_.size(); ++i) lengths_[i] += other.lengths_[i] * times;
    for (const Part& part : other.loads_) {
      const auto at = std::find_if(loads_.begin(), loads_.end(),
                                   [&](const Part& each) { return !(part.load < each.load); });
      if (at == loads_.end() || at->load < part.load) {
        loads_.insert(at, {part.load, part.count * times});
      } else if ((at->count += part.count * times) == 0) {
        loads_.erase(at);
      }
    }
  }

  std::strong_ordering operator<=>(const Cost& other) const {
    for (size_t i = 0; i < loads_.size() || i < other.loads_.size(); ++i) {
      const bool is_last = i >= loads_.size();
      const bool is_others_last = i >= other.loads_.size();
      if (is_last || (!is_others_last && loads_[i].load < other.loads_[i].load)) {
        return 0 <=> other.loads_[i].count;
      }
      if (is_others_last || other.loads_[i].load < loads_[i].load) return loads_[i].count <=> 0;
      if (loads_[i].count != other.loads_[i].count) {
        return loads_[i].count <=> other.loads_[i].count;
      }
    }
    return lengths_ <=> other.lengths_;
  }
  bool operator==(const Cost& other) const { return (*this <=> other) == 0; }

 private:
  struct Part {
    Load load;
    int64_t count = 0;  // never 0
  };
  static constexpr size_t kDistances = static_cast<size_t>(Distance::kOther) + 1;

  std::vector<Part> loads_;  // highest load first
  std::array<int64_t, kDistances + 3> lengths_{};
};

Cost operator+(Cost one, const Cost& other) {
  one.add(other, 1);
  return one;
}
Cost operator-(Cost one, const Cost& other) {
  one.add(other, -1);
  return one;
}

// Computes the assignment by serving the users one after the other, each along the cheapest chain
// of moves. In a chain, the new user gets a NIC, a former user of that NIC moves to another one,
// and so on. By the theory of minimum-cost flows, the assignment of the users served so far always
// has the least cost.
class FirstNics {
 public:
  FirstNics(const std::vector<std::vector<NicOption>>& options, const std::vector<uint64_t>& rates)
      : options_(options), rates_(rates), chosen_(options.size(), nullptr), users_(rates.size()) {}

  std::vector<int> run() {
    for (size_t user = 0; user < options_.size(); ++user) serve(user);
    std::vector<int> nics;
    for (const NicOption* const option : chosen_) {
      nics.push_back(option == nullptr ? kNone : option->nic);
    }
    return nics;
  }

 private:
  // The last move of the cheapest chain found so far that ends at a NIC.
  struct Reached {
    std::optional<Cost> cost;  // cost of the chain without the NIC's load; none: no chain found
    size_t user = 0;           // the user that moves to the NIC
    const NicOption* option = nullptr;
  };

  static size_t index(const NicOption& option) { return static_cast<size_t>(option.nic); }
  Cost cost_of(const NicOption& option) const { return {option.path, rates_[index(option)]}; }
  // Returns the cost of the load that the |count|-th user of |nic| adds to the NIC.
  Cost load_of(size_t nic, size_t count) const { return Cost(Load{count, rates_[nic]}); }

  // Finds the cheapest chain with the Bellman-Ford algorithm, and applies it. The assignment so far
  // is optimal, so moving a user from a NIC to another one costs at least the load that the last
  // user of the first NIC adds. Chains that would cost too much by this bound are not extended.
  void serve(size_t first) {
    reached_.assign(rates_.size(), {});
    best_.reset();
    std::deque<size_t> waiting;  // NICs from which the chains are extended next
    reach(first, Cost(), waiting);
    while (!waiting.empty()) {
      const size_t nic = waiting.front();
      waiting.pop_front();
      const Cost cost = *reached_[nic].cost;
      if (users_[nic].empty() || !(cost + load_of(nic, users_[nic].size()) < best_->second)) {
        continue;
      }
      for (const size_t user : users_[nic]) {
        reach(user, cost - cost_of(*chosen_[user]), waiting);
      }
    }
    if (best_) move_users(best_->first, first);
  }

  // Extends a chain that costs |cost| so far by moving |user| to each of its other options.
  void reach(size_t user, const Cost& cost, std::deque<size_t>& waiting) {
    for (const NicOption& option : options_[user]) {
      if (&option == chosen_[user]) continue;
      const size_t nic = index(option);
      Cost there = cost + cost_of(option);
      Reached& reached = reached_[nic];
      if (reached.cost && !(there < *reached.cost)) continue;
      Cost all = there + load_of(nic, users_[nic].size() + 1);
      if (!best_ || all < best_->second) best_.emplace(nic, std::move(all));
      reached = {std::move(there), user, &option};
      waiting.push_back(nic);
    }
  }

  // Makes the moves of the chain that ends at |nic|, from the last move back to that of |first|.
  void move_users(size_t nic, size_t first) {
    while (true) {
      const Reached& reached = reached_[nic];
      const NicOption* const former = std::exchange(chosen_[reached.user], reached.option);
      users_[nic].push_back(reached.user);
      if (reached.user == first) return;
      nic = index(*former);
      std::erase(users_[nic], reached.user);
    }
  }

  const std::vector<std::vector<NicOption>>& options_;  // by user
  const std::vector<uint64_t>& rates_;                  // by NIC
  std::vector<const NicOption*> chosen_;                // by user
  std::vector<std::vector<size_t>> users_;              // by NIC

  // The state of the search in serve().
  std::vector<Reached> reached_;                 // by NIC
  std::optional<std::pair<size_t, Cost>> best_;  // the cheapest chain: its last NIC and total cost
};

}  // namespace

std::vector<int> assign_first_nics(const std::vector<std::vector<NicOption>>& options,
                                   const std::vector<uint64_t>& rates) {
  return FirstNics(options, rates).run();
}

}  // namespace hetcomm::topology
