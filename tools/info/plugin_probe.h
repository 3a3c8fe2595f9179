// Tries plug-ins in child processes first, since a plug-in may end its process.
#pragma once

namespace hetcomm_info {

// Tries the plug-ins and devices that HETCOMM_DEVICE_PLUGINS and HETCOMM_DEVICES name. If one ends
// its process, reports that on standard error, removes both variables from the environment, so that
// the rest can be shown, and returns false. Must be called with one thread and without a context.
bool probe_plugins();

}  // namespace hetcomm_info
