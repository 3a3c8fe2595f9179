// Registers device memory so that the NIC can access it directly: as a dma-buf that the device
// exports, or at an address that the kernel or a vendor's peer memory module resolves.
#pragma once

#include <cstdint>

#include "devices/device.h"
#include "src/base/status.h"
#include "transports/rdma/verbs.h"

namespace hetcomm::rdma {

enum class DeviceWay : uint8_t { kDmaBuf, kPlain };
const char* way_name(DeviceWay way);

struct Registered {
  ibv_mr* mr = nullptr;
  uint64_t address = 0;  // address of the first byte in work requests and keys
};

// Returns kOk if the device and libibverbs support |way|.
Status offers(const Verbs& verbs, DeviceWay way, const hetcomm::Device& device);

// Registers the |length| bytes at |address| + |offset| of |device|, which must support |way|. The
// text of a failure gives only the reason.
Result<Registered> register_device_memory(const Verbs& verbs, ibv_pd* pd, DeviceWay way,
                                          const hetcomm::Device& device, const void* address,
                                          uint64_t offset, uint64_t length, int access);

// Converts |status|, which a function in the device's table returned, to a Status whose text names
// the failed call |what|.
Status device_refuses(const hetcomm::Device& device, hetcomm_status_t status, const char* what);

}  // namespace hetcomm::rdma
