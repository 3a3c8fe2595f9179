// The trial that says whether the NIC reaches the memory of a device by itself.
//
// The ways of device_registration.h are tried in this order: dma-buf, plain registration. A
// registration that succeeds is no proof (the kernel may have registered something else, the bus
// may not let the NIC through): a way is taken once the NIC has written to the device and the
// device has read that back, and the contrary.
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
  std::string text;  // of each way that was tried, what came of it
  // There is no way, and one of them failed by something that passes: want of memory or of other
  // resources, or a NIC that had too much to do.
  bool may_change = false;
  HangingCopy hanging{};
};
// Writes to memory of the device's allocator, and from it, through queue pairs of its own on port
// |nic| ("mlx5_0:1"), which it opens for the purpose. Takes a few milliseconds. A NIC that does not
// finish is waited for 0.1 s for each way, in addition to what the device's own copies take; for
// 0.5 s where HETCOMM_DEVICE_PATH=direct makes the operation fail otherwise. A copy of the device
// that takes over 5 s ends the trial.
DeviceVerdict try_device(const Verbs& verbs, const Config& config, const std::string& nic,
                         const ConnectionSettings& settings, const hetcomm::Device& device);

}  // namespace hetcomm::rdma
