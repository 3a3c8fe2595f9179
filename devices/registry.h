// Each folder devices/<x> offers create_<x>(options, out_device) to capi. Options are the text
// after the name in HETCOMM_DEVICES ("bandwidth=10G:latency=2us").
#pragma once

#include <string_view>

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

// devices/host: the CPU's own memory; streams run copies at once.
Result<Device> create_host_device();

// devices/sim: an accelerator stand-in. |kind| is "sim-handle" (memory known by handle and offset
// only) or "sim-address" (addresses that the CPU cannot touch). Options: bandwidth (bytes/s, 0:
// unlimited), latency (per copy), memory (size of the device, default 4G). pageable_factor is not
// modelled.
Result<Device> create_sim_device(std::string_view kind, std::string_view options);

// devices/opencl: a device of any vendor that has OpenCL 1.2. |options|: "1", "platform=intel:0".
// It is present if HETCOMM_HAS_OPENCL is defined.
Result<Device> create_opencl_device(std::string_view options);
// The device of a caller's cl_context, which is retained. kInvalidArgument: |native| is no context.
Result<Device> create_opencl_device_from(void* native);

}  // namespace hetcomm
