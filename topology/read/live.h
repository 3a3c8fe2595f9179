// The Machine of the host that this process runs on.
#pragma once

#include <optional>
#include <string>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads the host from the files below |sys|. hwloc is asked only if there is a choice: an
// accelerator, or several physical NICs that are up. Without hwloc the files alone are used.
Result<Machine> read_live_machine(const std::string& sys = "/sys");

// Whether the host offers no choice within it but shared memory and loopback: it has no RDMA
// device, and one NUMA node.
bool is_live_host_plain(const std::string& sys = "/sys");

// The same host as far as read_only_nic() of sysfs.h reads it, or nothing if that is not enough.
std::optional<Machine> read_live_nic(const std::string& sys = "/sys");

}  // namespace hetcomm::topology
