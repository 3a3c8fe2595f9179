// HETCOMM_NIC: says which NICs may be used.
//
//   mlx5_0,eth*                      only these
//   ^eth3,docker*                    all but these
//   ^eth3|acc2=mlx5_2,mlx5_3         all but one, and accelerator 2 uses these two only
//   0000:3b:00.0=^mlx5_1|numa0=eth0  rules for the accelerator at an address, and for host memory
//
// A NIC is named by interface, RDMA device, "device:port" or PCI address. A '*' at the end matches
// any ending. A rule for one user replaces the general rule.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

struct NicRule {
  std::string user;  // "acc2", a PCI address or "numa0"; empty: all users without their own rule
  bool excludes = false;
  std::vector<std::string> names;
};

// Whether |name|, in the syntax of HETCOMM_NIC, matches |nic|.
bool is_named(const Machine& machine, const std::string& name, const Nic& nic);
// Returns the names of all NICs for texts, or "none" if there are none.
std::string list_nics(const Machine& machine);

class NicRules {
 public:
  // Parses rules. INVALID_ARGUMENT: a rule has no name, a user has a second rule, or a user has an
  // unknown form. The text names the entry.
  static Result<NicRules> parse(std::string_view text);

  // Whether |nic| may be used for the accelerator, or the NUMA node, with that index. Without a
  // rule, a NIC must be up and physical, or virtual if no physical NIC is up. A NIC that a rule
  // names may be a bridge, but must be up as well.
  bool allows_accelerator(const Machine& machine, size_t accelerator, const Nic& nic) const;
  bool allows_numa_node(const Machine& machine, size_t numa_node, const Nic& nic) const;

  // Whether there is a rule for users without their own rule.
  bool has_general() const { return find("") != nullptr; }
  // Returns the NICs that all users may use, in the order of the general rule's list, else fastest
  // first.
  std::vector<int> general(const Machine& machine) const;

  // Checks the rules. NOT_FOUND: a name matches no NIC, a user does not exist, or a list leaves a
  // user no NIC although there are some. The text lists the available names.
  Status check(const Machine& machine) const;

 private:
  const NicRule* find(std::string_view user) const;
  bool allows(const Machine& machine, const NicRule* rule, const Nic& nic) const;

  std::vector<NicRule> rules_;
};

}  // namespace hetcomm::topology
