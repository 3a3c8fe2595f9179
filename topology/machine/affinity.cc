#include "topology/machine/affinity.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <set>

#include "topology/machine/first_nics.h"

namespace hetcomm::topology {
namespace {

struct User {
  std::vector<NicOption> left;  // NICs that are not in |order| yet, in the order of Machine::nics
  NicOrder order;
};

// NicSet is a set of NIC indices, stored as a bit mask.
class NicSet {
 public:
  explicit NicSet(size_t nics) : words_((nics + kBits - 1) / kBits) {}
  // Also sets bits beyond |nics| in the last word. They have no effect, since take() considers only
  // NICs that are in both sets.
  static NicSet of_all(size_t nics) {
    NicSet all(nics);
    std::fill(all.words_.begin(), all.words_.end(), UINT64_MAX);
    return all;
  }
  void add(size_t nic) { words_[nic / kBits] |= uint64_t{1} << nic % kBits; }
  // Removes the NICs that are also in |others|, and calls use(index) for each of them in ascending
  // order. Stops when use() returns false.
  template <typename Use>
  void take(const NicSet& others, Use&& use) {
    for (size_t i = 0; i < words_.size(); ++i) {
      uint64_t common = words_[i] & others.words_[i];
      words_[i] &= ~common;
      for (; common != 0; common &= common - 1) {
        if (!use(i * kBits + static_cast<size_t>(std::countr_zero(common)))) return;
      }
    }
  }

 private:
  static constexpr size_t kBits = 64;
  std::vector<uint64_t> words_;
};

// Returns the rate of |option| if no other user shares the NIC.
uint64_t capacity(const NicOption& option, const std::vector<uint64_t>& rates) {
  return std::min(option.path.mbit_per_s, rates[static_cast<size_t>(option.nic)]);
}

// Moves |nic| from the remaining options of |user| to the end of its order. |loads| has the number
// of users of each NIC, including |user|.
void take(User& user, int nic, const std::vector<uint64_t>& rates,
          const std::vector<uint64_t>& loads) {
  const auto index = static_cast<size_t>(nic);
  const auto found = std::find_if(user.left.begin(), user.left.end(),
                                  [&](const NicOption& option) { return option.nic == nic; });
  user.order.push_back(
      {nic, found->path.distance, std::min(found->path.mbit_per_s, rates[index] / loads[index])});
  user.left.erase(found);
}

// Assigns one more NIC to each user that has options left. It is one of the user's best remaining
// options, which choices() returns.
//
// Users are served one after the other. A user can get a NIC that another user got in this round if
// that user moves to another NIC of its own choices(), and so on. Such a chain of moves changes
// only the load of its last NIC, so the chain that ends at the least loaded NIC is selected. By the
// theory of minimum-cost flows, no other assignment in this round has a lower highest load.
class Round {
 public:
  Round(std::vector<User>& users, const std::vector<uint64_t>& rates, std::vector<uint64_t>& loads)
      : users_(users),
        rates_(rates),
        loads_(loads),
        dealt_(users.size(), kNone),
        users_of_(rates.size()) {
    for (size_t user = 0; user < users.size(); ++user) choices_.push_back(choices(user));
    for (size_t nic = 0; nic < rates.size(); ++nic) by_load_.insert(entry(nic));
  }

  void run() {
    for (size_t user = 0; user < users_.size(); ++user) {
      if (!users_[user].left.empty()) deal(user);
    }
    for (size_t user = 0; user < users_.size(); ++user) {
      if (dealt_[user] != kNone) take(users_[user], dealt_[user], rates_, loads_);
    }
  }

 private:
  // Returns the NICs that |user| can get in this round. These are the best of its remaining
  // options, all equal in capacity and path length.
  NicSet choices(size_t user) const {
    NicSet nics(rates_.size());
    const std::vector<NicOption>& left = users_[user].left;
    if (left.empty()) return nics;
    const auto is_better = [this](const NicOption& a, const NicOption& b) {
      const uint64_t one = capacity(a, rates_);
      const uint64_t other = capacity(b, rates_);
      return one != other ? one > other : a.path < b.path;
    };
    const NicOption best = *std::min_element(left.begin(), left.end(), is_better);
    for (const NicOption& option : left) {
      if (!is_better(best, option)) nics.add(static_cast<size_t>(option.nic));
    }
    return nics;
  }

