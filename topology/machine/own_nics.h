// Divides the NICs of a host among the devices of the ranks that run on it. The functions are pure.
//
// A device's own NIC is the first NIC in its list. The data of a device does not use the own NICs
// of other devices, since that would reduce the rate that those devices get.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "topology/machine/host_links.h"

namespace hetcomm::topology {

// OwnNics holds the names of the own NICs of the devices of one host.
class OwnNics {
 public:
  // Returns the name of the own NIC of |device|, or "" if it has none, as host memory.
  static std::string_view own_nic(const HostLinks& links, size_t device);

  // Adds the own NICs of the devices of |rank|, which must be a rank on this host. Devices at
  // unknown locations are skipped.
  void add(const HostLinks& rank);

  // Returns whether |device| of the rank that reports |links| must leave |nic| to other devices.
  // Always returns false for host memory (device 0), for a device at an unknown location, and if
  // |links.keeps_all_nics| is set.
  bool is_left_by(const HostLinks& links, size_t device, std::string_view nic) const;

  // Removes from the list of each device in |links| the NICs that is_left_by() returns true for.
  void remove_left(HostLinks& links) const;

  auto operator<=>(const OwnNics&) const = default;

 private:
  std::set<std::string, std::less<>> names_;
};

}  // namespace hetcomm::topology
