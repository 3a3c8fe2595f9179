// NicRules holds the rules in HETCOMM_NIC, which specify the NICs that may be used.
//
//   mlx5_0,eth*                      only these NICs
//   ^eth3,docker*                    all NICs except these
//   ^eth3|acc2=mlx5_2,mlx5_3         all NICs except eth3, but accelerator 2 uses only these two
//   0000:3b:00.0=^mlx5_1|numa0=eth0  one rule for the accelerator at a PCI address, and one for the
//                                    memory of NUMA node 0
//
// A NIC is named by interface, RDMA device, "device:port" or PCI address. A '*' at the end of a
// name matches any suffix. A rule for one user (an accelerator or a NUMA node) replaces the general
// rule for that user.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

struct NicRule {
  std::string user;  // "acc2", a PCI address or "numa0"; empty for the general rule
  bool excludes = false;
  std::vector<std::string> names;
};

// Returns whether |name|, in the syntax of HETCOMM_NIC, matches |nic|.
bool is_named(const Machine& machine, const std::string& name, const Nic& nic);
// Returns the names of all NICs for use in error texts, separated by commas, or "none".
std::string list_nics(const Machine& machine);

class NicRules {
 public:
  // Parses rules. Fails with INVALID_ARGUMENT if a rule names no NIC, if there are two rules for
  // one user, or if the name of a user has an unknown form. The text then identifies the rule.
  static Result<NicRules> parse(std::string_view text);

  // Returns whether |nic| may be used for the accelerator or the NUMA node with the given index. A
  // NIC that is down may not be used. If the rule for the user lists NICs, it allows those and no
  // others. Otherwise the NICs that the rule does not exclude are allowed, but virtual ones only if
  // all physical NICs are down, and bridges never.
  bool allows_accelerator(const Machine& machine, size_t accelerator, const Nic& nic) const;
  bool allows_numa_node(const Machine& machine, size_t numa_node, const Nic& nic) const;

  // Returns whether there is a general rule, which applies to all users without their own rule.
  bool has_general() const { return find("") != nullptr; }
  // Returns the indices in Machine::nics of the NICs that the general rule allows, or that are
  // allowed without a rule if there is no general rule. The NICs are sorted by their position in
  // the rule's list, and then by rate, fastest first.
  std::vector<int> general(const Machine& machine) const;

  // Checks the rules against |machine|. Fails with NOT_FOUND if a name matches no NIC, if a user
  // does not exist, or if a rule allows no NIC. The text then lists the host's NICs, or gives the
  // number of its accelerators and NUMA nodes.
  Status check(const Machine& machine) const;

 private:
  const NicRule* find(std::string_view user) const;
  bool allows(const Machine& machine, const NicRule* rule, const Nic& nic) const;

  std::vector<NicRule> rules_;
};

}  // namespace hetcomm::topology
