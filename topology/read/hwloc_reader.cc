#include "topology/read/hwloc_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "src/base/text.h"
#include "topology/machine/accelerator_class.h"
#include "topology/read/hwloc_library.h"

namespace hetcomm::topology {
namespace {

constexpr unsigned int kMaxRdmaPorts = 16;

const char* find_info(hwloc_obj_t object, std::string_view name) {
  for (unsigned int i = 0; i < object->infos_count; ++i) {
    if (name == object->infos[i].name) return object->infos[i].value;
  }
  return nullptr;
}

std::optional<uint32_t> number_info(hwloc_obj_t object, std::string_view name) {
  const char* text = find_info(object, name);
  if (text == nullptr) return std::nullopt;
  uint32_t number = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// The network ports of one PCI function, or of one hwloc object whose ports have no PCI function.
struct Ports {
  struct Interface {
    std::string name;
    std::optional<uint32_t> port;  // number of the port on its card
  };
  struct RdmaPort {
    std::string device;
    uint32_t port = 1;
    NicState state = NicState::kUnknown;
  };
  std::vector<Interface> interfaces;
  std::vector<RdmaPort> rdma;
};

// Converts the objects of one hwloc topology to a Machine.
class Conversion {
 public:
  Conversion(const Hwloc& hwloc, hwloc_topology_t topology) : hwloc_(hwloc), topology_(topology) {}

  Machine run() {
    add_numa_nodes();
    add_distances();
    walk(hwloc_.get_obj_by_depth(topology_, 0, 0));
    add_accelerators(machine_);
    return std::move(machine_);
  }

 private:
  void add_numa_nodes() {
    const unsigned int count = hwloc_.get_nbobjs_by_depth(topology_, HWLOC_TYPE_DEPTH_NUMANODE);
    for (unsigned int i = 0; i < count; ++i) {
      const hwloc_obj_t object = hwloc_.get_obj_by_depth(topology_, HWLOC_TYPE_DEPTH_NUMANODE, i);
      NumaNode node;
      node.number = object->os_index;
      node.memory_bytes = object->attr->numanode.local_memory;
      if (object->cpuset != nullptr) node.processors = list_text(object->cpuset);
      for (hwloc_obj_t above = object->parent; above != nullptr; above = above->parent) {
        if (above->type != HWLOC_OBJ_PACKAGE) continue;
        node.package = static_cast<int>(above->logical_index);
        break;
      }
      machine_.numa_nodes.push_back(std::move(node));
    }
  }

  std::string list_text(hwloc_const_bitmap_t bitmap) const {
    const int length = hwloc_.bitmap_list_snprintf(nullptr, 0, bitmap);
    std::string text(static_cast<size_t>(std::max(0, length)) + 1, '\0');
    hwloc_.bitmap_list_snprintf(text.data(), text.size(), bitmap);
    text.pop_back();
    return text;
  }

  int numa_index(uint32_t number) const {
    for (size_t i = 0; i < machine_.numa_nodes.size(); ++i) {
      if (machine_.numa_nodes[i].number == number) return static_cast<int>(i);
    }
    return kNone;
  }

  void add_distances() {
    unsigned int count = 1;
    hwloc_distances_s* distances = nullptr;
    if (hwloc_.distances_get_by_name(topology_, "NUMALatency", &count, &distances, 0) != 0 ||
        count == 0 || distances == nullptr) {
      return;
    }
    const size_t size = machine_.numa_nodes.size();
    const bool is_complete = distances->nbobjs == size;
    for (unsigned int row = 0; is_complete && row < distances->nbobjs; ++row) {
      const int from = numa_index(distances->objs[row]->os_index);
      if (from == kNone) continue;
      std::vector<uint32_t>& to = machine_.numa_nodes[static_cast<size_t>(from)].distances;
      to.assign(size, 0);
      for (unsigned int column = 0; column < distances->nbobjs; ++column) {
        const int index = numa_index(distances->objs[column]->os_index);
        if (index == kNone) continue;
        const hwloc_uint64_t value = distances->values[row * distances->nbobjs + column];
        to[static_cast<size_t>(index)] =
            static_cast<uint32_t>(std::min<hwloc_uint64_t>(value, UINT32_MAX));
      }
    }
    hwloc_.distances_release(topology_, distances);
  }

  // Visits the children of |object|, then the I/O objects that are attached to it.
  void walk(hwloc_obj_t object) {
    for (hwloc_obj_t child = object->first_child; child != nullptr; child = child->next_sibling) {
      walk(child);
    }
    const std::vector<int> nodes = local_nodes(object);
    Ports loose;
    for (hwloc_obj_t io = object->io_first_child; io != nullptr; io = io->next_sibling) {
      walk_io(io, kNone, nodes, loose);
    }
    add_nics(loose, kNone, nodes);
  }

  // Returns whether there are several processor packages.
  bool has_packages() const {
    return std::any_of(
        machine_.numa_nodes.begin(), machine_.numa_nodes.end(),
        [&](const NumaNode& node) { return node.package != machine_.numa_nodes[0].package; });
  }

  // Returns the NUMA nodes near |object|. Returns an empty list if these are all nodes of a host
  // with several packages, since that says nothing about the place of |object|.
  std::vector<int> local_nodes(hwloc_obj_t object) const {
    std::vector<int> nodes;
    if (object->nodeset == nullptr) return nodes;
    for (int number = hwloc_.bitmap_next(object->nodeset, -1); number >= 0;
         number = hwloc_.bitmap_next(object->nodeset, number)) {
      const int index = numa_index(static_cast<uint32_t>(number));
      if (index == kNone) break;  // the node is unknown, or the set is infinite
      nodes.push_back(index);
    }
    if (nodes.size() == machine_.numa_nodes.size() && has_packages()) nodes.clear();
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

  void walk_io(hwloc_obj_t object, int parent, const std::vector<int>& nodes, Ports& ports) {
    int self = parent;
    Ports own;
    if (object->type == HWLOC_OBJ_BRIDGE) {
      self = add_bridge(object->attr->bridge, parent, nodes);
    } else if (object->type == HWLOC_OBJ_PCI_DEVICE) {
      self = add_pci(PciKind::kFunction, object->attr->pcidev, parent, nodes);
    } else if (object->type == HWLOC_OBJ_OS_DEVICE) {
      add_port(object, ports);
    }
    const bool is_function = object->type == HWLOC_OBJ_PCI_DEVICE;
    for (hwloc_obj_t io = object->io_first_child; io != nullptr; io = io->next_sibling) {
      walk_io(io, self, nodes, is_function ? own : ports);
    }
    if (is_function) add_nics(own, self, {});
  }

  int add_bridge(const hwloc_obj_attr_u::hwloc_bridge_attr_s& bridge, int parent,
                 const std::vector<int>& nodes) {
    if (bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
      return add_pci(PciKind::kBridge, bridge.upstream.pci, parent, nodes);
    }
    return add_root({bridge.downstream.pci.domain, bridge.downstream.pci.secondary_bus, 0, 0},
                    nodes);
  }

  int add_root(const PciAddress& address, const std::vector<int>& nodes) {
    PciNode node;
    node.kind = PciKind::kRootComplex;
    node.address = address;
    node.numa_nodes = nodes;
    machine_.pci.push_back(std::move(node));
    return static_cast<int>(machine_.pci.size()) - 1;
  }

  int add_pci(PciKind kind, const hwloc_obj_attr_u::hwloc_pcidev_attr_s& attributes, int parent,
              const std::vector<int>& nodes) {
    PciNode node;
    node.kind = kind;
    node.address = {attributes.domain, attributes.bus, attributes.dev, attributes.func};
    // Without host bridges it is unknown which functions share a root complex. Each function then
    // gets its own root complex.
    node.parent = parent == kNone ? add_root(node.address, nodes) : parent;
    node.vendor = attributes.vendor_id;
    node.device = attributes.device_id;
    node.device_class = attributes.class_id;
    const float gbyte_per_s = attributes.linkspeed;
    if (gbyte_per_s > 0 && gbyte_per_s < 1e5f) {
      node.mbyte_per_s = static_cast<uint64_t>(std::lround(gbyte_per_s * 1000));
    }
    machine_.pci.push_back(std::move(node));
    return static_cast<int>(machine_.pci.size()) - 1;
  }

  static void add_port(hwloc_obj_t object, Ports& ports) {
    if (object->name == nullptr) return;
    if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
      ports.interfaces.push_back({object->name, number_info(object, "Port")});
    }
    if (object->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS) return;
    const size_t before = ports.rdma.size();
    for (uint32_t port = 1; port <= kMaxRdmaPorts; ++port) {
      constexpr uint32_t kActive = 4;  // IB_PORT_ACTIVE
      const auto state = number_info(object, fmt::format("Port{}State", port));
      if (!state) continue;
      ports.rdma.push_back(
          {object->name, port, *state == kActive ? NicState::kUp : NicState::kDown});
    }
    if (ports.rdma.size() == before) ports.rdma.push_back({object->name, 1, NicState::kUnknown});
  }

  // Adds the NICs of |ports|. An RDMA port and the interface with the same port number are one NIC.
  // An RDMA port without such an interface is joined with the first interface that has no number.
  // If there is only one RDMA port, it can be joined with any interface.
  void add_nics(Ports& ports, int function, const std::vector<int>& nodes) {
    for (Ports::RdmaPort& rdma : ports.rdma) {
      Nic nic = new_nic(function, nodes);
      nic.rdma_device = rdma.device;
      nic.rdma_port = rdma.port;
      nic.state = rdma.state;
      auto found =
          std::find_if(ports.interfaces.begin(), ports.interfaces.end(),
                       [&](const Ports::Interface& each) { return each.port == rdma.port; });
      if (found == ports.interfaces.end()) {
        found = std::find_if(ports.interfaces.begin(), ports.interfaces.end(),
                             [](const Ports::Interface& each) { return !each.port; });
      }
      if (found == ports.interfaces.end() && ports.rdma.size() == 1) {
        found = ports.interfaces.begin();
      }
      if (found != ports.interfaces.end()) {
        nic.interface = found->name;
        ports.interfaces.erase(found);
      }
      machine_.nics.push_back(std::move(nic));
    }
    for (const Ports::Interface& each : ports.interfaces) {
      Nic nic = new_nic(function, nodes);
      nic.interface = each.name;
      machine_.nics.push_back(std::move(nic));
    }
  }

  static Nic new_nic(int function, const std::vector<int>& nodes) {
    Nic nic;
    if (function == kNone) {
      nic.numa_nodes = nodes;
    } else {
      nic.functions = {function};
    }
    return nic;
  }

  const Hwloc& hwloc_;
  const hwloc_topology_t topology_;
  Machine machine_;
};

// Returns whether |xml| is nested too deeply for hwloc, which recurses once per level.
bool nests_too_deeply(std::string_view xml) {
  constexpr int kMax = 200;
  constexpr std::string_view kOpen = "<object";
  constexpr std::string_view kClose = "</object";
  int depth = 0;
  for (size_t at = xml.find('<'); at != std::string_view::npos; at = xml.find('<', at + 1)) {
    const std::string_view rest = xml.substr(at);
    if (rest.starts_with(kClose)) {
      --depth;
    } else if (rest.starts_with(kOpen)) {
      const size_t end = rest.find('>');
      const bool is_empty = end != std::string_view::npos && rest[end - 1] == '/';
      if (!is_empty && ++depth > kMax) return true;
    }
  }
  return false;
}

// Returns the version of hwloc's format in which |xml| is written, such as "2.0", or an empty text
// if it has none.
std::string_view version_of(std::string_view xml) {
  constexpr std::string_view kBefore = "<topology version=\"";
  const size_t at = xml.find(kBefore);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = xml.substr(at + kBefore.size());
  return rest.substr(0, std::min(rest.find('"'), size_t{16}));
}

// Returns why the library of version |api_version| has rejected |xml|. The reason is |otherwise|,
// unless the format is too new.
Status refusal(std::string_view xml, unsigned api_version, Status otherwise) {
  const std::string_view version = version_of(xml);
  const unsigned own = api_version >> 16;
  unsigned major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  if (major <= own) return otherwise;
  return {Code::kInvalidArgument,
          fmt::format("is a file of hwloc {}, and the installed hwloc {}.{} cannot read it; export "
                      "it in the format of version {}",
                      printable(version), own, api_version >> 8 & 0xff, own)};
}

Result<Machine> read(std::string_view xml) {
  Result<const Hwloc*> loaded = load_hwloc();
  if (!loaded.ok()) return loaded.status();
  const Hwloc& hwloc = *loaded.value();
  hwloc_topology_t topology = nullptr;
  if (hwloc.topology_init(&topology) != 0) return status_from_errno(errno, "hwloc");
  const std::unique_ptr<hwloc_topology, decltype(hwloc.topology_destroy)> owner(
      topology, hwloc.topology_destroy);
  // Nothing uses the results of these hwloc components, and opencl and gl take most of the time.
  for (const char* component : {"opencl", "gl", "cuda", "nvml", "rsmi", "levelzero"}) {
    (void)hwloc.topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                        component);
  }
  hwloc.topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (xml.empty()) {
    // All processes on a host must see the same machine, even if they may run on different
    // processors.
    hwloc.topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  } else {
    const std::string terminated(xml);
    const int size = static_cast<int>(terminated.size()) + 1;
    if (hwloc.topology_set_xmlbuffer(topology, terminated.c_str(), size) != 0) {
      return refusal(xml, hwloc.get_api_version(),
                     Status(Code::kInvalidArgument, "is no XML file that hwloc can read"));
    }
  }
  if (hwloc.topology_load(topology) != 0) {
    const Status why(xml.empty() ? Code::kUnsupported : Code::kInvalidArgument,
                     fmt::format("hwloc cannot load it: {}", std::strerror(errno)));
    return refusal(xml, hwloc.get_api_version(), why);
  }
  Machine machine = Conversion(hwloc, topology).run();
  HETCOMM_RETURN_IF_ERROR(check(machine));
  normalize(machine);
  return machine;
}

}  // namespace

Result<Machine> read_live_by_hwloc() {
  Result<Machine> machine = read({});
  if (machine.ok()) machine->source = "this host, by hwloc";
  return machine;
}

Result<Machine> parse_hwloc_xml(std::string_view xml) {
  if (xml.empty()) return Status(Code::kInvalidArgument, "is empty");
  if (nests_too_deeply(xml)) {
    return Status(Code::kInvalidArgument, "nests its objects too deeply");
  }
  return read(xml);
}

}  // namespace hetcomm::topology
