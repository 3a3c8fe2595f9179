// Memory of devices that the NIC reaches by itself: how it is registered, and the trial that says
// whether that works.
//
// Two ways are tried in this order: a dma-buf that the device exports, and plain registration of an
// address that the kernel, or a vendor's peer memory module, finds. A registration that succeeds is
// no proof (the kernel may have registered something else, the bus may not let the NIC through): a
// way is taken once the NIC has written to the device and the device has read that back, and the
// contrary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "devices/device.h"
#include "src/base/status.h"
#include "src/system/config.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/verbs.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

enum class DeviceWay : uint8_t { kDmaBuf, kPlain };
const char* way_name(DeviceWay way);

struct Registered {
  ibv_mr* mr = nullptr;
  uint64_t address = 0;  // by which work requests and keys name its first byte
};
// [address + offset, + length) of |device|. The text of a refusal is the reason alone.
Result<Registered> register_device_memory(const Verbs& verbs, ibv_pd* pd, DeviceWay way,
                                          const hetcomm::Device& device, const void* address,
                                          uint64_t offset, uint64_t length, int access);

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
