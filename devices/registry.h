// Declares the functions with which src/capi creates devices. Each folder devices/<x> defines its
// own. |options| is the text after the name in HETCOMM_DEVICES ("bandwidth=10G:latency=2us").
#pragma once

#include <string_view>

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

// devices/host: makes the device of the CPU's own memory. Its streams run copies immediately.
Result<Device> create_host_device();

// devices/sim: makes a simulated accelerator. |kind| is "sim-handle" (memory named by handle and
// offset only) or "sim-address" (addresses that the CPU cannot touch). devices/sim/options.h lists
// the |options|.
Result<Device> create_sim_device(std::string_view kind, std::string_view options);

// devices/opencl: makes a device from any vendor with OpenCL 1.2. |options|: such as "1" or
// "platform=intel:0". Defined only if HETCOMM_HAS_OPENCL is.
Result<Device> create_opencl_device(std::string_view options);
// Makes the device for a caller's cl_context, which is retained. kInvalidArgument: |native| is no
// context.
Result<Device> create_opencl_device_from(void* native);

}  // namespace hetcomm
