#include "topology/machine/host_links.h"

#include <algorithm>
#include <map>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/text.h"

namespace hetcomm::topology {
namespace {

constexpr size_t kMaxNicName = 72;   // in bytes
constexpr size_t kMaxLinkText = 24;  // maximum length of PcieLink::name in bytes
constexpr uint8_t kAsBefore = 0xff;  // encodes a list that equals the previous one

// A link of the PCIe tree, and the NICs all of whose data crosses the link.
struct TreeLink {
  uint64_t mbyte_per_s = 0;
  std::vector<size_t> nics;  // positions in the list of reported NICs, ascending
};

using TreeLinks = std::map<std::string, TreeLink>;  // key: address of the object at the lower end

// Returns the links between PCI function |index| and the root complex, as a map from name to rate.
std::map<std::string, uint64_t> links_above(const Machine& machine, int index) {
  std::map<std::string, uint64_t> links;
  for (bool is_first = true; index != kNone; is_first = false) {
    const PciNode& node = machine.pci[static_cast<size_t>(index)];
    if (node.kind == PciKind::kRootComplex) break;
    PciAddress address = node.address;
    if (is_first) address.function = 0;  // all functions of a card share one link
    links.emplace(address.text(), node.mbyte_per_s);
    index = node.parent;
  }
  return links;
}

// Returns the links that all data of |nic| crosses, as a map from name to rate.
std::map<std::string, uint64_t> links_of(const Machine& machine, const Nic& nic) {
  std::map<std::string, uint64_t> common;
  for (size_t i = 0; i < nic.functions.size(); ++i) {
    std::map<std::string, uint64_t> own = links_above(machine, nic.functions[i]);
    if (i == 0) {
      common = std::move(own);
    } else {
      std::erase_if(common, [&](const auto& link) { return !own.contains(link.first); });
    }
  }
  return common;
}

TreeLinks find_links(const Machine& machine, const std::vector<int>& nics) {
  TreeLinks links;
  for (size_t i = 0; i < nics.size(); ++i) {
    for (const auto& [name, rate] : links_of(machine, machine.nics[static_cast<size_t>(nics[i])])) {
      TreeLink& link = links[name];
      link.mbyte_per_s = std::max(link.mbyte_per_s, rate);
      link.nics.push_back(i);
    }
  }
  std::erase_if(links, [](const auto& link) { return link.second.mbyte_per_s == 0; });
  return links;
}

// Groups the links by the NICs that use them, and returns the narrowest link of each group. Links
// with more NICs come first, since they are closer to memory.
std::vector<std::pair<std::string, TreeLink>> narrowest(const TreeLinks& links) {
  std::map<std::vector<size_t>, std::pair<std::string, TreeLink>> by_nics;
  for (const auto& link : links) {
    const auto at = by_nics.emplace(link.second.nics, link).first;
    if (link.second.mbyte_per_s < at->second.second.mbyte_per_s) at->second = link;
  }
  std::vector<std::pair<std::string, TreeLink>> kept;
  for (auto& entry : by_nics) kept.push_back(std::move(entry.second));
  std::stable_sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) {
    return a.second.nics.size() > b.second.nics.size();
  });
  return kept;
}

uint32_t bounded(uint64_t rate) {
  return static_cast<uint32_t>(std::min<uint64_t>(rate, kMaxMbitPerS));
}

// Returns the NIC's rate. Returns 0 for a virtual NIC, since the kernel reports an arbitrary rate.
uint64_t known_rate(const Nic& nic) { return nic.kind == NicKind::kVirtual ? 0 : nic.mbit_per_s; }

void write_indices(ByteWriter& writer, const std::vector<uint8_t>& indices) {
  writer.write(static_cast<uint8_t>(indices.size()));
  for (const uint8_t index : indices) writer.write(index);
}

Status bad_links(const char* what) {
  return {Code::kInvalidArgument, std::string("the links of its host: ") + what};
}

// Reads |count| indices. Returns false if an index is missing or is not less than |end|.
bool read_indices(ByteReader& reader, size_t count, size_t end, std::vector<uint8_t>* result) {
  for (size_t i = 0; i < count; ++i) {
    const auto index = reader.read<uint8_t>();
    if (index >= end) return false;
    result->push_back(index);
  }
  return !reader.failed();
}

// Reads a name. Marks |reader| as failed if the name is not printable. host_links() makes only
// printable names. Escaping an unprintable name later could make it too long for a link model.
std::string read_name(ByteReader& reader, size_t most_bytes) {
  std::string name = reader.read_string(most_bytes);
  if (printable(name) != name) reader.fail();
  return name;
}

