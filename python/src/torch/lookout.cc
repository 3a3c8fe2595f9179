#include "python/src/torch/lookout.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "python/src/torch/log.h"
#include "python/src/torch/quiet_thread.h"

namespace hetcomm::torch_backend {

using Clock = std::chrono::steady_clock;

namespace {

bool wants_another(const Lookout::Look& look) noexcept {
  try {
    return look();
  } catch (...) {
    log_thrown("a look after operations");
    return true;
  }
}

}  // namespace

Lookout::~Lookout() {
  if (thread_.joinable() && getpid() != process_) {
    thread_.detach();
    return;
  }
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stops = true;
    state_->called.notify_one();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Lookout::add(Look look) {
  const std::scoped_lock lock(state_->mutex);
  state_->added.push_back(std::move(look));
  if (thread_.joinable()) {
    state_->called.notify_one();
    return;
  }
  process_ = getpid();
  try {
    thread_ = start_without_signals([state = state_] { run(*state); });
  } catch (...) {
    state_->added.pop_back();
    throw;
  }
}

void Lookout::run(State& state) {
  prctl(PR_SET_NAME, "hetcomm-lookout");
  std::list<Look> looks;
  Clock::duration pause = kPause;
  std::unique_lock lock(state.mutex);
  while (true) {
    if (looks.empty()) {
      state.called.wait(lock, [&state] { return state.stops || !state.added.empty(); });
    }
    // A function that is added during the pause is called at the end of the pause.
    if (state.called.wait_for(lock, pause, [&state] { return state.stops; })) break;
    looks.splice(looks.end(), state.added);
    lock.unlock();
    const auto began = Clock::now();
    looks.remove_if([](const Look& look) { return !wants_another(look); });
    pause = std::max<Clock::duration>(kPause, 4 * (Clock::now() - began));
    lock.lock();
  }
  lock.unlock();
  looks.clear();
}

}  // namespace hetcomm::torch_backend
