#include "topology/machine/own_nics.h"

#include <span>

namespace hetcomm::topology {
std::string_view OwnNics::own_nic(const HostLinks& links, size_t device) {
  if (device == 0 || !links.is_located(device)) return {};
  const std::span<const uint8_t> used = links.nics_of(device);
  return used.empty() ? std::string_view() : links.nics[used.front()].name;
}

void OwnNics::add(const HostLinks& rank) {
  for (size_t device = 1; device < rank.devices.size(); ++device) {
    if (const std::string_view name = own_nic(rank, device); !name.empty()) names_.emplace(name);
  }
}

bool OwnNics::is_left_by(const HostLinks& links, size_t device, std::string_view nic) const {
  if (links.keeps_all_nics) return false;
  const std::string_view own = own_nic(links, device);
  return !own.empty() && nic != own && names_.contains(nic);
}

void OwnNics::remove_left(HostLinks& links) const {
  for (size_t device = 1; device < links.devices.size(); ++device) {
    std::erase_if(links.devices[device],
                  [&](uint8_t nic) { return is_left_by(links, device, links.nics[nic].name); });
  }
}

}  // namespace hetcomm::topology
