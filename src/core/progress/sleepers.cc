#include "src/core/progress/sleepers.h"

#include <utility>

namespace hetcomm {

Status Sleepers::open() {
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) return poller.status();
  poller_ = std::make_unique<Poller>(std::move(poller.value()));
  return doorbell_.open(*poller_);
}

void Sleepers::wake() {
  wake_word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(wake_word_);
  if (sleeper_.load(std::memory_order_seq_cst) == Role::kWaiter) doorbell_.ring();
}

}  // namespace hetcomm