  void deal(size_t first) {
    // Performs a breadth-first search over the users that would have to move. |via| has, for each
    // NIC, the user from which the search reached it. The search stops early at a NIC whose load is
    // the least of all.
    std::vector<int> via(rates_.size(), kNone);
    NicSet unreached = NicSet::of_all(rates_.size());
    std::deque<size_t> asked{first};
    std::vector<bool> seen(users_.size());
    seen[first] = true;
    int best = kNone;
    const Load least = by_load_.begin()->load;
    const auto goes_on = [&] { return best == kNone || least < load_with_one_more(best); };
    while (!asked.empty() && goes_on()) {
      const size_t user = asked.front();
      asked.pop_front();
      unreached.take(choices_[user], [&](size_t index) {
        const auto nic = static_cast<int>(index);
        via[index] = static_cast<int>(user);
        if (best == kNone || load_with_one_more(nic) < load_with_one_more(best)) best = nic;
        for (const size_t other : users_of_[index]) {
          if (seen[other]) continue;
          seen[other] = true;
          asked.push_back(other);
        }
        return goes_on();
      });
    }
    by_load_.erase(entry(static_cast<size_t>(best)));
    ++loads_[static_cast<size_t>(best)];
    by_load_.insert(entry(static_cast<size_t>(best)));
    for (int nic = best; nic != kNone;) {
      const auto index = static_cast<size_t>(nic);
      const auto user = static_cast<size_t>(via[index]);
      users_of_[index].insert(user);
      std::swap(nic, dealt_[user]);  // |nic| is now the user's former NIC
      if (nic != kNone) users_of_[static_cast<size_t>(nic)].erase(user);
    }
  }

  // A NIC, and the load that it would have with one more user.
  struct Entry {
    Load load;
    size_t nic = 0;
    bool operator<(const Entry& other) const {
      if (load < other.load || other.load < load) return load < other.load;
      return nic < other.nic;
    }
  };
  Entry entry(size_t nic) const { return {load_with_one_more(static_cast<int>(nic)), nic}; }

  uint64_t rate(int nic) const { return rates_[static_cast<size_t>(nic)]; }
  Load load_with_one_more(int nic) const {
    return {loads_[static_cast<size_t>(nic)] + 1, rate(nic)};
  }

  std::vector<User>& users_;
  const std::vector<uint64_t>& rates_;  // by NIC
  std::vector<uint64_t>& loads_;        // by NIC: number of users so far, including earlier rounds
  std::set<Entry> by_load_;             // all NICs, least loaded first
  std::vector<NicSet> choices_;         // by user
  std::vector<int> dealt_;              // by user: the NIC assigned in this round, or kNone
  std::vector<std::set<size_t>> users_of_;  // by NIC: the users that got it in this round
};

void take_first_nics(std::vector<User>& users, const std::vector<uint64_t>& rates,
                     std::vector<uint64_t>& loads) {
  std::vector<std::vector<NicOption>> options;
  for (const User& user : users) options.push_back(user.left);
  const std::vector<int> nics = assign_first_nics(options, rates);
  for (const int nic : nics) {
    if (nic != kNone) ++loads[static_cast<size_t>(nic)];
  }
  for (size_t user = 0; user < users.size(); ++user) {
    if (nics[user] != kNone) take(users[user], nics[user], rates, loads);
  }
}

std::vector<NicOrder> deal_all(const Machine& machine, std::vector<User> users) {
  std::vector<uint64_t> rates;
  for (const Nic& nic : machine.nics) rates.push_back(counted_mbit_per_s(machine, nic));
  std::vector<uint64_t> loads(rates.size(), 0);
  take_first_nics(users, rates, loads);
  const auto has_more = [](const User& user) { return !user.left.empty(); };
  for (size_t round = 1; round < kMaxNicsOfUser; ++round) {
    if (std::none_of(users.begin(), users.end(), has_more)) break;
    Round(users, rates, loads).run();
  }
  std::vector<NicOrder> orders;
  for (User& user : users) orders.push_back(std::move(user.order));
  return orders;
}

template <typename Allows>
User make_user(const Machine& machine, const Location& location, Allows allows) {
  User user;
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    const Nic& nic = machine.nics[i];
    if (allows(nic)) user.left.push_back({static_cast<int>(i), path(machine, location, nic)});
  }
  return user;
}

}  // namespace

Affinity assign_nics(const Machine& machine, const NicRules& rules) {
  std::vector<User> accelerators;
  for (size_t i = 0; i < machine.accelerators.size(); ++i) {
    accelerators.push_back(
        make_user(machine, location_of(machine.accelerators[i]),
                  [&](const Nic& nic) { return rules.allows_accelerator(machine, i, nic); }));
  }
  std::vector<User> numa_nodes;
  for (size_t i = 0; i < std::max<size_t>(1, machine.numa_nodes.size()); ++i) {
    const Location location =
        machine.numa_nodes.empty() ? Location() : location_of_memory(static_cast<int>(i));
    numa_nodes.push_back(make_user(machine, location, [&](const Nic& nic) {
      return rules.allows_numa_node(machine, i, nic);
    }));
  }
  return {deal_all(machine, std::move(accelerators)), deal_all(machine, std::move(numa_nodes))};
}

uint64_t counted_mbit_per_s(const Machine& machine, const Nic& nic) {
  if (nic.mbit_per_s != 0) return nic.mbit_per_s;
  uint64_t slowest = 0;
  for (const Nic& other : machine.nics) {
    if (other.mbit_per_s == 0) continue;
    slowest = slowest == 0 ? other.mbit_per_s : std::min(slowest, other.mbit_per_s);
  }
  return std::max<uint64_t>(1, slowest);
}

}  // namespace hetcomm::topology
