// Plug-ins may end the process, so children try them first.
#pragma once

namespace hetcomm_info {

// Tries what HETCOMM_DEVICE_PLUGINS and HETCOMM_DEVICES name. Anything that ends the process is
// reported on standard error and removed from the environment, so that the rest can be shown.
// Returns false if that happened. Call with one thread and without a context.
bool probe_plugins();

}  // namespace hetcomm_info
