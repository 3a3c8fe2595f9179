// Detects that processes on one host use the same device: most often all ranks were given the first
// device. A device is identified by its PCI address; devices without one have no claim. A claim is
// a socket that is visible only on this host, and ends with the process.
#pragma once

#include <mutex>
#include <vector>

#include "devices/device.h"
#include "src/system/log.h"
#include "src/system/unique_fd.h"

namespace hetcomm::capi {

class DeviceClaims {
 public:
  // Warns if another process has claimed |device|, and claims it otherwise. Errors while claiming
  // are ignored. [any-thread]
  void claim(const Device& device, Log& log);

 private:
  std::mutex mutex_;
  std::vector<UniqueFd> claims_;  // under |mutex_|
};

}  // namespace hetcomm::capi
