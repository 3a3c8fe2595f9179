// Reads the Machine of the host on which this process runs.
#pragma once

#include <optional>
#include <string>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads the host from the files below |sys|. If there is an accelerator, or there are several
// physical NICs that are not down, there is a choice to make. In that case, if hwloc is installed,
// reads everything except the NICs through hwloc instead.
Result<Machine> read_live_machine(const std::string& sys = "/sys");

// Returns whether the host is plain: it has no RDMA device, and at most one NUMA node. Its ranks
// can then reach each other only through shared memory and loopback.
bool is_live_host_plain(const std::string& sys = "/sys");

// Returns the result of read_only_nic() (sysfs.h) for this process's interfaces, checked and
// normalized. Returns nothing if read_live_machine() has to be used.
std::optional<Machine> read_live_nic(const std::string& sys = "/sys");

}  // namespace hetcomm::topology
