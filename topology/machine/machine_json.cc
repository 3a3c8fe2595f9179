#include "topology/machine/machine_json.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "src/present/json_fields.h"

namespace hetcomm::topology {
namespace {

using present::Fields;
using present::Json;
using present::parse_document;
// Writes fields in the order in which they are added, which is the order in topology/README.md.
using OrderedJson = nlohmann::ordered_json;

PciAddress address_of(Fields& fields, const Json& value, const std::string& name) {
  if (value.is_string()) {
    if (const auto address = parse_pci_address(value.get<std::string>())) return *address;
  }
  fields.fail(name, "is no PCI address such as 0000:3b:00.0");
  return {};
}

PciAddress address_of(Fields& fields, const char* name) {
  const Json* field = fields.find(name);
  if (field != nullptr) return address_of(fields, *field, name);
  fields.fail(name, "is missing");
  return {};
}

constexpr std::string_view kFormat = "hetcomm topology";
constexpr uint64_t kVersion = 1;

constexpr const char* kPciKinds[] = {"root complex", "bridge", "function"};
constexpr const char* kNicStates[] = {"up", "down", "unknown"};
constexpr const char* kNicKinds[] = {"physical", "virtual", "bridge"};

// --- writing ---------------------------------------------------------------------------------

OrderedJson numbers_of(const Machine& machine, const std::vector<int>& numa_nodes) {
  OrderedJson list = OrderedJson::array();
  for (const int node : numa_nodes) {
    list.push_back(machine.numa_nodes[static_cast<size_t>(node)].number);
  }
  return list;
}

OrderedJson write_numa_node(const NumaNode& node) {
  OrderedJson out;
  out["number"] = node.number;
  if (node.package != kNone) out["package"] = node.package;
  if (!node.processors.empty()) out["processors"] = node.processors;
  if (node.memory_bytes != 0) out["memory_bytes"] = node.memory_bytes;
  if (!node.distances.empty()) out["distances"] = node.distances;
  return out;
}

// Writes |node| without its children.
OrderedJson write_pci(const Machine& machine, const PciNode& node) {
  OrderedJson out;
  out["kind"] = kPciKinds[static_cast<size_t>(node.kind)];
  out["address"] = node.address.text();
  if (!node.numa_nodes.empty()) out["numa_nodes"] = numbers_of(machine, node.numa_nodes);
  if (node.vendor != 0) out["vendor"] = fmt::format("{:04x}", node.vendor);
  if (node.device != 0) out["device"] = fmt::format("{:04x}", node.device);
  if (node.device_class != 0) out["class"] = fmt::format("{:04x}", node.device_class);
  if (node.mbyte_per_s != 0) out["mbyte_per_s"] = node.mbyte_per_s;
  return out;
}

OrderedJson write_nic(const Machine& machine, const Nic& nic) {
  OrderedJson out;
  if (!nic.interface.empty()) out["interface"] = nic.interface;
  if (!nic.rdma_device.empty()) {
    out["rdma_device"] = nic.rdma_device;
    out["rdma_port"] = nic.rdma_port;
  }
  out["kind"] = kNicKinds[static_cast<size_t>(nic.kind)];
  out["state"] = kNicStates[static_cast<size_t>(nic.state)];
  if (nic.mbit_per_s != 0) out["mbit_per_s"] = nic.mbit_per_s;
  OrderedJson functions = OrderedJson::array();
  for (const int function : nic.functions) {
    functions.push_back(machine.pci[static_cast<size_t>(function)].address.text());
  }
  if (!functions.empty()) out["functions"] = std::move(functions);
  if (!nic.numa_nodes.empty()) out["numa_nodes"] = numbers_of(machine, nic.numa_nodes);
  if (!nic.subnets.empty()) out["subnets"] = nic.subnets;
  if (!nic.fabric.empty()) out["fabric"] = nic.fabric;
  return out;
}

OrderedJson write_accelerator(const Machine& machine, const Accelerator& each) {
  OrderedJson out;
  out["address"] = each.address.text();
  if (!each.name.empty()) out["name"] = each.name;
  if (!each.numa_nodes.empty()) out["numa_nodes"] = numbers_of(machine, each.numa_nodes);
  return out;
}

OrderedJson write_link(const Machine& machine, const AcceleratorLink& link) {
  const auto address = [&](int index) {
    return machine.accelerators[static_cast<size_t>(index)].address.text();
  };
  OrderedJson out;
  out["between"] = {address(link.first), address(link.second)};
  out["kind"] = link.kind;
  if (link.mbyte_per_s != 0) out["mbyte_per_s"] = link.mbyte_per_s;
  return out;
}

OrderedJson write_pci_tree(const Machine& machine) {
  std::vector<OrderedJson> nodes;
  for (const PciNode& node : machine.pci) nodes.push_back(write_pci(machine, node));
  // Children come after their parents in Machine::pci. The loop runs backwards, so a node already
  // has all of its children when it is added to its own parent.
  std::vector<std::vector<OrderedJson>> children(nodes.size());
  OrderedJson roots = OrderedJson::array();
  for (size_t i = nodes.size(); i-- > 0;) {
    if (!children[i].empty()) {
      std::reverse(children[i].begin(), children[i].end());
      nodes[i]["children"] = std::move(children[i]);
    }
    const int parent = machine.pci[i].parent;
    if (parent != kNone) children[static_cast<size_t>(parent)].push_back(std::move(nodes[i]));
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (machine.pci[i].parent == kNone) roots.push_back(std::move(nodes[i]));
  }
  return roots;
}

// --- reading ---------------------------------------------------------------------------------

// Reader reads the parts of a document into a Machine.
class Reader {
 public:
  explicit Reader(Machine& machine) : machine_(machine) {}

