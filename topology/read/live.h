// The Machine of the host that this process runs on.
#pragma once

#include <optional>
#include <string>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads the host from the files below |sys|. hwloc is used only if there is a choice: an
// accelerator, or several physical NICs that are up. Without hwloc only the files are used.
Result<Machine> read_live_machine(const std::string& sys = "/sys");

// Whether the host offers only shared memory and loopback between its ranks: it has no RDMA device,
// and one NUMA node.
bool is_live_host_plain(const std::string& sys = "/sys");

// Returns the host as far as read_only_nic() in sysfs.h reads it, or nothing if that does not
// suffice.
std::optional<Machine> read_live_nic(const std::string& sys = "/sys");

}  // namespace hetcomm::topology
