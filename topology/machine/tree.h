// The parts of a Machine that matter to affinity as one tree: NUMA nodes, and below them root
// complexes, switches, accelerators and NICs. Bridges with only one child are left out.
#pragma once

#include <string>
#include <vector>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

enum class TreeKind : uint8_t { kHost, kNumaNode, kRootComplex, kSwitch, kAccelerator, kNic };

struct TreeItem {
  TreeKind kind = TreeKind::kHost;
  int index = kNone;  // index of the NUMA node, PCI object, accelerator or NIC
  std::string text;
  std::vector<TreeItem> children;
};

TreeItem make_tree(const Machine& machine);

}  // namespace hetcomm::topology
