// Selects each device's NICs, and the ranks that exchange data, for hetcomm_bench affinity, which
// compares near NICs with far ones. All functions are pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/links/links_flows.h"

namespace tools {

struct NicOption {
  std::string name;
  std::string distance;  // from the device: "switch", "root complex", "NUMA node" or "other"
};

// The device with one rank's data, and the NICs that it may use, best first.
struct DeviceNics {
  std::string name;  // "acc3 0000:3b:00.0", or "numa0"
  std::vector<NicOption> nics;
};

// Parses the document that hetcomm_context_topology() writes. |pci_address| is the address of the
// rank's device. If it is empty, the rank with index |local| on the host uses the accelerator with
// that index. If no accelerator matches, the rank uses the NUMA node with that index. Indices wrap
// around. The name is empty if the document is invalid or lists neither accelerators nor NUMA
// nodes.
DeviceNics device_nics(const std::string& topology, const std::string& pci_address, size_t local);

// Returns the index in |device|.nics of the first NIC at the largest distance, or 0 if all are
// equally near. Devices with several such NICs list them in different orders, which spreads the
// load.
size_t far_choice(const DeviceNics& device);

// Returns the pairs of sending and receiving ranks. |hosts| holds the label of each rank's host.
// Rank i of the first host sends to rank i of the second, the third host to the fourth, and so on.
// On a single host, the first rank sends to the second, the third to the fourth, and so on.
std::vector<RankPair> affinity_pairs(const std::vector<std::string>& hosts);

// Returns the index of each rank among the ranks on its host.
std::vector<size_t> local_numbers(const std::vector<std::string>& hosts);

}  // namespace tools
