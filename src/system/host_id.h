// Reads the id of this host.
#pragma once

#include "src/base/host_id.h"

namespace hetcomm {

// Returns the id of this host, or kUnknownHost if the kernel does not report one.
HostId read_host_id();

}  // namespace hetcomm
