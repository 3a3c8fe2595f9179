// Reads a Machine through hwloc: the live host, or a file that lstopo has written.
//
// hwloc reports the PCIe tree, the NUMA nodes, and the network interfaces and RDMA devices of each
// PCI function. It reports no network addresses, and few states and rates.
#pragma once

#include <string_view>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads the host on which this process runs. Takes about 10 ms. Fails with UNSUPPORTED if hwloc is
// not installed.
Result<Machine> read_live_by_hwloc();

// Parses the contents of a file that `lstopo machine.xml` wrote. Fails with INVALID_ARGUMENT if
// hwloc cannot read them, and with UNSUPPORTED if hwloc is not installed.
Result<Machine> parse_hwloc_xml(std::string_view xml);

}  // namespace hetcomm::topology
