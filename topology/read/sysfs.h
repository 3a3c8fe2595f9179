// Reads the kernel's description of network interfaces, RDMA devices and PCI functions below /sys.
// Every function takes the folder as a parameter, so that tests can pass their own.
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
  uint32_t index = 0;  // the kernel's number; 0: not compared with the file's
  bool is_running = false;
  std::vector<std::string> subnets;
};

// Returns this process's interfaces except loopback, sorted by name.
std::vector<Interface> list_interfaces();

// Reads the PCIe tree above the network cards, RDMA devices and accelerators, and the NUMA nodes,
// as far as |sys| shows them. Does not read NICs. Takes about as long as reading a hundred files.
Machine read_pci_tree(const std::string& sys);

// Removes accelerators that are virtual functions: their data uses the physical function's link.
void drop_virtual_accelerators(const std::string& sys, Machine& machine);

// Replaces the NICs of |machine| by those that |sys| shows for |interfaces| and the RDMA devices.
// An interface of a bond or a bridge is left out unless it has an RDMA device. Functions that
// |machine| lacks are not included.
void read_nics(const std::string& sys, const std::vector<Interface>& interfaces, Machine& machine);

// Whether placement within the host can matter: the host has RDMA devices or several NUMA nodes.
bool has_places(const std::string& sys);

// Reads the machine for a rank without accelerators and without a choice: the only NIC that is up,
// if there is one, and the objects above that NIC. Reads fewer files than read_pci_tree(). Returns
// nothing if has_places() is true, if several interfaces are running, if a NIC or an interface with
// addresses is down, or if an interface is stacked over others.
std::optional<Machine> read_only_nic(const std::string& sys,
                                     const std::vector<Interface>& interfaces);

}  // namespace hetcomm::topology