  Status read(const Json& document) {
    Fields fields(document, "", failure_);
    fields.allow_only({"format", "version", "source", "numa_nodes", "pci", "nics", "accelerators",
                       "accelerator_links", "affinity"});
    machine_.source = fields.text("source");
    fields.each("numa_nodes", [this](const Json& json, const std::string& path) {
      read_numa_node(Fields(json, path, failure_));
    });
    fields.each("pci",
                [this](const Json& json, const std::string& path) { read_pci(json, path, kNone); });
    read_nics(fields);
    fields.each("accelerators", [this](const Json& json, const std::string& path) {
      read_accelerator(Fields(json, path, failure_));
    });
    fields.each("accelerator_links", [this](const Json& json, const std::string& path) {
      read_link(Fields(json, path, failure_));
    });
    return failure_;
  }

  // Reads only "nics". Changes the listed NICs that already exist, and adds the others.
  Status add_nics(const Json& document) {
    Fields fields(document, "", failure_);
    fields.allow_only({"format", "version", "nics"});
    read_nics(fields);
    return failure_;
  }

 private:
  std::vector<int> numa_nodes(Fields& fields) {
    std::vector<int> nodes;
    fields.each("numa_nodes", [&](const Json& json, const std::string& path) {
      const uint64_t number = fields.number_of(json, "numa_nodes", UINT32_MAX);
      const auto& all = machine_.numa_nodes;
      const auto found = std::find_if(
          all.begin(), all.end(), [number](const NumaNode& node) { return node.number == number; });
      if (found == all.end()) {
        fields.fail_at(path, "is no NUMA node of this machine");
      } else {
        nodes.push_back(static_cast<int>(found - all.begin()));
      }
    });
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    return nodes;
  }

  void read_numa_node(Fields fields) {
    fields.allow_only({"number", "package", "processors", "memory_bytes", "distances"});
    NumaNode node;
    node.number = static_cast<uint32_t>(fields.number("number", UINT32_MAX));
    if (fields.has("package")) node.package = static_cast<int>(fields.number("package", INT32_MAX));
    node.processors = fields.text("processors");
    node.memory_bytes = fields.number("memory_bytes", UINT64_MAX);
    fields.each("distances", [&](const Json& json, const std::string&) {
      node.distances.push_back(
          static_cast<uint32_t>(fields.number_of(json, "distances", UINT32_MAX)));
    });
    machine_.numa_nodes.push_back(std::move(node));
  }

