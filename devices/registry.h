// Declares the functions with which src/capi creates devices. Each folder devices/<x> defines its
// own. |options| is the text after the name in HETCOMM_DEVICES ("bandwidth=10G:latency=2us").
#pragma once

#include <string_view>

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

// devices/host: creates the device for the CPU's own memory. Its streams run copies immediately.
Result<Device> create_host_device();

// devices/sim: creates a simulated accelerator. |kind| is "sim-handle" (memory is identified only
// by a handle and an offset) or "sim-address" (addresses that the CPU cannot access).
// devices/sim/options.h lists the |options|.
Result<Device> create_sim_device(std::string_view kind, std::string_view options);

// devices/opencl: creates a device from any vendor with OpenCL 1.2. |options| is a text such as "1"
// or "platform=intel:0". Defined only if HETCOMM_HAS_OPENCL is.
Result<Device> create_opencl_device(std::string_view options);
// Creates the device for a caller's cl_context, which is retained. kInvalidArgument: |native| is
// not a context.
Result<Device> create_opencl_device_from(void* native);

}  // namespace hetcomm
