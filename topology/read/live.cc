#include "topology/read/live.h"

#include <algorithm>

#include "topology/read/hwloc_reader.h"
#include "topology/read/sysfs.h"

namespace hetcomm::topology {
namespace {

bool has_a_choice(const Machine& machine) {
  const auto usable = [](const Nic& nic) {
    return nic.kind == NicKind::kPhysical && nic.state != NicState::kDown;
  };
  return !machine.accelerators.empty() ||
         std::count_if(machine.nics.begin(), machine.nics.end(), usable) > 1;
}

}  // namespace

Result<Machine> read_live_machine(const std::string& sys) {
  const std::vector<Interface> interfaces = list_interfaces();
  Machine machine = read_pci_tree(sys);
  machine.source = "this host";
  read_nics(sys, interfaces, machine);
  if (has_a_choice(machine)) {
    if (Result<Machine> by_hwloc = read_live_by_hwloc(); by_hwloc.ok()) {
      machine = std::move(by_hwloc).value();
      drop_virtual_accelerators(sys, machine);
      read_nics(sys, interfaces, machine);
    }
  }
  HETCOMM_RETURN_IF_ERROR(check(machine));
  normalize(machine);
  return machine;
}

bool is_live_host_plain(const std::string& sys) { return !has_locations(sys); }

std::optional<Machine> read_live_nic(const std::string& sys) {
  std::optional<Machine> machine = read_only_nic(sys, list_interfaces());
  if (!machine) return std::nullopt;
  machine->source = "this host";
  if (!check(*machine).ok()) return std::nullopt;
  normalize(*machine);
  return machine;
}

}  // namespace hetcomm::topology
