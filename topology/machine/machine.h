// A Machine describes those parts of one host that affect how bytes travel: NUMA nodes, the PCIe
// tree, network interfaces, accelerators and the links between accelerators. It is plain data, and
// every decision in this folder is a pure function of it.
//
// A Machine comes from the live host (live.h), from an hwloc file (hwloc_reader.h) or from JSON
// (machine_json.h). All of them return Machines that have passed check() and normalize(). Every
// process that reads the same source therefore gets an equal Machine, object by object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "topology/machine/pci_address.h"

namespace hetcomm::topology {

// Marks an index that does not exist or is unknown.
inline constexpr int kNone = -1;

struct NumaNode {
  uint32_t number = 0;     // the kernel's number
  int package = kNone;     // number of the processor package
  std::string processors;  // the kernel's list, such as "0-31,64-95"
  uint64_t memory_bytes = 0;
  // The kernel's distance to each node, in the order of Machine::numa_nodes. Empty: unknown.
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
  int parent = kNone;  // index in Machine::pci, less than this object's; kNone: a root complex
  // Indices in Machine::numa_nodes of the nodes near the object. Empty: those near its parent.
  std::vector<int> numa_nodes;
  uint16_t vendor = 0;
  uint16_t device = 0;
  uint16_t device_class = 0;  // class and subclass: 0x0302 is a 3D controller
  uint64_t mbyte_per_s = 0;   // rate of its link towards the root complex; 0: unknown
  bool operator==(const PciNode&) const = default;
};

enum class NicState : uint8_t { kUp, kDown, kUnknown };
enum class NicKind : uint8_t {
  kPhysical,  // a port of a card, or a bond or VLAN over such ports
  kVirtual,   // any other interface, such as the veth of a container, or a dummy
  kBridge,    // a bridge over nothing physical, or the tunnel of a VPN
};

inline constexpr size_t kMaxFabric = 63;  // length of Nic::fabric in bytes

// A Nic is one port to a network. It has the names that sockets and verbs use for the port.
struct Nic {
  std::string interface;    // such as "eth0"; empty: there is none
  std::string rdma_device;  // such as "mlx5_0"; empty: there is none
  uint32_t rdma_port = 0;   // port of |rdma_device|, from 1; 0: there is none
  NicKind kind = NicKind::kPhysical;
  NicState state = NicState::kUnknown;
  uint64_t mbit_per_s = 0;  // 0: unknown
  // Indices in Machine::pci of the functions whose links the NIC's bytes use. A bond has the
  // functions under it. A virtual function has its physical function. Empty: the host hides the
  // functions, or there are none.
  std::vector<int> functions;
  // Indices in Machine::numa_nodes of the nodes near a NIC without functions.
  std::vector<int> numa_nodes;
  std::vector<std::string> subnets;  // such as "192.0.2.0/24", sorted
  // The user's name for the fabric that joins NICs of several hosts. Empty: not set.
  std::string fabric;
  bool operator==(const Nic&) const = default;

  // Returns the name for users and options: "mlx5_0:1", or "eth0" for a NIC without an RDMA device.
  std::string name() const;
  // Returns whether |word| is the interface, the RDMA device, or name().
  bool is_called(std::string_view word) const;
};

struct Accelerator {
  std::string name;  // text for people, such as "NVIDIA 10de:2330"
  PciAddress address;
  int function = kNone;  // index in Machine::pci; kNone: not in the PCIe tree
  // Indices in Machine::numa_nodes of the nodes near an accelerator without a function.
  std::vector<int> numa_nodes;
  bool operator==(const Accelerator&) const = default;
};

// A link between two accelerators that does not use PCIe.
struct AcceleratorLink {
  int first = 0;             // lower index in Machine::accelerators
  int second = 0;            // higher index in Machine::accelerators
  std::string kind;          // such as "NVLink", "xGMI" or "HCCS"
  uint64_t mbyte_per_s = 0;  // rate of one direction, over all lanes; 0: unknown
  bool operator==(const AcceleratorLink&) const = default;
};

struct Machine {
  std::string source;  // origin of the data, as text for people
  std::vector<NumaNode> numa_nodes;
  std::vector<PciNode> pci;
  std::vector<Nic> nics;
  std::vector<Accelerator> accelerators;
  std::vector<AcceleratorLink> links;

  // Returns the index of the PCI object of |kind| at |address|, or kNone.
  int find_pci(const PciAddress& address, PciKind kind = PciKind::kFunction) const;
  // Returns the index of the NIC that |name| names by interface, RDMA device, "device:port" or PCI
  // address, or kNone.
  int find_nic(std::string_view name) const;
  int find_accelerator(const PciAddress& address) const;
};

// Limits above the size of any real host. They bound the cost of reading a hostile file.
inline constexpr size_t kMaxObjects = 4096;  // objects of each kind that has no limit below
inline constexpr size_t kMaxNumaNodes = 256;
inline constexpr size_t kMaxNics = 512;
inline constexpr size_t kMaxAccelerators = 128;
inline constexpr uint64_t kMaxMbitPerS = 1'000'000'000;

// Checks a machine. The text of a failure names the fault: an invalid index, a parent after its
// child, two objects with one name, or too many objects.
Status check(const Machine& machine);
// Sorts everything into the order that all ranks share: NUMA nodes by number, the PCIe tree depth
// first by address, NICs by position in that tree, accelerators by address. |machine| must have
// passed check().
void normalize(Machine& machine);

// Returns the NUMA nodes near a PCI object: its own, or those of its nearest ancestor that has any.
// An empty list means that the nodes are unknown.
const std::vector<int>& numa_nodes_of(const Machine& machine, int pci);

}  // namespace hetcomm::topology
