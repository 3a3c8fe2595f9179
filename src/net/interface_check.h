// Warns the user about entries in HETCOMM_INTERFACE that match nothing.
#pragma once

#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// Warns once about each entry that matches no interface that is up, and lists the interfaces that
// are.
void warn_of_unknown_interfaces(const Config& config, Log& log);

}  // namespace hetcomm
