// Computes distances and paths between the objects of one host. The functions are pure.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Classes of distance, nearest first. Of NICs with equal capacity, assign_nics() prefers the
// nearest.
enum class Distance : uint8_t {
  kSameSwitch,       // data crosses only PCIe switches or one root port
  kSameRootComplex,  // data crosses one root complex
  kSameNumaNode,     // data crosses between root complexes of one NUMA node
  kOther,            // data crosses between NUMA nodes, or the distance is unknown
};

// The location of an object on a host. It is given by the object's PCI function or, if that is
// kNone, by the NUMA nodes near the object. If both are missing, the location is unknown.
struct Location {
  int function = kNone;
  std::vector<int> numa_nodes;
};
inline Location location_of(const Accelerator& accelerator) {
  return {accelerator.function, accelerator.numa_nodes};
}
// Returns the location of the memory of NUMA node |numa_node|. It has no PCI function, since the
// memory is equally near to all root complexes of the node.
inline Location location_of_memory(int numa_node) { return {kNone, {numa_node}}; }

Distance distance(const Machine& machine, const Location& from, const Location& to);
// Returns the distance to the farthest PCI function of |nic|, since a bond can use any of its
// functions.
Distance distance(const Machine& machine, const Location& from, const Nic& nic);

// The path between an object and a NIC. Paths with equal rates are ordered by the members up to
// |is_other_package|, shortest first.
struct Path {
  Distance distance = Distance::kOther;
  uint32_t bridges = 0;           // number of root ports, switch ports and root complexes
  uint32_t numa_distance = 0;     // the kernel's distance between the NUMA nodes of the two ends
  bool is_other_package = false;  // the ends are known to be in different processor packages
  // The rate of the narrowest PCIe link on the path, or kNotLimited if no rate is known. The
  // object's own link is excluded, because all of its paths share that link, and because the link
  // may report a lower rate while it is idle.
  uint64_t mbit_per_s = kNotLimited;

  static constexpr uint64_t kNotLimited = UINT64_MAX;
  // Compares all members except the rate.
  std::strong_ordering operator<=>(const Path& other) const;
  bool operator==(const Path& other) const { return (*this <=> other) == 0; }
};

// Returns the path from |from| to |nic|. A bond divides its data evenly among its functions. The
// length of its path is that of the path to its farthest function. If only some of the functions
// use a link, the link's rate is scaled up accordingly.
Path path(const Machine& machine, const Location& from, const Nic& nic);

// Returns the text "switch", "root complex", "NUMA node" or "other".
const char* word_of(Distance distance);

// Returns the distance in the notation of `nvidia-smi topo -m`: "PIX" for a path through one
// switch, "PXB" for a path through several switches, or else "PHB", "NODE" or "SYS".
const char* matrix_word(const Machine& machine, const Location& from, const Nic& nic);

}  // namespace hetcomm::topology
