// Tells processes of one host that they use the same device: most often ranks that were all given
// the first one. A device is identified by its PCI address; devices without one have no claim. A
// claim is a socket that only this host sees, and it ends with the process.
#pragma once

#include <mutex>
#include <vector>

#include "devices/device.h"
#include "src/system/log.h"
#include "src/system/unique_fd.h"

namespace hetcomm::capi {

class DeviceClaims {
 public:
  // Warns if another process has claimed |device|, and claims it otherwise. An obstacle to claiming
  // is not a failure. [any-thread]
  void claim(const Device& device, Log& log);

 private:
  std::mutex mutex_;
  std::vector<UniqueFd> claims_;  // under |mutex_|
};

}  // namespace hetcomm::capi
