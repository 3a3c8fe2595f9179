// The assignment of NICs against a search through all assignments, on the recorded machines and on
// random ones:
//    - the length and the narrowest link of every path are those of a plain rule;
//    - no assignment of first NICs has lower loads, or equal loads and shorter paths;
//    - the other NICs of a user are in the order of capacity, then of the path's length;
//    - all NICs that may be used are there.
#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/machines.h"
#include "topology/machine/affinity.h"
#include "topology/read/machine_file.h"

namespace hetcomm::topology {
namespace {

// A path as the rule describes it: class of distance, bridges, NUMA distance, and whether it leads
// to another package. The rate is that of the narrowest link in Mbit/s, 0 if none is known.
struct PlainPath {
  std::vector<int64_t> length;
  uint64_t mbit_per_s = 0;
};

const PciNode& object_at(const Machine& machine, int index) {
  return machine.pci[static_cast<size_t>(index)];
}

std::vector<int> objects_above(const Machine& machine, int function) {
  std::vector<int> objects;
  for (int at = function; at != kNone; at = object_at(machine, at).parent) objects.push_back(at);
  return objects;
}

// Returns the objects that are above only one of two functions. |top|: the first above both.
std::set<int> objects_between(const Machine& machine, int one, int other, int* top) {
  const std::vector<int> first = objects_above(machine, one);
  const std::vector<int> second = objects_above(machine, other);
  std::set<int> all;
  *top = kNone;
  for (const int each : first) {
    if (std::count(second.begin(), second.end(), each) == 0) all.insert(each);
  }
  for (const int each : second) {
    if (std::count(first.begin(), first.end(), each) == 0) {
      all.insert(each);
    } else if (*top == kNone) {
      *top = each;
    }
  }
  return all;
}

bool is_bridge(const Machine& machine, int object) {
  return object_at(machine, object).kind != PciKind::kFunction;
}

std::vector<int> nodes_near(const Machine& machine, int function, const std::vector<int>& nodes) {
  return function == kNone ? nodes : numa_nodes_of(machine, function);
}

int64_t plain_numa_distance(const Machine& machine, const std::vector<int>& a,
                            const std::vector<int>& b) {
  std::vector<int64_t> all;
  bool is_local = machine.numa_nodes.size() == 1;
  for (const int one : a) {
    for (const int other : b) {
      is_local = is_local || one == other;
      const NumaNode& node = machine.numa_nodes[static_cast<size_t>(one)];
      if (!node.distances.empty()) all.push_back(node.distances[static_cast<size_t>(other)]);
    }
  }
  if (!all.empty()) return *std::min_element(all.begin(), all.end());
  return is_local ? 10 : 20;
}

bool plain_other_package(const Machine& machine, const std::vector<int>& a,
                         const std::vector<int>& b) {
  size_t different = 0;
  for (const int one : a) {
    for (const int other : b) {
      const int package = machine.numa_nodes[static_cast<size_t>(one)].package;
      const int end = machine.numa_nodes[static_cast<size_t>(other)].package;
      if (package != kNone && end != kNone && package != end) ++different;
    }
  }
  return different != 0 && different == a.size() * b.size();
}

PlainPath plain_path(const Machine& machine, const Location& from, const Nic& nic) {
  std::vector<Location> ends;
  for (const int function : nic.functions) ends.push_back({function, {}});
  if (ends.empty()) ends.push_back({kNone, nic.numa_nodes});
  PlainPath path{{0, 0, 0, 0}, 0};
  std::map<int, uint64_t> crossings;
  for (const Location& end : ends) {
    int top = kNone;
    std::set<int> between = objects_between(machine, from.function, end.function, &top);
    int64_t bridges = top != kNone && is_bridge(machine, top) ? 1 : 0;
    for (const int each : between) bridges += is_bridge(machine, each) ? 1 : 0;
    const std::vector<int> a = nodes_near(machine, from.function, from.numa_nodes);
    const std::vector<int> b = nodes_near(machine, end.function, end.numa_nodes);
    path.length = std::max(
        path.length, {static_cast<int64_t>(distance(machine, from, end)), bridges,
                      plain_numa_distance(machine, a, b), plain_other_package(machine, a, b)});
    if (end.function == kNone) continue;
    // The user's own link, which the port above it may report, is on all of its paths.
    if (from.function != kNone && between.erase(from.function) != 0) {
      const int port = object_at(machine, from.function).parent;
      const auto children = std::count_if(machine.pci.begin(), machine.pci.end(),
                                          [&](const PciNode& each) { return each.parent == port; });
      if (children == 1) between.erase(port);
    }
    for (const int each : between) ++crossings[each];
  }
  for (const auto& [object, count] : crossings) {
    const uint64_t rate = object_at(machine, object).mbyte_per_s * 8 * ends.size() / count;
    if (rate == 0 || object_at(machine, object).kind == PciKind::kRootComplex) continue;
    path.mbit_per_s = path.mbit_per_s == 0 ? rate : std::min(path.mbit_per_s, rate);
  }
  return path;
}

// --- the search ------------------------------------------------------------------------------

struct Fraction {
  uint64_t users = 0;
  uint64_t rate = 1;
};
bool operator<(const Fraction& a, const Fraction& b) { return a.users * b.rate < b.users * a.rate; }

// The parts of an assignment's cost, the most important first.
struct PlainCost {
  std::vector<Fraction> loads;   // the highest first
  std::vector<int64_t> lengths;  // paths by class of distance, the farthest first, and the sums
};

bool operator<(const PlainCost& a, const PlainCost& b) {
  for (size_t i = 0; i < a.loads.size() && i < b.loads.size(); ++i) {
    if (a.loads[i] < b.loads[i]) return true;
    if (b.loads[i] < a.loads[i]) return false;
  }
  if (a.loads.size() != b.loads.size()) return a.loads.size() < b.loads.size();
  return a.lengths < b.lengths;
}

// The users of one kind, with the NICs that each may use.
struct Problem {
  struct Option {
    size_t nic = 0;
    PlainPath path;
  };
  std::vector<std::vector<Option>> users;
  std::vector<uint64_t> rates;  // by NIC
};

PlainCost cost_of(const Problem& problem, const std::vector<const Problem::Option*>& taken) {
  PlainCost cost{{}, std::vector<int64_t>(7, 0)};
  std::vector<uint64_t> users(problem.rates.size(), 0);
  for (const Problem::Option* const option : taken) {
    if (option == nullptr) continue;
    const uint64_t rate = problem.rates[option->nic];
    cost.loads.push_back({++users[option->nic], rate});
    const uint64_t link = option->path.mbit_per_s;
    if (link != 0 && link < rate) cost.loads.push_back({1, link});
    ++cost.lengths[3 - static_cast<size_t>(option->path.length[0])];
    for (size_t i = 1; i < 4; ++i) cost.lengths[3 + i] += option->path.length[i];
  }
  std::sort(cost.loads.begin(), cost.loads.end(),
            [](const Fraction& a, const Fraction& b) { return b < a; });
  return cost;
}

// Returns whether some assignment of the users from |taken|.size() on costs less than |bound|. The
// cost only grows with each user.
bool beats(const Problem& problem, std::vector<const Problem::Option*>& taken,
           const PlainCost& bound) {
  if (!(cost_of(problem, taken) < bound)) return false;
  if (taken.size() == problem.users.size()) return true;
  const std::vector<Problem::Option>& options = problem.users[taken.size()];
  bool is_beaten = false;
  for (size_t i = 0; i < std::max<size_t>(options.size(), 1) && !is_beaten; ++i) {
    taken.push_back(options.empty() ? nullptr : &options[i]);
    is_beaten = beats(problem, taken, bound);
    taken.pop_back();
  }
  return is_beaten;
}

void expect_best(const Machine& machine, const std::vector<Location>& users,
                 const std::vector<NicOrder>& orders, const std::string& what) {
  Problem problem;
  for (const Nic& nic : machine.nics) problem.rates.push_back(counted_mbit_per_s(machine, nic));
  std::vector<const Problem::Option*> taken;
  problem.users.resize(users.size());
  ASSERT_EQ(orders.size(), users.size()) << what;
  for (size_t user = 0; user < users.size(); ++user) {
    std::vector<Problem::Option>& options = problem.users[user];
    for (size_t i = 0; i < machine.nics.size(); ++i) {
      const Nic& nic = machine.nics[i];
      if (!NicRules().allows_numa_node(machine, 0, nic)) continue;
      options.push_back({i, plain_path(machine, users[user], nic)});
      const Path got = path(machine, users[user], nic);
      const uint64_t rate = options.back().path.mbit_per_s;
      ASSERT_EQ(got.mbit_per_s, rate == 0 ? Path::kNotLimited : rate)
          << what << ", user " << user << ", " << nic.name();
      const std::vector<int64_t> length{static_cast<int64_t>(got.distance), got.bridges,
                                        got.numa_distance, got.is_other_package};
      ASSERT_EQ(length, options.back().path.length)
          << what << ", user " << user << ", " << nic.name();
    }
    const NicOrder& order = orders[user];
    ASSERT_EQ(order.size(), options.size()) << what;
    const auto option_of = [&](const NicChoice& choice) {
      return &*std::find_if(options.begin(), options.end(), [&](const Problem::Option& each) {
        return each.nic == static_cast<size_t>(choice.nic);
      });
    };
    const auto worse = [&](const NicChoice& choice) {
      const Problem::Option& option = *option_of(choice);
      const uint64_t link = option.path.mbit_per_s;
      const uint64_t rate = problem.rates[option.nic];
      return std::pair(-static_cast<int64_t>(link == 0 ? rate : std::min(link, rate)),
                       option.path.length);
    };
    for (size_t i = 2; i < order.size(); ++i) {
      ASSERT_LE(worse(order[i - 1]), worse(order[i])) << what << ", user " << user;
    }
    taken.push_back(order.empty() ? nullptr : option_of(order[0]));
  }
  const PlainCost cost = cost_of(problem, taken);
  std::vector<const Problem::Option*> none;
  ASSERT_FALSE(beats(problem, none, cost)) << what << ": there is a better assignment";
}

void expect_best(const Machine& machine, const std::string& what) {
  const Affinity affinity = assign_nics(machine, {});
  std::vector<Location> accelerators;
  for (const Accelerator& each : machine.accelerators) accelerators.push_back(location_of(each));
  expect_best(machine, accelerators, affinity.accelerators, what + ", accelerators");
  std::vector<Location> nodes;
  for (size_t i = 0; i < machine.numa_nodes.size(); ++i) {
    nodes.push_back(location_of_memory(static_cast<int>(i)));
  }
  if (nodes.empty()) nodes.emplace_back();
  expect_best(machine, nodes, affinity.numa_nodes, what + ", memory");
}

TEST(AffinitySearch, FindsNothingBetterOnRecordedMachines) {
  for (const char* name : kMachines) {
    Result<Machine> machine = read_machine_file(machine_path(std::string(name) + ".xml"));
    ASSERT_TRUE(machine.ok()) << machine.status().text();
    expect_best(*machine, name);
  }
}

// --- random machines -------------------------------------------------------------------------

class RandomMachine {
 public:
  explicit RandomMachine(unsigned int seed) : random_(seed) {}

