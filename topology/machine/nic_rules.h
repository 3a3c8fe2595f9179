// NicRules holds the rules in HETCOMM_NIC, which say which NICs may be used.
//
//   mlx5_0,eth*                      only these
//   ^eth3,docker*                    all but these
//   ^eth3|acc2=mlx5_2,mlx5_3         all but one, and accelerator 2 uses these two only
//   0000:3b:00.0=^mlx5_1|numa0=eth0  rules for the accelerator at an address, and for host memory
//
// A NIC is named by interface, RDMA device, "device:port" or PCI address. A '*' at the end matches
// any ending. A rule for one user (an accelerator or a NUMA node) replaces the general rule for
// that user.
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

// Returns whether |name|, in the syntax of HETCOMM_NIC, matches |nic|.
bool is_named(const Machine& machine, const std::string& name, const Nic& nic);
// Returns the names of all NICs as a list for error texts, or "none".
std::string list_nics(const Machine& machine);

class NicRules {
 public:
  // Parses rules. INVALID_ARGUMENT: a rule names no NIC, a user has a second rule, or a user is
  // named in an unknown form. The text names the entry.
  static Result<NicRules> parse(std::string_view text);

  // Returns whether |nic| may be used for the accelerator, or the NUMA node, with the given index.
  // A NIC that is down may not be used. A rule that lists NICs allows those and no others. Without
  // such a rule, a NIC that no rule excludes may be used if it is physical, or if it is virtual and
  // no physical NIC is up.
  bool allows_accelerator(const Machine& machine, size_t accelerator, const Nic& nic) const;
  bool allows_numa_node(const Machine& machine, size_t numa_node, const Nic& nic) const;

  // Returns whether there is a general rule: one for all users without a rule of their own.
  bool has_general() const { return find("") != nullptr; }
  // Returns the indices in Machine::nics of the NICs that the general rule allows. If there is no
  // general rule, returns the NICs that may be used without a rule. The NICs are in the order of
  // the rule's list, then fastest first.
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
