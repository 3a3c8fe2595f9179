// Declares the configuration variables that select devices.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kDevices(
    kText, kNoFile, "HETCOMM_DEVICES", "", nullptr,
    "Devices beside the host, with their settings, such as 'sim-handle:bandwidth=10G:latency=2us' "
    "or "
    "several, with commas between them. {local_rank} stands for the number of this process among "
    "the launcher's on its host. Kinds: opencl, sim-handle, sim-address, and those of "
    "HETCOMM_DEVICE_PLUGINS.");
inline constexpr Variable kDevicePlugins(
    kText, kFile, "HETCOMM_DEVICE_PLUGINS", "", nullptr,
    "Shared libraries that bring further kinds of devices for HETCOMM_DEVICES, with commas "
    "between "
    "their paths (hetcomm/device_plugin.h).");

inline constexpr const Variable* kDevicesVariables[] = {&kDevices, &kDevicePlugins};

}  // namespace hetcomm::variable
