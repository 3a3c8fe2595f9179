#include "topology/read/host_topology.h"

#include <optional>
#include <utility>

#include "src/base/text.h"
#include "topology/machine/fabrics.h"
#include "topology/read/live.h"
#include "topology/read/machine_file.h"
#include "topology/read/variables.h"

namespace hetcomm::topology {

void HostTopology::add_device(const PciAddress& address, std::string name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Accelerator& device = devices_.emplace_back();
  device.address = address;
  device.name = std::move(name);
  has_devices_.store(true, std::memory_order_release);
  if (is_read_ && failure_.ok()) failure_ = make_view(machine_);
}

Result<const HostView*> HostTopology::view() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_read_) failure_ = read();
  is_read_ = true;
  if (!failure_.ok()) return failure_;
  return &views_.back();
}

std::vector<PciAddress> HostTopology::hidden_devices() {
  if (has_devices_.load(std::memory_order_acquire)) static_cast<void>(view());
  const std::lock_guard<std::mutex> lock(mutex_);
  std::set<PciAddress> all = learned_;
  all.insert(hidden_.begin(), hidden_.end());
  return {all.begin(), all.end()};
}

bool HostTopology::learn(const std::vector<PciAddress>& addresses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t before = learned_.size();
  learned_.insert(addresses.begin(), addresses.end());
  if (learned_.size() == before) return false;
  if (is_read_ && failure_.ok()) failure_ = make_view(machine_);
  return true;
}

Result<const HostView*> HostTopology::own_view() {
  std::call_once(own_once_, [this] { has_only_nic_ = read_only_nic(); });
  if (has_only_nic_ && !is_asked_for()) return &only_nic_;
  return view();
}

bool HostTopology::is_asked_for() const {
  return has_devices_.load(std::memory_order_acquire) ||
         !config_.text(variable::kTopology).empty() || !config_.text(variable::kNic).empty() ||
         !config_.text(variable::kFabric).empty();
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
  machine_ = std::move(machine).value();
  return make_view(machine_);
}

Status HostTopology::make_view(Machine machine) {
  for (const Accelerator& device : devices_) add_device(device, machine);
  for (const PciAddress& address : learned_) {
    Accelerator device;
    device.address = address;
    device.name = "device of another rank";
    add_device(device, machine);
  }
  HETCOMM_RETURN_IF_ERROR(check(machine));
  normalize(machine);
  HETCOMM_RETURN_IF_ERROR(declare_fabrics(config_.text(variable::kFabric), machine));
  Result<NicRules> rules = NicRules::parse(config_.text(variable::kNic));
  if (!rules.ok()) return rules.status();
  HETCOMM_RETURN_IF_ERROR(rules->check(machine));
  HostView& view = views_.emplace_back();
  view.machine = std::move(machine);
  view.rules = std::move(rules).value();
  for (const Accelerator& device : devices_) {
    view.own_accelerators.push_back(view.machine.find_accelerator(device.address));
  }
  view.affinity = assign_nics(view.machine, view.rules);
  return {};
}

void HostTopology::add_device(const Accelerator& device, Machine& machine) {
  if (machine.find_accelerator(device.address) != kNone) return;
  hidden_.insert(device.address);
  machine.accelerators.push_back(device);
  machine.accelerators.back().function = machine.find_pci(device.address);
}

Result<Machine> HostTopology::choose_machine() {
  const std::string path(config_.text(variable::kTopology));
  if (path.empty()) return read_live_machine();
  Result<Machine> file = read_machine_file(path);
  if (!file.ok()) return file.status().annotate("HETCOMM_TOPOLOGY");
  if (config_.is_on(variable::kTopologyTrust)) return file;
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
