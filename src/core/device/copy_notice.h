// CopyNotice owns the eventfd that devices signal (event_notify) when copies complete, to wake a
// sleeping thread. The descriptor is created when the first copy needs it, so a context without
// devices has none. Devices may write to it until they are destroyed.
#pragma once

#include "src/base/baton_role.h"
#include "src/net/poller.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

class CopyNotice final : public Watcher {
 public:
  // Sets the poller that will watch the descriptor.
  void set_poller(Poller& poller) { poller_ = &poller; }
  // Leaves the descriptor open permanently, because a device will not be destroyed.
  void leave_open() { static_cast<void>(fd_.release()); }
  // Returns the descriptor; negative if it cannot be made or there is no poller. Without a
  // descriptor, copies are polled.
  int fd() HETCOMM_UNDER_BATON;

 private:
  void on_events(uint32_t events) override;

  Poller* poller_ = nullptr;
  UniqueFd fd_;
};

}  // namespace hetcomm
