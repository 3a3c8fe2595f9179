// How memory of devices is registered, so that the NIC reaches it directly: by a dma-buf that the
// device exports, or by an address that the kernel, or a vendor's peer memory module, finds.
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
  uint64_t address = 0;  // by which work requests and keys name its first byte
};

// Whether the device and libibverbs have what |way| needs.
Status offers(const Verbs& verbs, DeviceWay way, const hetcomm::Device& device);

// Registers [address + offset, + length) of |device|, which offers |way|. The text of a refusal is
// the reason alone.
Result<Registered> register_device_memory(const Verbs& verbs, ibv_pd* pd, DeviceWay way,
                                          const hetcomm::Device& device, const void* address,
                                          uint64_t offset, uint64_t length, int access);

// |status| of a function of the device's table, with a text that says what failed.
Status device_refuses(const hetcomm::Device& device, hetcomm_status_t status, const char* what);

}  // namespace hetcomm::rdma
