#include "topology/machine/tree.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"
#include "topology/machine/labels.h"

namespace hetcomm::topology {
namespace {

class TreeMaker {
 public:
  explicit TreeMaker(const Machine& machine) : machine_(machine) {}

  TreeItem make() {
    TreeItem host{TreeKind::kHost, kNone, host_text(), {}};
    for (size_t i = 0; i < machine_.numa_nodes.size(); ++i) {
      const int index = static_cast<int>(i);
      TreeItem node{TreeKind::kNumaNode, index, describe(machine_.numa_nodes[i]), {}};
      add_roots({index}, node);
      add_without_function({index}, node);
      host.children.push_back(std::move(node));
    }
    // The remaining objects are near several NUMA nodes, or their NUMA node is unknown.
    for (const std::vector<int>& nodes : other_node_sets()) {
      TreeItem group{TreeKind::kNumaNode, kNone, group_text(nodes), {}};
      add_roots(nodes, group);
      add_without_function(nodes, group);
      const bool is_plain = machine_.numa_nodes.size() < 2;
      if (is_plain) {
        std::move(group.children.begin(), group.children.end(), std::back_inserter(host.children));
      } else if (!group.children.empty()) {
        host.children.push_back(std::move(group));
      }
    }
    return host;
  }

 private:
  std::string host_text() const {
    return machine_.source.empty() ? "host" : printable(machine_.source);
  }

  std::string group_text(const std::vector<int>& nodes) const {
    if (nodes.empty()) return "near no known NUMA node";
    std::string text = "near NUMA nodes";
    for (const int node : nodes) {
      text += fmt::format(" {}", machine_.numa_nodes[static_cast<size_t>(node)].number);
    }
    return text;
  }

  // Returns |nodes|, or the only NUMA node if the host has just one, since everything is near it.
  const std::vector<int>& or_the_only_one(const std::vector<int>& nodes) const {
    static const std::vector<int> kFirst{0};
    return machine_.numa_nodes.size() == 1 ? kFirst : nodes;
  }

  const std::vector<int>& nodes_of_root(const PciNode& root) const {
    if (!root.numa_nodes.empty()) return or_the_only_one(root.numa_nodes);
    // The kernel may report the NUMA nodes of a function, but not those of its root complex.
    const auto index = static_cast<int>(&root - machine_.pci.data());
    for (const PciNode& node : machine_.pci) {
      if (!node.numa_nodes.empty() && root_of(node) == index)
        return or_the_only_one(node.numa_nodes);
    }
    return or_the_only_one(root.numa_nodes);
  }

  int root_of(const PciNode& node) const {
    const PciNode* at = &node;
    while (at->parent != kNone) at = &machine_.pci[static_cast<size_t>(at->parent)];
    return static_cast<int>(at - machine_.pci.data());
  }

  std::vector<std::vector<int>> other_node_sets() const {
    std::vector<std::vector<int>> sets;
    const auto add = [&](const std::vector<int>& nodes) {
      if (nodes.size() == 1) return;
      if (std::find(sets.begin(), sets.end(), nodes) == sets.end()) sets.push_back(nodes);
    };
    for (const PciNode& node : machine_.pci) {
      if (node.kind == PciKind::kRootComplex) add(nodes_of_root(node));
    }
    for (const Nic& nic : machine_.nics) {
      if (nic.functions.empty()) add(or_the_only_one(nic.numa_nodes));
    }
    for (const Accelerator& each : machine_.accelerators) {
      if (each.function == kNone) add(or_the_only_one(each.numa_nodes));
    }
    return sets;
  }

  void add_roots(const std::vector<int>& nodes, TreeItem& parent) {
    for (size_t i = 0; i < machine_.pci.size(); ++i) {
      const PciNode& root = machine_.pci[i];
      if (root.kind != PciKind::kRootComplex || nodes_of_root(root) != nodes) continue;
      TreeItem item{TreeKind::kRootComplex, static_cast<int>(i), describe(root), {}};
      add_children(static_cast<int>(i), item);
      if (!item.children.empty()) parent.children.push_back(std::move(item));
    }
  }

  void add_children(int pci, TreeItem& parent) {
    for (size_t i = 0; i < machine_.pci.size(); ++i) {
      const PciNode& node = machine_.pci[i];
      if (node.parent != pci) continue;
      if (node.kind == PciKind::kFunction) {
        add_function(static_cast<int>(i), parent);
        continue;
      }
      TreeItem item{TreeKind::kSwitch, static_cast<int>(i), describe(node), {}};
      add_children(static_cast<int>(i), item);
      if (item.children.size() == 1) {
        parent.children.push_back(std::move(item.children.front()));
      } else if (!item.children.empty()) {
        parent.children.push_back(std::move(item));
      }
    }
  }

  void add_function(int function, TreeItem& parent) {
    for (size_t i = 0; i < machine_.accelerators.size(); ++i) {
      if (machine_.accelerators[i].function == function) add_accelerator(i, parent);
    }
    for (size_t i = 0; i < machine_.nics.size(); ++i) {
      const std::vector<int>& functions = machine_.nics[i].functions;
      if (!functions.empty() && functions.front() == function) add_nic(i, parent);
    }
  }

  void add_without_function(const std::vector<int>& nodes, TreeItem& parent) {
    for (size_t i = 0; i < machine_.accelerators.size(); ++i) {
      const Accelerator& each = machine_.accelerators[i];
      if (each.function == kNone && or_the_only_one(each.numa_nodes) == nodes)
        add_accelerator(i, parent);
    }
    for (size_t i = 0; i < machine_.nics.size(); ++i) {
      const Nic& nic = machine_.nics[i];
      if (nic.functions.empty() && or_the_only_one(nic.numa_nodes) == nodes) add_nic(i, parent);
    }
  }

  void add_accelerator(size_t index, TreeItem& parent) {
    const Accelerator& each = machine_.accelerators[index];
    std::string text = fmt::format("{} {}", accelerator_label(index), describe(each));
    parent.children.push_back({TreeKind::kAccelerator, static_cast<int>(index), text, {}});
  }

  void add_nic(size_t index, TreeItem& parent) {
    const Nic& nic = machine_.nics[index];
    std::string text = fmt::format("{} {}", nic_label(index), describe(nic));
    if (nic.functions.size() > 1) text += fmt::format(", over {} functions", nic.functions.size());
    parent.children.push_back({TreeKind::kNic, static_cast<int>(index), text, {}});
  }

  const Machine& machine_;
};

}  // namespace

TreeItem make_tree(const Machine& machine) { return TreeMaker(machine).make(); }

}  // namespace hetcomm::topology