  Machine make() {
    add_numa_nodes();
    add_bridges();
    for (int i = below(6); i > 0; --i) add_accelerator();
    for (int i = below(5); i > 0; --i) add_nic(i);
    normalize(machine_);
    return std::move(machine_);
  }

 private:
  int below(int count) { return static_cast<int>(random_() % static_cast<unsigned int>(count)); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *std::next(values.begin(), below(static_cast<int>(values.size())));
  }

  void add_numa_nodes() {
    const int nodes = 1 + below(4);
    const bool has_packages = below(3) != 0;
    for (int i = 0; i < nodes; ++i) {
      NumaNode& node = machine_.numa_nodes.emplace_back();
      node.number = static_cast<uint32_t>(i);
      if (has_packages) node.package = i / 2;
    }
    if (below(3) == 0) return;
    for (int i = 0; i < nodes; ++i) {
      for (int k = 0; k < nodes; ++k) {
        machine_.numa_nodes[static_cast<size_t>(i)].distances.push_back(
            i == k ? 10 : one_of<uint32_t>({11, 12, 12, 21, 32}));
      }
    }
  }

  void add_bridges() {
    const auto nodes = static_cast<int>(machine_.numa_nodes.size());
    for (int i = 1 + below(3); i > 0; --i) {
      PciNode root;
      root.kind = PciKind::kRootComplex;
      root.address = {static_cast<uint32_t>(i), bus_++, 0, 0};
      if (below(4) != 0) root.numa_nodes = {below(nodes)};
      parents_.push_back(static_cast<int>(machine_.pci.size()));
      machine_.pci.push_back(root);
    }
    for (int i = below(7); i > 0; --i) {
      PciNode bridge;
      bridge.kind = PciKind::kBridge;
      bridge.address = {9, bus_++, 0, 0};
      bridge.parent = any_parent();
      bridge.mbyte_per_s = any_link();
      parents_.push_back(static_cast<int>(machine_.pci.size()));
      machine_.pci.push_back(bridge);
    }
  }

