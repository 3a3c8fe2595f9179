// The descriptor by which devices end a sleep when copies have completed (event_notify). Devices may
// write to it until they are destroyed.
#pragma once

#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/net/poller.h"

namespace hetcomm {

class CopyNotice final : public Watcher {
 public:
  // |poller| watches it from now on.
  Status open(Poller& poller);
  // Negative while it is not open.
  int fd() const { return fd_.get(); }

 private:
  void on_events(uint32_t events) override;

  UniqueFd fd_;
};

}  // namespace hetcomm
