// Tries plug-ins in child processes first, since a plug-in may end its process.
#pragma once

namespace hetcomm_info {

// Tries the plug-ins and devices that HETCOMM_DEVICE_PLUGINS and HETCOMM_DEVICES name. An entry
// that ends its process is reported on standard error and removed from the environment, so that the
// rest can be shown. Returns false if an entry was removed. Must be called with one thread and
// without a context.
bool probe_plugins();

}  // namespace hetcomm_info
