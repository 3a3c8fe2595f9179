#include "topology/host_topology.h"

#include <optional>
#include <utility>

#include "src/base/text.h"
#include "topology/fabrics.h"
#include "topology/live.h"
#include "topology/machine_file.h"

namespace hetcomm::topology {

void HostTopology::add_device(const PciAddress& address, std::string name) {
  Accelerator& device = devices_.emplace_back();
  device.address = address;
  device.name = std::move(name);
}

Result<const HostView*> HostTopology::view() {
  std::call_once(once_, [this] { failure_ = read(); });
  if (!failure_.ok()) return failure_;
  return &view_;
}

Result<const HostView*> HostTopology::own_view() {
  std::call_once(own_once_, [this] { has_only_nic_ = read_only_nic(); });
  if (has_only_nic_) return &only_nic_;
  return view();
}

bool HostTopology::is_asked_for() const {
  return !devices_.empty() || !config_.text(Variable::kTopology).empty() ||
         !config_.text(Variable::kNic).empty() || !config_.text(Variable::kFabric).empty();
}

bool HostTopology::matters_within_host() const { return is_asked_for() || !is_live_host_plain(); }

bool HostTopology::read_only_nic() {
  if (is_asked_for()) return false;
  std::optional<Machine> machine = read_live_nic();
  if (!machine) return false;
  only_nic_.machine = *std::move(machine);
  only_nic_.affinity = assign_nics(only_nic_.machine, only_nic_.rules);
  return true;
}

Status HostTopology::read() {
  Result<Machine> machine = choose_machine();
  if (!machine.ok()) return machine.status();
  HETCOMM_RETURN_IF_ERROR(add_devices(*machine));
  HETCOMM_RETURN_IF_ERROR(declare_fabrics(config_.text(Variable::kFabric), *machine));
  Result<NicRules> rules = NicRules::parse(config_.text(Variable::kNic));
  if (!rules.ok()) return rules.status();
  HETCOMM_RETURN_IF_ERROR(rules->check(*machine));
  view_.machine = std::move(machine).value();
  view_.rules = std::move(rules).value();
  for (const Accelerator& device : devices_) {
    view_.own_accelerators.push_back(view_.machine.find_accelerator(device.address));
  }
  view_.affinity = assign_nics(view_.machine, view_.rules);
  return {};
}

Status HostTopology::add_devices(Machine& machine) const {
  for (const Accelerator& device : devices_) {
    if (machine.find_accelerator(device.address) != kNone) continue;
    machine.accelerators.push_back(device);
    machine.accelerators.back().function = machine.find_pci(device.address);
  }
  HETCOMM_RETURN_IF_ERROR(check(machine));
  normalize(machine);
  return {};
}

Result<Machine> HostTopology::choose_machine() {
  const std::string path(config_.text(Variable::kTopology));
  if (path.empty()) return read_live_machine();
  Result<Machine> file = read_machine_file(path);
  if (!file.ok()) return file.status().annotate("HETCOMM_TOPOLOGY");
  if (config_.is_on(Variable::kTopologyTrust)) return file;
  Result<Machine> live = read_live_machine();
  if (!live.ok()) return live;
  const std::string difference = disagreement(*file, *live);
  if (difference.empty()) return file;
  log_.warn(
      "HETCOMM_TOPOLOGY: {} is not used: {}. HETCOMM_TOPOLOGY_TRUST=on makes the file count all "
      "the "
      "same",
      printable(path), difference);
  return live;
}

}  // namespace hetcomm::topology
