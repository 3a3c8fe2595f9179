// Makes a tree of the parts of a Machine that affect the choice of NICs. NUMA nodes are at the top,
// with root complexes, switches, accelerators and NICs below them. Root complexes and bridges
// without accelerators or NICs are omitted, and a bridge with only one child is replaced by it.
#pragma once

#include <string>
#include <vector>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

enum class TreeKind : uint8_t { kHost, kNumaNode, kRootComplex, kSwitch, kAccelerator, kNic };

struct TreeItem {
  TreeKind kind = TreeKind::kHost;
  int index = kNone;  // index in the Machine's list of such objects; kNone: not a single object
  std::string text;
  std::vector<TreeItem> children;
};

TreeItem make_tree(const Machine& machine);

}  // namespace hetcomm::topology