  void read_pci(const Json& json, const std::string& path, int parent) {
    Fields fields(json, path, failure_);
    fields.allow_only(
        {"kind", "address", "numa_nodes", "vendor", "device", "class", "mbyte_per_s", "children"});
    PciNode node;
    node.kind = fields.word("kind", kPciKinds, PciKind::kFunction);
    node.address = address_of(fields, "address");
    node.parent = parent;
    node.numa_nodes = numa_nodes(fields);
    node.vendor = fields.hex("vendor");
    node.device = fields.hex("device");
    node.device_class = fields.hex("class");
    node.mbyte_per_s = fields.number("mbyte_per_s", kMaxMbitPerS);
    const int index = static_cast<int>(machine_.pci.size());
    machine_.pci.push_back(std::move(node));
    fields.each("children", [&](const Json& child, const std::string& child_path) {
      read_pci(child, child_path, index);
    });
  }

  void read_nics(Fields& document) {
    document.each("nics", [this](const Json& json, const std::string& path) {
      Fields fields(json, path, failure_);
      fields.allow_only({"interface", "rdma_device", "rdma_port", "kind", "state", "mbit_per_s",
                         "functions", "numa_nodes", "subnets", "fabric", "over"});
      read_nic(fields);
    });
  }

  // Returns the NIC that has the entry's interface or RDMA port, or adds a NIC if there is none.
  // Sets the names of the NIC to those in the entry.
  Nic& nic_of(Fields& fields) {
    const std::string interface = fields.text("interface");
    const std::string rdma_device = fields.text("rdma_device");
    const uint32_t port = fields.has("rdma_port")
                              ? static_cast<uint32_t>(fields.number("rdma_port", UINT32_MAX))
                              : (rdma_device.empty() ? 0 : 1);
    for (Nic& nic : machine_.nics) {
      const bool same_interface = !interface.empty() && interface == nic.interface;
      const bool same_port =
          !rdma_device.empty() && rdma_device == nic.rdma_device && port == nic.rdma_port;
      if (!same_interface && !same_port) continue;
      if (!interface.empty()) nic.interface = interface;
      if (!rdma_device.empty()) {
        nic.rdma_device = rdma_device;
        nic.rdma_port = port;
      }
      return nic;
    }
    Nic nic;
    nic.interface = interface;
    nic.rdma_device = rdma_device;
    nic.rdma_port = port;
    machine_.nics.push_back(std::move(nic));
    return machine_.nics.back();
  }

  void read_nic(Fields& fields) {
    Nic& nic = nic_of(fields);
    nic.kind = fields.word("kind", kNicKinds, nic.kind);
    nic.state = fields.word("state", kNicStates, nic.state);
    if (fields.has("mbit_per_s")) nic.mbit_per_s = fields.number("mbit_per_s", kMaxMbitPerS);
    if (fields.has("numa_nodes")) nic.numa_nodes = numa_nodes(fields);
    if (fields.has("functions") || fields.has("over")) nic.functions.clear();
    fields.each("functions", [&](const Json& json, const std::string&) {
      add_function(nic, fields, "functions", address_of(fields, json, "functions"));
    });
    fields.each("over", [&](const Json& json, const std::string&) {
      const int lower = json.is_string() ? machine_.find_nic(json.get<std::string>()) : kNone;
      if (lower == kNone || &machine_.nics[static_cast<size_t>(lower)] == &nic) {
        return fields.fail("over", "names no NIC before this one");
      }
      const std::vector<int>& carriers = machine_.nics[static_cast<size_t>(lower)].functions;
      nic.functions.insert(nic.functions.end(), carriers.begin(), carriers.end());
    });
    std::sort(nic.functions.begin(), nic.functions.end());
    nic.functions.erase(std::unique(nic.functions.begin(), nic.functions.end()),
                        nic.functions.end());
    if (fields.has("subnets")) nic.subnets.clear();
    fields.each("subnets", [&](const Json& json, const std::string&) {
      if (!json.is_string()) return fields.fail("subnets", "has something that is no text");
      nic.subnets.push_back(json.get<std::string>());
    });
    if (fields.has("fabric")) {
      nic.fabric = fields.text("fabric");
      if (nic.fabric.size() > kMaxFabric) {
        fields.fail("fabric", fmt::format("has more than {} characters", kMaxFabric));
      }
    }
  }

