// Divides the NICs of a host among the devices of the ranks that run on it. The functions are pure.
//
// A device's own NIC is the one that it would use first. Its data does not use the own NIC of
// another device: the NIC is no faster for it, and the other device would get less.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "topology/machine/host_links.h"

namespace hetcomm::topology {

class OwnNics {
 public:
  // Adds the own NICs of the devices whose location |rank|, a rank on this host, knows.
  void add(const HostLinks& rank);

  // Returns whether |nic| is left to other devices by a device of a rank with |links|. Host memory,
  // a device at an unknown location, and a device of a rank that keeps_all_nics leave none.
  bool is_left_by(const HostLinks& links, size_t device, std::string_view nic) const;

  // Removes from the lists of |links| the NICs that their devices leave to others.
  void remove_left(HostLinks& links) const;

  auto operator<=>(const OwnNics&) const = default;

 private:
  std::set<std::string, std::less<>> names_;
};

}  // namespace hetcomm::topology
