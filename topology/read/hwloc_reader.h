// Reads a Machine through hwloc: the live host, or a file that lstopo has written.
//
// hwloc reports the PCIe tree, NUMA nodes, and which network interface and RDMA device belong to
// which PCI function. It reports no addresses, and little about states and rates.
#pragma once

#include <string_view>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads the host that this process runs on. Takes about 10 ms. UNSUPPORTED: hwloc is not installed.
Result<Machine> read_live_by_hwloc();

// Parses the contents of a file that `lstopo machine.xml` wrote. INVALID_ARGUMENT: hwloc cannot
// read them.
Result<Machine> parse_hwloc_xml(std::string_view xml);

}  // namespace hetcomm::topology