  void add_function(Nic& nic, Fields& fields, const char* name, const PciAddress& address) {
    const int function = machine_.find_pci(address);
    if (function != kNone) {
      nic.functions.push_back(function);
    } else {
      fields.fail(name, fmt::format("names {}, which is no function of 'pci'", address.text()));
    }
  }

  void read_accelerator(Fields fields) {
    fields.allow_only({"address", "name", "numa_nodes"});
    Accelerator each;
    each.address = address_of(fields, "address");
    each.name = fields.text("name");
    each.function = machine_.find_pci(each.address);
    each.numa_nodes = numa_nodes(fields);
    machine_.accelerators.push_back(std::move(each));
  }

  void read_link(Fields fields) {
    fields.allow_only({"between", "kind", "mbyte_per_s"});
    std::vector<int> ends;
    fields.each("between", [&](const Json& json, const std::string&) {
      ends.push_back(machine_.find_accelerator(address_of(fields, json, "between")));
    });
    if (ends.size() != 2 || ends[0] == ends[1] || ends[0] == kNone || ends[1] == kNone) {
      return fields.fail("between", "does not name two accelerators");
    }
    AcceleratorLink link;
    link.first = std::min(ends[0], ends[1]);
    link.second = std::max(ends[0], ends[1]);
    link.kind = fields.text("kind");
    link.mbyte_per_s = fields.number("mbyte_per_s", kMaxMbitPerS);
    machine_.links.push_back(std::move(link));
  }

  Machine& machine_;
  Status failure_;
};

Status finish(Machine& machine) {
  HETCOMM_RETURN_IF_ERROR(check(machine));
  normalize(machine);
  return {};
}

}  // namespace

std::string to_json(const Machine& machine) {
  OrderedJson out;
  out["format"] = kFormat;
  out["version"] = kVersion;
  if (!machine.source.empty()) out["source"] = machine.source;
  const auto list = [&](const char* name, const auto& objects, auto write) {
    OrderedJson entries = OrderedJson::array();
    for (const auto& object : objects) entries.push_back(write(object));
    if (!entries.empty()) out[name] = std::move(entries);
  };
  list("numa_nodes", machine.numa_nodes, write_numa_node);
  if (!machine.pci.empty()) out["pci"] = write_pci_tree(machine);
  list("nics", machine.nics, [&](const Nic& nic) { return write_nic(machine, nic); });
  list("accelerators", machine.accelerators,
       [&](const Accelerator& each) { return write_accelerator(machine, each); });
  list("accelerator_links", machine.links,
       [&](const AcceleratorLink& link) { return write_link(machine, link); });
  return out.dump(2, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Machine> parse_machine(std::string_view json) {
  Result<Json> document = parse_document(json, kFormat, kVersion, kMaxMachineNesting);
  if (!document.ok()) return document.status();
  Machine machine;
  HETCOMM_RETURN_IF_ERROR(Reader(machine).read(*document));
  HETCOMM_RETURN_IF_ERROR(finish(machine));
  return machine;
}

Status add_nics(std::string_view json, Machine& machine) {
  Result<Json> document = parse_document(json, kFormat, kVersion, kMaxMachineNesting);
  if (!document.ok()) return document.status();
  Machine changed = machine;
  HETCOMM_RETURN_IF_ERROR(Reader(changed).add_nics(*document));
  HETCOMM_RETURN_IF_ERROR(finish(changed));
  machine = std::move(changed);
  return {};
}

}  // namespace hetcomm::topology
