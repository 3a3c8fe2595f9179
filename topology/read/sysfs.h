// Reads the kernel's description of network interfaces, RDMA devices and PCI functions below /sys.
// The functions that read /sys take its path as |sys|, so that tests can pass their own folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// A network interface in the process's network namespace.
struct Interface {
  std::string name;
  uint32_t index = 0;  // the kernel's number, compared with /sys; 0: not compared
  bool is_running = false;
  std::vector<std::string> subnets;
};

// Returns this process's interfaces except loopback, sorted by name, or none if they cannot be
// listed.
std::vector<Interface> list_interfaces();

// Reads the NUMA nodes, and the PCIe tree above network cards, RDMA devices and accelerators, to
// the extent that |sys| shows them. Does not read NICs. Takes about as long as reading a hundred
// files.
Machine read_pci_tree(const std::string& sys);

// Removes accelerators that are virtual functions, since their data uses the physical function's
// link. Keeps at most kMaxAccelerators of the others.
void drop_virtual_accelerators(const std::string& sys, Machine& machine);

// Replaces the NICs of |machine| with those that |sys| shows for |interfaces| and the RDMA devices.
// An interface that has joined a bond or a bridge is left out unless it has an RDMA device.
// Nic::functions contains only functions that are in |machine|.
void read_nics(const std::string& sys, const std::vector<Interface>& interfaces, Machine& machine);

// Returns whether the host has RDMA devices or several NUMA nodes. Otherwise the placement of
// memory and threads within the host does not matter.
bool has_locations(const std::string& sys);

// Reads the machine for a rank without accelerators and without a choice of NIC: the only interface
// that is running, if there is one, and the objects above it in the PCIe tree. Reads fewer files
// than read_pci_tree(). Returns nothing if has_locations() is true, if several interfaces are
// running, if a NIC or an interface with addresses (other than a bridge) is down, or if the running
// one is stacked over others.
std::optional<Machine> read_only_nic(const std::string& sys,
                                     const std::vector<Interface>& interfaces);

}  // namespace hetcomm::topology
