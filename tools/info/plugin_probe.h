// Tries plug-ins in child processes first, since a plug-in may terminate its process.
#pragma once

namespace hetcomm_info {

// Tries the plug-ins and devices in HETCOMM_DEVICE_PLUGINS and HETCOMM_DEVICES. If one terminates
// its process or hangs, reports that on standard error, removes both variables from the
// environment, so that the rest can be shown, and returns false. The process must have one thread
// and no context.
bool probe_plugins();

}  // namespace hetcomm_info
