// Provides the machine that one context uses, and the NICs for its data. The machine is the live
// host, or the one in the file that HETCOMM_TOPOLOGY names, with the rules in HETCOMM_NIC and the
// fabrics in HETCOMM_FABRIC. It is read on first use.
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
  std::vector<int> own_accelerators;  // indices in Machine::accelerators of the context's devices
  NicRules rules;
  Affinity affinity;
};

class HostTopology {
 public:
  // Both arguments must outlive this object.
  HostTopology(const Config& config, Log& log) : config_(config), log_(log) {}
  HostTopology(const HostTopology&) = delete;
  HostTopology& operator=(const HostTopology&) = delete;

  // Registers a device of the context by its PCI address. Later calls of view() show it as an
  // accelerator, even if it has another PCI class or the host hides the PCIe tree. [any-thread]
  void add_device(const PciAddress& address, std::string name);

  // Returns the sorted addresses of the devices that view() includes although the PCIe tree does
  // not show them as accelerators: those of this context and those from learn(). Other ranks on the
  // host do not know them unless this rank sends them. [any-thread]
  std::vector<PciAddress> hidden_devices();
  // Registers devices at |addresses|, which other ranks on this host have. Later calls of view()
  // include them. Returns whether any of them is new. [any-thread]
  bool learn(const std::vector<PciAddress>& addresses);

  // Returns the view, which is valid as long as this object. The first call takes up to about 20
  // ms. Later calls return the same view unless add_device() or learn() has registered a device. A
  // file that does not match the live host is reported in the log and ignored, unless
  // HETCOMM_TOPOLOGY_TRUST is on. Fails if a file cannot be read, or if HETCOMM_NIC or
  // HETCOMM_FABRIC names something that does not exist. [any-thread]
  Result<const HostView*> view();

  // Returns view(), or a smaller view if the context has no choice of NIC. This is so if it has no
  // device, if none of HETCOMM_TOPOLOGY, HETCOMM_NIC and HETCOMM_FABRIC is set, and if
  // read_live_nic() (live.h) returns a machine. The smaller view has no accelerators, and no NICs
  // that are down. Reading it takes a tenth of the time. [any-thread]
  Result<const HostView*> own_view();

  // Returns whether view() can affect communication between ranks on this host. Returns false if
  // none of HETCOMM_TOPOLOGY, HETCOMM_NIC and HETCOMM_FABRIC is set, add_device() was not called,
  // and is_live_host_plain() is true. Reads up to two files. [any-thread]
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
  // The following are guarded by |mutex_|:
  std::vector<Accelerator> devices_;  // registered by add_device(), with name and address only
  bool is_read_ = false;
  Status failure_;
  Machine machine_;  // as read: it lacks devices from add_device() and learn()
  std::set<PciAddress> learned_;
  std::set<PciAddress> hidden_;
  std::deque<HostView> views_;  // the last one is current; callers may hold the others
  // The following are written once, under |own_once_|:
  std::once_flag own_once_;
  bool has_only_nic_ = false;
  HostView only_nic_;  // result of own_view() if |has_only_nic_|
};

}  // namespace hetcomm::topology
