// The Machine of the host that this process runs on.
#pragma once

#include <string>

#include "src/base/status.h"
#include "topology/machine.h"

namespace hetcomm::topology {

// Reads the host from the files below |sys|. hwloc is asked only where there is something to
// choose: an accelerator, or several physical NICs that are up. Where hwloc is missing the files
// have to do.
Result<Machine> read_live_machine(const std::string& sys = "/sys");

}  // namespace hetcomm::topology
