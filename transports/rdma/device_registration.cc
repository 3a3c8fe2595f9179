#include "transports/rdma/device_registration.h"

#include <cerrno>

#include <fmt/core.h>

#include "src/system/unique_fd.h"

namespace hetcomm::rdma {

const char* way_name(DeviceWay way) {
  return way == DeviceWay::kDmaBuf ? "dma-buf" : "plain registration";
}

Status offers(const Verbs& verbs, DeviceWay way, const hetcomm::Device& device) {
  const DeviceTable& table = *device.table;
  if (way == DeviceWay::kPlain) {
    if (table.registrable_address != nullptr) return {};
    return {Code::kUnsupported, "the device names no address for it"};
  }
  if (table.export_dmabuf == nullptr) return {Code::kUnsupported, "the device exports none"};
  if (verbs.reg_dmabuf_mr != nullptr) return {};
  return {Code::kUnsupported, "libibverbs has no ibv_reg_dmabuf_mr"};
}

Result<Registered> register_device_memory(const Verbs& verbs, ibv_pd* pd, DeviceWay way,
                                          const hetcomm::Device& device, const void* address,
                                          uint64_t offset, uint64_t length, int access) {
  const DeviceTable& table = *device.table;
  Registered made;
  if (way == DeviceWay::kPlain) {
    void* registrable = nullptr;
    HETCOMM_RETURN_IF_ERROR(device_refuses(
        device, table.registrable_address(device.instance, address, offset, length, &registrable),
        "naming an address"));
    made = {verbs.reg_mr(pd, registrable, length, access), reinterpret_cast<uint64_t>(registrable)};
    if (made.mr == nullptr) return status_from_errno(errno, "ibv_reg_mr");
    return made;
  }
  int descriptor = -1;
  uint64_t begin = 0;
  HETCOMM_RETURN_IF_ERROR(device_refuses(
      device, table.export_dmabuf(device.instance, address, offset, length, &descriptor, &begin),
      "exporting a dma-buf"));
  const UniqueFd file(descriptor);
  // The offset in the dma-buf also serves as the address, since both must have the same offset
  // within a page.
  made = {verbs.reg_dmabuf_mr(pd, begin, length, begin, file.get(), access), begin};
  if (made.mr == nullptr) return status_from_errno(errno, "ibv_reg_dmabuf_mr");
  return made;
}

Status device_refuses(const hetcomm::Device& device, hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return {};
  return {static_cast<Code>(status), fmt::format("{}: {}: {}", device.table->kind, what,
                                                 code_text(static_cast<Code>(status)))};
}

}  // namespace hetcomm::rdma
