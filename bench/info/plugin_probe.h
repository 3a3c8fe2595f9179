// Plug-ins that end the process: they are tried in children first.
#pragma once

namespace hetcomm_info {

// Tries what HETCOMM_DEVICE_PLUGINS and HETCOMM_DEVICES name. What ends the process is said on
// standard error and taken out of the environment, so that the rest can be shown. False: there was
// such a thing. One thread, no context yet.
bool probe_plugins();

}  // namespace hetcomm_info
