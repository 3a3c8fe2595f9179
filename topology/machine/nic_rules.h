// Which NICs may be used: HETCOMM_NIC.
//
//   mlx5_0,eth*                      only these
//   ^eth3,docker*                    all but these
//   ^eth3|acc2=mlx5_2,mlx5_3         all but one, and accelerator 2 uses these two only
//   0000:3b:00.0=^mlx5_1|numa0=eth0  rules for the accelerator at an address, and for host memory
//
// A NIC is named by interface, RDMA device, "device:port" or PCI address; a '*' at the end matches
// what begins so. A rule for one user replaces the general rule.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

struct NicRule {
  std::string user;  // "acc2", a PCI address or "numa0"; empty: everybody without a rule of its own
  bool excludes = false;
  std::vector<std::string> names;
};

// Whether |name|, as HETCOMM_NIC writes it, means |nic|.
bool is_named(const Machine& machine, const std::string& name, const Nic& nic);
// The names of all NICs, for texts; "none" where there are none.
std::string list_nics(const Machine& machine);

class NicRules {
 public:
  // INVALID_ARGUMENT, naming the entry, for a rule without a name, a second one for the same user,
  // or a user that is none of the above.
  static Result<NicRules> parse(std::string_view text);

  // Whether |nic| may be used for the accelerator, or the NUMA node, of that index. Without a rule
  // that is: it is up, and physical; where no such NIC is there, virtual. A NIC that is named may
  // be a bridge, but has to be up as well.
  bool allows_accelerator(const Machine& machine, size_t accelerator, const Nic& nic) const;
  bool allows_numa_node(const Machine& machine, size_t numa_node, const Nic& nic) const;

  // There is a rule for everybody without a rule of its own.
  bool has_general() const { return find("") != nullptr; }
  // The NICs that everybody may use: those of a list in its order, else the fastest first.
  std::vector<int> general(const Machine& machine) const;

  // NOT_FOUND, with what there is, for a name that matches no NIC, a user that is not there, or a
  // list that leaves nobody a NIC although there are some.
  Status check(const Machine& machine) const;

 private:
  const NicRule* find(std::string_view user) const;
  bool allows(const Machine& machine, const NicRule* rule, const Nic& nic) const;

  std::vector<NicRule> rules_;
};

}  // namespace hetcomm::topology
