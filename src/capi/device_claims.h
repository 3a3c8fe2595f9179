// Detects when two processes on the same host use the same device, usually because every rank was
// configured to use the first device. A process claims a device by binding an abstract UNIX socket,
// which is visible only on this host. The claim ends when the process exits. Devices are identified
// by their PCI addresses, so a device without one is never claimed.
#pragma once

#include <mutex>
#include <vector>

#include "devices/device.h"
#include "src/system/log.h"
#include "src/system/unique_fd.h"

namespace hetcomm::capi {

class DeviceClaims {
 public:
  // Claims |device|, or logs a warning if another process has claimed it. Other errors are ignored.
  // [any-thread]
  void claim(const Device& device, Log& log);

 private:
  std::mutex mutex_;
  std::vector<UniqueFd> claims_;  // guarded by |mutex_|
};

}  // namespace hetcomm::capi
