// Makes a tree of the parts of a Machine that affect affinity: NUMA nodes, and below them root
// complexes, switches, accelerators and NICs. Bridges with only one child are left out.
#pragma once

#include <string>
#include <vector>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

enum class TreeKind : uint8_t { kHost, kNumaNode, kRootComplex, kSwitch, kAccelerator, kNic };

struct TreeItem {
  TreeKind kind = TreeKind::kHost;
  int index = kNone;  // index in the Machine's list of such objects
  std::string text;
  std::vector<TreeItem> children;
};

TreeItem make_tree(const Machine& machine);

}  // namespace hetcomm::topology
