// A Machine describes the parts of one host that affect data transfers: NUMA nodes, the PCIe tree,
// network interfaces, accelerators and the links between accelerators. It is plain data. The
// functions in this folder that make decisions from it are pure.
//
// A Machine is read from the live host (live.h), from an hwloc file (hwloc_reader.h) or from JSON
// (machine_json.h). The readers call check() and normalize() before they return a Machine, so all
// processes that read the same source get equal Machines with all objects in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "topology/machine/pci_address.h"

namespace hetcomm::topology {

// An index that does not exist or is unknown.
inline constexpr int kNone = -1;

struct NumaNode {
  uint32_t number = 0;     // the kernel's number
  int package = kNone;     // number of the processor package
  std::string processors;  // list in the kernel's format, such as "0-31,64-95"
  uint64_t memory_bytes = 0;
  // The kernel's distance to each node, in the order of Machine::numa_nodes. Empty if unknown.
  std::vector<uint32_t> distances;
  bool operator==(const NumaNode&) const = default;
};

enum class PciKind : uint8_t {
  kRootComplex,  // a host bridge; |address| is the address of its first bus
  kBridge,       // a root port, or a port of a switch
  kFunction,     // a device, such as a NIC or an accelerator
};

struct PciNode {
  PciKind kind = PciKind::kFunction;
  PciAddress address;
  int parent = kNone;  // index in Machine::pci, less than this node's index; kNone: a root complex
  // Indices in Machine::numa_nodes of the nodes near this object. If empty, the nodes near the
  // parent apply.
  std::vector<int> numa_nodes;
  uint16_t vendor = 0;
  uint16_t device = 0;
  uint16_t device_class = 0;  // class and subclass: 0x0302 is a 3D controller
  uint64_t mbyte_per_s = 0;   // rate that the object reports for its PCIe link; 0: unknown
  bool operator==(const PciNode&) const = default;
};

enum class NicState : uint8_t { kUp, kDown, kUnknown };
enum class NicKind : uint8_t {
  kPhysical,  // a port of a card, or a bond or VLAN over such ports
  kVirtual,   // any other interface, such as the veth of a container, or a dummy interface
  kBridge,    // a bridge without physical ports, or a tunnel, such as that of a VPN
};

inline constexpr size_t kMaxFabric = 63;  // maximum length of Nic::fabric in bytes

// A Nic is one port to a network. The socket API identifies the port by |interface|, and verbs
// identify it by |rdma_device| and |rdma_port|.
struct Nic {
  std::string interface;    // such as "eth0"; empty: the port has no interface
  std::string rdma_device;  // such as "mlx5_0"; empty: the port has no RDMA device
  uint32_t rdma_port = 0;   // port number of |rdma_device|, from 1; 0: no RDMA device
  NicKind kind = NicKind::kPhysical;
  NicState state = NicState::kUnknown;
  uint64_t mbit_per_s = 0;  // 0: unknown
  // Indices in Machine::pci of the functions that carry the NIC's data. For a bond, these are the
  // functions of all its members. For a virtual function, this is its physical function. Empty if
  // the NIC has no PCI function, or the host hides it.
  std::vector<int> functions;
  // Indices in Machine::numa_nodes of the nodes near the NIC. Used only if |functions| is empty.
  std::vector<int> numa_nodes;
  std::vector<std::string> subnets;  // such as "192.0.2.0/24", sorted
  // The user's name for the network that connects the NIC to other hosts. Empty if not set.
  std::string fabric;
  bool operator==(const Nic&) const = default;

  // Returns the name for users, such as "mlx5_0:1", or "eth0" if there is no RDMA device.
  std::string name() const;
  // Returns whether |word| equals |interface|, |rdma_device| or name().
  bool is_called(std::string_view word) const;
};

struct Accelerator {
  std::string name;  // human-readable, such as "NVIDIA 10de:2330"
  PciAddress address;
  int function = kNone;  // index in Machine::pci; kNone: not in the PCIe tree
  // Indices in Machine::numa_nodes of the NUMA nodes near the accelerator. Used only if |function|
  // is kNone.
  std::vector<int> numa_nodes;
  bool operator==(const Accelerator&) const = default;
};

// A direct link between two accelerators, separate from PCIe.
struct AcceleratorLink {
  int first = 0;             // lower index in Machine::accelerators
  int second = 0;            // higher index in Machine::accelerators
  std::string kind;          // such as "NVLink", "xGMI" or "HCCS"
  uint64_t mbyte_per_s = 0;  // total rate of all lanes in one direction; 0: unknown
  bool operator==(const AcceleratorLink&) const = default;
};

struct Machine {
  std::string source;  // human-readable origin of the data
  std::vector<NumaNode> numa_nodes;
  std::vector<PciNode> pci;
  std::vector<Nic> nics;
  std::vector<Accelerator> accelerators;
  std::vector<AcceleratorLink> links;

  // Returns the index of the PCI object of |kind| at |address|, or kNone.
  int find_pci(const PciAddress& address, PciKind kind = PciKind::kFunction) const;
  // Returns the index of the first NIC that matches |name|, or kNone. |name| can be an interface,
  // an RDMA device, "device:port" or a PCI address.
  int find_nic(std::string_view name) const;
  int find_accelerator(const PciAddress& address) const;
};

// These limits exceed the size of any real host. They bound the cost of reading a hostile file.
inline constexpr size_t kMaxObjects = 4096;  // PCI objects, and also links between accelerators
inline constexpr size_t kMaxNumaNodes = 256;
inline constexpr size_t kMaxNics = 512;
inline constexpr size_t kMaxAccelerators = 128;
inline constexpr uint64_t kMaxMbitPerS = 1'000'000'000;

// Checks that |machine| is consistent. Fails with INVALID_ARGUMENT and a text that names the fault,
// such as an invalid index, a parent after its child, two objects with the same name, or too many
// objects.
Status check(const Machine& machine);
// Sorts all objects into a canonical order: NUMA nodes by number, the PCIe tree depth first by
// address, NICs by position in that tree, accelerators by address. |machine| must have passed
// check().
void normalize(Machine& machine);

// Returns the indices in Machine::numa_nodes of the NUMA nodes near the PCI object with index
// |pci|. If the object lists none, uses those of its nearest ancestor that does. The list is empty
// if the NUMA nodes are unknown.
const std::vector<int>& numa_nodes_of(const Machine& machine, int pci);

}  // namespace hetcomm::topology
