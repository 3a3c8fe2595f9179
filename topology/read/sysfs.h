// Reads what the kernel tells of network interfaces, RDMA devices and PCI functions below /sys.
// Every function takes the folder, so that a test can give one that it has made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// A network interface, as the process's network namespace has it.
struct Interface {
  std::string name;
  uint32_t index = 0;  // the kernel's number; 0: not compared with the file's
  bool is_running = false;
  std::vector<std::string> subnets;
};

// The interfaces of this process but loopback, by name.
std::vector<Interface> list_interfaces();

// Reads the PCIe tree above the network cards, RDMA devices and accelerators, and the NUMA nodes,
// as far as |sys| shows them. Has no NICs. It takes about as long as reading a hundred files.
Machine read_pci_tree(const std::string& sys);

// Takes away accelerators that are virtual functions: their data goes by the physical one's link.
void drop_virtual_accelerators(const std::string& sys, Machine& machine);

// Replaces the NICs of |machine| by what |sys| says of |interfaces| and of the RDMA devices.
// Interfaces that belong to a bond or a bridge and have no RDMA device are left to it. Functions
// that |machine| does not have are not named.
void read_nics(const std::string& sys, const std::vector<Interface>& interfaces, Machine& machine);

// Places within the host can matter: it has RDMA devices, or several NUMA nodes.
bool has_places(const std::string& sys);

// The machine as a rank without accelerators sees it where it has nothing to choose: its only NIC
// that is up, if there is one, and what is above that. It reads fewer files than read_pci_tree().
// Returns nothing where has_places() is true, and for several running interfaces, a NIC or an
// interface with addresses that is down, or an interface that lies over others.
std::optional<Machine> read_only_nic(const std::string& sys,
                                     const std::vector<Interface>& interfaces);

}  // namespace hetcomm::topology
