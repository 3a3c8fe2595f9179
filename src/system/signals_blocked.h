// SignalsBlocked blocks signals in the current thread while the object exists. A thread started
// during that time inherits the mask, so the application's signal handlers never run on it. Signals
// that an instruction raises, such as SIGSEGV, are not blocked, because they must be handled on the
// thread that raised them.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace hetcomm {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, own);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace hetcomm
