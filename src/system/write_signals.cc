#include "src/system/write_signals.h"

#include <pthread.h>

#include <cerrno>
#include <ctime>

namespace hetcomm {
namespace {

// Consumes |signal| if it is pending for this thread. Returns false if the kernel refuses.
bool take_back(int signal) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  const timespec at_once{};
  int taken = -1;
  do {
    taken = sigtimedwait(&one, nullptr, &at_once);
  } while (taken < 0 && errno == EINTR);
  return taken == signal || errno == EAGAIN;
}

}  // namespace

WriteSignals::WriteSignals() {
  sigemptyset(&pending_);
  sigpending(&pending_);
  sigset_t raised;
  sigemptyset(&raised);
  for (const int signal : kRaised) sigaddset(&raised, signal);
  blocked_ = pthread_sigmask(SIG_BLOCK, &raised, &before_) == 0;
}

WriteSignals::~WriteSignals() {
  if (!blocked_) return;
  const int kept = errno;
  for (const int signal : kRaised) {
    if (sigismember(&pending_, signal) == 1) continue;
    if (!take_back(signal)) sigaddset(&before_, signal);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = kept;
}

}  // namespace hetcomm