  int any_parent() {
    return parents_[static_cast<size_t>(below(static_cast<int>(parents_.size())))];
  }
  uint64_t any_link() { return one_of<uint64_t>({0, 3938, 15754, 31508, 31508, 63015}); }

  int add_function() {
    PciNode function;
    function.address = {7, bus_++, 0, 0};
    function.parent = any_parent();
    function.mbyte_per_s = any_link();
    machine_.pci.push_back(function);
    return static_cast<int>(machine_.pci.size()) - 1;
  }

  void add_accelerator() {
    Accelerator accelerator;
    accelerator.address = {8, bus_, 0, 0};
    if (below(8) == 0) {
      ++bus_;
      accelerator.numa_nodes = {below(static_cast<int>(machine_.numa_nodes.size()))};
    } else {
      accelerator.function = add_function();
      accelerator.address = machine_.pci.back().address;
    }
    machine_.accelerators.push_back(accelerator);
  }

  void add_nic(int number) {
    Nic nic;
    nic.rdma_device = "mlx5_" + std::to_string(number);
    nic.rdma_port = 1;
    for (int i = one_of({0, 1, 1, 1, 1, 2}); i > 0; --i) nic.functions.push_back(add_function());
    if (nic.functions.empty() && below(2) == 0) {
      nic.numa_nodes = {below(static_cast<int>(machine_.numa_nodes.size()))};
    }
    nic.mbit_per_s = one_of<uint64_t>({0, 1'000, 25'000, 100'000, 200'000, 200'000, 400'000});
    nic.state = below(6) == 0 ? NicState::kDown : NicState::kUp;
    machine_.nics.push_back(nic);
  }

  std::mt19937 random_;
  Machine machine_;
  std::vector<int> parents_;
  uint8_t bus_ = 0;
};

TEST(AffinitySearch, FindsNothingBetterOnRandomMachines) {
  for (unsigned int seed = 0; seed < 3000; ++seed) {
    const Machine machine = RandomMachine(seed).make();
    ASSERT_TRUE(check(machine).ok()) << seed << ": " << check(machine).text();
    expect_best(machine, "seed " + std::to_string(seed));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace hetcomm::topology
