// Which NICs the devices of a host use when hetcomm_bench affinity compares near with far ones, and
// which ranks exchange data. Pure.
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

// Reads the document that hetcomm_context_topology() writes. |pci_address| is that of the rank's
// device; where it is empty, rank number |local| of the host takes the accelerator of that number,
// and without accelerators the NUMA node; both are counted around. "" as name: the host has no NIC.
DeviceNics device_nics(const std::string& topology, const std::string& pci_address, size_t local);

// Returns the place in |device|.nics of the first NIC of the largest distance; 0 where all are
// equally near. Devices that have several such NICs differ in the order of them, so that they are
// shared out.
size_t far_choice(const DeviceNics& device);

// |hosts| has the label of each rank's host. Returns who sends to whom: number i of the first host
// to number i of the second, of the third to the fourth, ...; on a single host the first rank to
// the second, the third to the fourth, ...
std::vector<RankPair> affinity_pairs(const std::vector<std::string>& hosts);

// The number of each rank among those of its host.
std::vector<size_t> local_numbers(const std::vector<std::string>& hosts);

}  // namespace bench
