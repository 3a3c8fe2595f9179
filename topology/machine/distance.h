// Computes the distance between two objects of one host. The functions are pure.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Classes of distance, nearest first. They decide the affinity of NICs.
enum class Distance : uint8_t {
  kSameSwitch,       // bytes pass through PCIe switches only, or through one root port
  kSameRootComplex,  // bytes pass through one root complex
  kSameNumaNode,     // bytes pass between root complexes of one NUMA node
  kOther,            // bytes pass between NUMA nodes, or the distance is unknown
};

// The location of an object on a host: its PCI function, or else the NUMA nodes near it. With
// neither, the location is unknown.
struct Location {
  int function = kNone;
  std::vector<int> numa_nodes;
};
inline Location location_of(const Accelerator& accelerator) {
  return {accelerator.function, accelerator.numa_nodes};
}
// Returns the location of one NUMA node's memory, which is equally near to every root complex of
// the node.
inline Location location_of_memory(int numa_node) { return {kNone, {numa_node}}; }

Distance distance(const Machine& machine, const Location& from, const Location& to);
// Returns the largest distance to a function that carries |nic|, since a bond may use any of its
// functions.
Distance distance(const Machine& machine, const Location& from, const Nic& nic);

// The path between an object and a NIC. The members up to |is_other_package| order paths that carry
// equally much, shortest first.
struct Path {
  Distance distance = Distance::kOther;
  uint32_t bridges = 0;           // root ports, ports of switches and root complexes on the path
  uint32_t numa_distance = 0;     // the kernel's distance between the nodes of both ends
  bool is_other_package = false;  // both ends are known to be in different processor packages
  // The rate of the narrowest PCIe link that only some of the object's paths use; kNotLimited: none
  // is known. The object's own link is on all of its paths, and may be slow while it is idle.
  uint64_t mbit_per_s = kNotLimited;

  static constexpr uint64_t kNotLimited = UINT64_MAX;
  // Orders by all members but the rate.
  std::strong_ordering operator<=>(const Path& other) const;
  bool operator==(const Path& other) const { return (*this <=> other) == 0; }
};

// Returns the path from |from| to |nic|. The bytes of a bond are divided evenly among its
// functions, so its path is as long as the longest one, and a link limits only those bytes that
// cross it.
Path path(const Machine& machine, const Location& from, const Nic& nic);

// Returns "switch", "root complex", "NUMA node" or "other".
const char* word_of(Distance distance);

// Returns the distance as the word that `nvidia-smi topo -m` uses: "PIX" below one switch, "PXB"
// below several switches in a row, "PHB", "NODE" or "SYS".
const char* matrix_word(const Machine& machine, const Location& from, const Nic& nic);

}  // namespace hetcomm::topology
