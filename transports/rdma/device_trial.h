// The trial that says whether the NIC reaches the memory of a device directly.
//
// The ways of device_registration.h are tried in this order: dma-buf, plain registration. A
// successful registration is no proof: the kernel may have registered something else, or the bus
// may not let the NIC through. A way is taken once the NIC has written to the device and the device
// has read that back, and vice versa.
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
  std::string text;  // the outcome of each way that was tried
  // There is no way, and one of them failed for a temporary reason: lack of memory or of other
  // resources, or a busy NIC.
  bool may_change = false;
  HangingCopy hanging{};
};
// Writes to and from memory of the device's allocator, through separate queue pairs on port |nic|
// ("mlx5_0:1"), which it opens for the purpose. Takes a few milliseconds. It waits 0.1 s per way
// for a NIC that does not finish, in addition to the time of the device's own copies. The wait is
// 0.5 s where HETCOMM_DEVICE_PATH=direct makes the operation fail otherwise. A copy of the device
// that takes over 5 s ends the trial.
DeviceVerdict try_device(const Verbs& verbs, const Config& config, const std::string& nic,
                         const ConnectionSettings& settings, const hetcomm::Device& device);

}  // namespace hetcomm::rdma
