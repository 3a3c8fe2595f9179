// Detects that two processes on one host use the same device. Most often the cause is that every
// rank was given the first device. A process claims a device by a socket that is visible only on
// this host. The claim ends with the process. Devices are told apart by their PCI addresses, so a
// device without one is never claimed.
#pragma once

#include <mutex>
#include <vector>

#include "devices/device.h"
#include "src/system/log.h"
#include "src/system/unique_fd.h"

namespace hetcomm::capi {

class DeviceClaims {
 public:
  // Claims |device|, or warns if another process has claimed it. Errors while claiming are ignored.
  // [any-thread]
  void claim(const Device& device, Log& log);

 private:
  std::mutex mutex_;
  std::vector<UniqueFd> claims_;  // guarded by |mutex_|
};

}  // namespace hetcomm::capi
