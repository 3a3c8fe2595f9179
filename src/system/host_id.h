// Reads the id of this host.
#pragma once

#include "src/base/host_id.h"

namespace hetcomm {

// kUnknownHost where the kernel does not tell.
HostId read_host_id();

}  // namespace hetcomm
