// The machine that one context goes by, and which NICs its data uses. The machine is the live host
// or the file of HETCOMM_TOPOLOGY, with the rules of HETCOMM_NIC and the fabrics of HETCOMM_FABRIC.
// It is read when somebody first asks.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"
#include "topology/machine/nic_rules.h"
#include "topology/machine/pci_address.h"

namespace hetcomm::topology {

struct HostView {
  Machine machine;
  std::vector<int> own_accelerators;  // of the context, as indices of Machine::accelerators
  NicRules rules;
  Affinity affinity;
};

class HostTopology {
 public:
  // Both outlive this object.
  HostTopology(const Config& config, Log& log) : config_(config), log_(log) {}
  HostTopology(const HostTopology&) = delete;
  HostTopology& operator=(const HostTopology&) = delete;

  // A device of the context says that it is at a PCI address. It is an accelerator of the machine
  // then, even if its PCI class is not that of one, or the tree is hidden: view() counts it from
  // now on. [any-thread]
  void add_device(const PciAddress& address, std::string name);

  // Devices that view() counts although the tree does not show them as accelerators: those of this
  // context, and what learn() has told. Other ranks of the host do not see them by themselves. In
  // order. [any-thread]
  std::vector<PciAddress> hidden_devices();
  // Ranks of this host have devices at |addresses|: view() counts them from now on. Returns whether
  // that is news. [any-thread]
  bool learn(const std::vector<PciAddress>& addresses);

  // The view, which lives as long as this object. The first call takes up to some 20 ms; others
  // return what it has found. A file that does not fit the live host is reported in the log and not
  // used, unless HETCOMM_TOPOLOGY_TRUST says so. Fails for a file that cannot be read, and for
  // HETCOMM_NIC and HETCOMM_FABRIC where they name what is not there. [any-thread]
  Result<const HostView*> view();

  // As view(), but without accelerators that the context does not use, and without NICs that are
  // down, where the context has nothing to choose: it has no device, and one NIC at most. This
  // takes a tenth of the time. [any-thread]
  Result<const HostView*> own_view();

  // False where view() cannot change what ranks of this host alone do with each other: no variable
  // asks for it, the context has no device at a known place, and the host is plain, as live.h says.
  // Reads two files. [any-thread]
  bool matters_within_host() const;

 private:
  bool is_asked_for() const;
  Status read();
  Status make_view(Machine machine);
  bool read_only_nic();
  Result<Machine> choose_machine();
  void add_device(const Accelerator& device, Machine& machine);

  const Config& config_;
  Log& log_;
  std::atomic<bool> has_devices_{false};
  std::mutex mutex_;
  // Under |mutex_|:
  std::vector<Accelerator> devices_;  // name and address
  bool is_read_ = false;
  Status failure_;
  Machine machine_;  // as it is read, without devices that the tree does not show
  std::set<PciAddress> learned_;
  std::set<PciAddress> hidden_;
  std::deque<HostView> views_;  // the last one counts
  std::once_flag own_once_;
  bool has_only_nic_ = false;
  HostView only_nic_;  // own_view(), if |has_only_nic_|
};

}  // namespace hetcomm::topology