Status read_told_nics(ByteReader& reader, HostLinks* links) {
  const auto pcie = reader.read<uint8_t>();
  if (pcie > kMaxPcieLinks) return bad_links("there are too many PCIe links");
  for (size_t i = 0; i < pcie; ++i) {
    PcieLink& link = links->pcie.emplace_back();
    link.name = read_name(reader, kMaxLinkText);
    link.mbyte_per_s = reader.read<uint32_t>();
    if (link.mbyte_per_s == 0 || link.mbyte_per_s > kMaxMbitPerS) {
      return bad_links("a PCIe link has no rate that can be");
    }
  }
  const auto nics = reader.read<uint8_t>();
  if (nics > kMaxHostNics) return bad_links("there are too many NICs");
  for (size_t i = 0; i < nics; ++i) {
    HostNic& nic = links->nics.emplace_back();
    nic.name = read_name(reader, kMaxNicName);
    if (nic.name.empty()) return bad_links("a NIC has no name, or one that is not printable");
    nic.mbit_per_s = bounded(reader.read<uint32_t>());
    if (!read_indices(reader, reader.read<uint8_t>(), pcie, &nic.links)) {
      return bad_links("a NIC crosses a PCIe link that is not there");
    }
  }
  return {};
}

Status read_told_devices(ByteReader& reader, HostLinks* links) {
  const auto lists = reader.read<uint8_t>();
  if (lists > kMaxDeviceLists) return bad_links("there are too many devices");
  for (size_t i = 0; i < lists; ++i) {
    const auto count = reader.read<uint8_t>();
    if (count == kAsBefore && i > 0) {
      links->devices.push_back(links->devices.back());
      continue;
    }
    const bool good = count <= kMaxNicsOfDevice && read_indices(reader, count, links->nics.size(),
                                                                &links->devices.emplace_back());
    if (!good) return bad_links("a device uses a NIC that is not there");
  }
  links->located_devices = reader.read<uint64_t>();
  const auto keeps_all_nics = reader.read<uint8_t>();
  if (keeps_all_nics > 1) return bad_links("a flag is neither set nor clear");
  links->keeps_all_nics = keeps_all_nics != 0;
  return {};
}

}  // namespace

std::span<const uint8_t> HostLinks::nics_of(size_t device) const {
  if (devices.empty()) return {};
  return device < devices.size() ? devices[device] : devices.front();
}

HostLinks host_links(const Machine& machine, const std::vector<std::vector<int>>& devices,
                     const std::vector<int>& others) {
  std::vector<int> told;  // indices in Machine::nics of the reported NICs
  const auto tell = [&](const std::vector<int>& nics) {
    for (const int nic : nics) {
      const bool is_new = std::find(told.begin(), told.end(), nic) == told.end();
      if (is_new && told.size() < kMaxHostNics) told.push_back(nic);
    }
  };
  for (const std::vector<int>& each : devices) {
    if (!each.empty()) tell({each.front()});
  }
  for (const std::vector<int>& each : devices) tell(each);
  tell(others);
  HostLinks links;
  for (const int index : told) {
    const Nic& nic = machine.nics[static_cast<size_t>(index)];
    links.nics.push_back({.name = printable_beginning(nic.name(), kMaxNicName),
                          .mbit_per_s = bounded(known_rate(nic)),
                          .links = {}});
  }
  for (const auto& [name, link] : narrowest(find_links(machine, told))) {
    if (links.pcie.size() == kMaxPcieLinks) break;
    for (const size_t nic : link.nics) {
      links.nics[nic].links.push_back(static_cast<uint8_t>(links.pcie.size()));
    }
    links.pcie.push_back({.name = printable_beginning(name, kMaxLinkText),
                          .mbyte_per_s = bounded(link.mbyte_per_s)});
  }
  for (const std::vector<int>& each : devices) {
    if (links.devices.size() == kMaxDeviceLists) break;
    std::vector<uint8_t>& list = links.devices.emplace_back();
    for (const int nic : each) {
      const auto at = std::find(told.begin(), told.end(), nic) - told.begin();
      if (at == std::ssize(told) || list.size() == kMaxNicsOfDevice) continue;
      list.push_back(static_cast<uint8_t>(at));
    }
  }
  return links;
}

std::vector<std::byte> encode_host_links(const HostLinks& links) {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(links.pcie.size()));
  for (const PcieLink& link : links.pcie) {
    writer.write_string(link.name);
    writer.write(link.mbyte_per_s);
  }
  writer.write(static_cast<uint8_t>(links.nics.size()));
  for (const HostNic& nic : links.nics) {
    writer.write_string(nic.name);
    writer.write(nic.mbit_per_s);
    write_indices(writer, nic.links);
  }
  writer.write(static_cast<uint8_t>(links.devices.size()));
  for (size_t i = 0; i < links.devices.size(); ++i) {
    if (i > 0 && links.devices[i] == links.devices[i - 1]) {
      writer.write(kAsBefore);
    } else {
      write_indices(writer, links.devices[i]);
    }
  }
  writer.write(links.located_devices);
  writer.write(static_cast<uint8_t>(links.keeps_all_nics ? 1 : 0));
  return writer.take();
}

Result<HostLinks> decode_host_links(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  HostLinks links;
  HETCOMM_RETURN_IF_ERROR(read_told_nics(reader, &links));
  HETCOMM_RETURN_IF_ERROR(read_told_devices(reader, &links));
  if (!reader.finished()) return bad_links("they cannot be read");
  return links;
}

}  // namespace hetcomm::topology
