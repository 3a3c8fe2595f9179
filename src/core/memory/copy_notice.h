// The descriptor by which devices end a sleep when copies have completed (event_notify). It is made
// when the first copy asks for it, so that a context without devices has none. Devices may write to
// it until they are destroyed.
#pragma once

#include "src/base/baton_role.h"
#include "src/net/poller.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

class CopyNotice final : public Watcher {
 public:
  // |poller| will watch it.
  void set_poller(Poller& poller) { poller_ = &poller; }
  // A device will not be destroyed, so the descriptor stays open permanently.
  void leave_open() { static_cast<void>(fd_.release()); }
  // Negative where it cannot be made, or there is no poller: then copies are polled.
  int fd() HETCOMM_UNDER_BATON;

 private:
  void on_events(uint32_t events) override;

  Poller* poller_ = nullptr;
  UniqueFd fd_;
};

}  // namespace hetcomm
