// How far apart two things of one host lie. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Classes of distance, nearest first. The affinity of NICs goes by them.
enum class Distance : uint8_t {
  kSameSwitch,       // bytes between the two pass PCIe switches or one root port only
  kSameRootComplex,  // they pass the root complex
  kSameNumaNode,     // they pass from one root complex to another of the same NUMA node
  kOther,            // they pass from one NUMA node to another, or nobody knows
};

// Where something of a host is: at a PCI function, or else only near some NUMA nodes, or nobody
// knows.
struct Place {
  int function = kNone;
  std::vector<int> numa_nodes;
};
inline Place place_of(const Accelerator& accelerator) {
  return {accelerator.function, accelerator.numa_nodes};
}
// Memory of one NUMA node. Every root complex of the node is as near to it.
inline Place place_of_memory(int numa_node) { return {kNone, {numa_node}}; }

Distance distance(const Machine& machine, const Place& from, const Place& to);
// The largest distance to a function that carries |nic|, since a bond may use any of them.
Distance distance(const Machine& machine, const Place& from, const Nic& nic);

// "switch", "root complex", "NUMA node" or "other".
const char* word_of(Distance distance);

// The words of `nvidia-smi topo -m`: "PIX" below one switch, "PXB" below several in a row, "PHB",
// "NODE", "SYS".
const char* matrix_word(const Machine& machine, const Place& from, const Nic& nic);

}  // namespace hetcomm::topology
