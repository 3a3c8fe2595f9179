// Selects the NICs of a host's devices when hetcomm_bench affinity compares near with far ones, and
// the ranks that exchange data. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/links_flows.h"

namespace bench {

struct NicOption {
  std::string name;
  std::string distance;  // from the device: "switch", "root complex", "NUMA node" or "other"
};

// The device of one rank's data, and the NICs that it may use, best first.
struct DeviceNics {
  std::string name;  // "acc3 0000:3b:00.0", or "numa0"
  std::vector<NicOption> nics;
};

// Reads the document that hetcomm_context_topology() writes. |pci_address| is the address of the
// rank's device. If it is empty, rank number |local| of the host takes the accelerator of that
// number, or the NUMA node if there are no accelerators. Both numbers wrap around. An empty name
// means that the host has no NIC.
DeviceNics device_nics(const std::string& topology, const std::string& pci_address, size_t local);

// Returns the index in |device|.nics of the first NIC of the largest distance, or 0 if all are
// equally near. Devices with several such NICs have them in different orders, so that they are
// shared evenly.
size_t far_choice(const DeviceNics& device);

// |hosts| has the label of each rank's host. Returns which ranks send to which: number i of the
// first host to number i of the second, of the third to the fourth, and so on. On a single host the
// first rank sends to the second, the third to the fourth, and so on.
std::vector<RankPair> affinity_pairs(const std::vector<std::string>& hosts);

// The number of each rank among the ranks of its host.
std::vector<size_t> local_numbers(const std::vector<std::string>& hosts);

}  // namespace bench
