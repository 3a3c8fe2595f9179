// Tells the user about entries of HETCOMM_INTERFACE that name nothing.
#pragma once

#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// Warns once about every entry that matches no interface that is up, and lists those that are up.
void warn_of_unknown_interfaces(const Config& config, Log& log);

}  // namespace hetcomm
