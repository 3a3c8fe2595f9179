// try_device() runs a trial to determine whether the NIC can access a device's memory directly.
//
// The methods in device_registration.h are tried in this order: dma-buf, plain registration. A
// successful registration is not sufficient: the kernel may have registered something else, or the
// bus may block the NIC. A method is used only after two checks: the device has read the bytes that
// the NIC wrote, and the NIC has read the bytes that the device wrote.
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
  std::optional<DeviceWay> way;  // the method that works; empty if none does
  std::string text;              // the outcome of each method that was tried
  // True if no method works and at least one failed for a temporary reason: lack of memory or other
  // resources, or a busy NIC.
  bool may_change = false;
  HangingCopy hanging{};
};
// Runs the trial. Opens port |nic| ("mlx5_0:1") separately, and uses its own queue pairs and memory
// from the allocator of |device|.
//
// The trial usually takes a few milliseconds. If the NIC does not complete a write, each method
// waits 0.1 s, or 0.5 s if HETCOMM_DEVICE_PATH=direct forbids staging. The device's own copies take
// additional time. A copy that takes over 5 s ends the trial.
DeviceVerdict try_device(const Verbs& verbs, const Config& config, const std::string& nic,
                         const ConnectionSettings& settings, const hetcomm::Device& device);

}  // namespace hetcomm::rdma
