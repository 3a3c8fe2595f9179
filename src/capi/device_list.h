// The devices that HETCOMM_DEVICES names, before a context takes ownership of them.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "devices/device.h"
#include "src/base/status.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm::capi {

// Owns devices, and destroys those that no context has taken.
class DeviceList {
 public:
  DeviceList() = default;
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList();

  // Adds the host, and the devices that HETCOMM_DEVICES and HETCOMM_DEVICE_PLUGINS request.
  Status make(const Config& config, Log& log);
  // Transfers ownership of the devices to the caller, which destroys them.
  std::vector<Device> take() { return std::exchange(devices_, {}); }

 private:
  std::vector<Device> devices_;
};

// Whether the library itself provides devices of |kind|.
bool is_own_kind(std::string_view kind);

// Wraps an object of |kind| that a framework already uses as a device.
Result<Device> make_native_device(std::string_view kind, void* native, const Config& config,
                                  Log& log);

}  // namespace hetcomm::capi
