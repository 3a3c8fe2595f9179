// The trial that determines whether the NIC can access a device's memory directly.
//
// The methods in device_registration.h are tried in this order: dma-buf, plain registration. A
// successful registration is no proof: the kernel may have registered something else, or the bus
// may block the NIC. A method is used only after the NIC has written to the device and the device
// has read the bytes back, and vice versa.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "devices/device.h"
#include "src/base/status.h"
#include "src/system/config.h"
#include "transports/rdma/device_registration.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/verbs.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

struct DeviceVerdict {
  std::optional<DeviceWay> way;
  std::string text;  // the outcome of each method that was tried
  // No method works, and at least one failed for a temporary reason: out of memory or other
  // resources, or a busy NIC.
  bool may_change = false;
  HangingCopy hanging{};
};
// Transfers data to and from memory of the device's allocator, through separate queue pairs on port
// |nic| ("mlx5_0:1"), which it opens for this purpose. Takes a few milliseconds. If the NIC does
// not complete the write, the trial waits 0.1 s per method, in addition to the time of the device's
// own copies. It waits 0.5 s if HETCOMM_DEVICE_PATH=direct forbids staging. A device copy that
// takes over 5 s ends the trial.
DeviceVerdict try_device(const Verbs& verbs, const Config& config, const std::string& nic,
                         const ConnectionSettings& settings, const hetcomm::Device& device);

}  // namespace hetcomm::rdma
