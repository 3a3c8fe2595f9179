// Creates the devices that HETCOMM_DEVICES lists. A context takes ownership of them later.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "devices/device.h"
#include "src/base/status.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm::capi {

// Owns devices until a context takes them. The destructor destroys the devices that were not taken.
class DeviceList {
 public:
  DeviceList() = default;
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList();

  // Adds the host, and the devices that HETCOMM_DEVICES lists. Their kinds are those of the library
  // and of the plug-ins in HETCOMM_DEVICE_PLUGINS.
  Status make(const Config& config, Log& log);
  // Transfers ownership of the devices to the caller, which must destroy them.
  std::vector<Device> take() { return std::exchange(devices_, {}); }

 private:
  std::vector<Device> devices_;
};

// Returns true if the library itself provides devices of |kind|.
bool is_own_kind(std::string_view kind);

// Creates a device from |native|, an object of |kind| that a framework already uses. Fails with
// NOT_FOUND if |kind| is unknown, and with UNSUPPORTED if devices of |kind| can only be created by
// HETCOMM_DEVICES.
Result<Device> make_native_device(std::string_view kind, void* native, const Config& config,
                                  Log& log);

}  // namespace hetcomm::capi
