// The machine that one context uses, and the NICs for its data. The machine is the live host or the
// file in HETCOMM_TOPOLOGY, with the rules in HETCOMM_NIC and the fabrics in HETCOMM_FABRIC. It is
// read on first use.
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
  std::vector<int> own_accelerators;  // the context's, as indices of Machine::accelerators
  NicRules rules;
  Affinity affinity;
};

class HostTopology {
 public:
  // Both arguments must outlive this object.
  HostTopology(const Config& config, Log& log) : config_(config), log_(log) {}
  HostTopology(const HostTopology&) = delete;
  HostTopology& operator=(const HostTopology&) = delete;

  // Registers a device of the context at a PCI address. The device then counts as an accelerator of
  // the machine, even if its PCI class is another one, or the tree is hidden. Later calls of view()
  // include it. [any-thread]
  void add_device(const PciAddress& address, std::string name);

  // Returns the devices that view() includes although the tree does not show them as accelerators:
  // those in this context and those from learn(). Other ranks on the host learn of them only from
  // here. Sorted. [any-thread]
  std::vector<PciAddress> hidden_devices();
  // Registers devices that ranks on this host have at |addresses|. Later calls of view() include
  // them. Returns whether any of them is new. [any-thread]
  bool learn(const std::vector<PciAddress>& addresses);

  // Returns the view, which lives as long as this object. The first call takes up to about 20 ms;
  // later calls return the same result. A file that does not match the live host is reported in the
  // log and ignored, unless HETCOMM_TOPOLOGY_TRUST is on. Fails if a file cannot be read, or if
  // HETCOMM_NIC or HETCOMM_FABRIC names something that does not exist. [any-thread]
  Result<const HostView*> view();

  // Returns view(), except that a context without a choice (no device, and at most one NIC) gets no
  // accelerators that it does not use and no NICs that are down. This takes a tenth of the time.
  // [any-thread]
  Result<const HostView*> own_view();

  // Whether view() can affect communication between ranks on this host. False if no variable
  // requests it, the context has no device at a known place, and the host is plain as defined in
  // live.h. Reads two files. [any-thread]
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
  Machine machine_;  // as read, without devices that the tree does not show
  std::set<PciAddress> learned_;
  std::set<PciAddress> hidden_;
  std::deque<HostView> views_;  // the last one is current
  std::once_flag own_once_;
  bool has_only_nic_ = false;
  HostView only_nic_;  // own_view(), if |has_only_nic_|
};

}  // namespace hetcomm::topology
