// A Doorbell is an eventfd with which any thread can wake the thread that sleeps in the poller.
//
// While a thread sleeps, only that thread may silence the doorbell, after it wakes up. If a polling
// thread did so, it would consume the sleeper's wake-up.
#pragma once

#include <cstdint>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/net/poller.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

class Doorbell final : public Watcher {
 public:
  // Creates the eventfd and registers it with |poller|.
  Status open(Poller& poller);

  // Returns the descriptor to which a thread writes to ring the doorbell. [any-thread]
  int fd() const { return fd_.get(); }
  void ring() const;     // [any-thread]
  void silence() const;  // [any-thread]

  // Returns whether the poller has reported the doorbell since the previous call.
  bool take_rung() HETCOMM_UNDER_BATON { return std::exchange(rung_, false); }

 private:
  void on_events(uint32_t /*events*/) override HETCOMM_UNDER_BATON { rung_ = true; }

  UniqueFd fd_;
  bool rung_ HETCOMM_GUARDED_BY_BATON = false;
};

}  // namespace hetcomm
