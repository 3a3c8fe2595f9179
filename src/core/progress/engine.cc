#include "src/core/progress/engine.h"

namespace hetcomm {

Status Engine::start(const EngineOptions& options) {
  alive_word_ = options.alive_word;
  // The background thread is a second user of the lock, so the lock must not favor a sole user.
  HETCOMM_RETURN_IF_ERROR(
      baton_.start(options.thread ? BiasedLock::Bias::kNever : BiasedLock::Bias::kSoleUser));
  spin_.set_up(options.spin_ns, options.adapts_spin, options.yield);
  if (options.thread) background_.enable();
  return {};
}

void Engine::poke() {
  // The background thread notices all work, whether or not it sleeps.
  if (threaded() && baton_.sleepers().sleeper() == Sleepers::Role::kBackground) return;
  if (!try_lock()) return;
  {
    const Held held(*this);
    begin_work();
    baton_.passes().run_once();
  }
  if (threaded() && baton_.tally().some_pending()) note_pending();
}

}  // namespace hetcomm
