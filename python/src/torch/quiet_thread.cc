#include "python/src/torch/quiet_thread.h"

#include <signal.h>

#include <memory>
#include <utility>

namespace hetcomm::torch_backend {

std::thread start_without_signals(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // Signals that an instruction raises stay unblocked, because they are handled on the thread that
  // raised them.
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, own);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // The mask is also restored if the thread cannot be started.
  const std::shared_ptr<void> restore(
      nullptr, [&before](void*) { pthread_sigmask(SIG_SETMASK, &before, nullptr); });
  return std::thread(std::move(body));
}

}  // namespace hetcomm::torch_backend
