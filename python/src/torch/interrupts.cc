#include "python/src/torch/interrupts.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <torch/csrc/utils/pybind.h>

namespace hetcomm::torch_backend {

void check_signals() {
  // Others may not take the interpreter's lock while it ends.
  if (syscall(SYS_gettid) != getpid() || Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

void WaitingThread::let_all_return() {
  constexpr std::chrono::milliseconds kMost(500);
  constexpr std::chrono::milliseconds kToTakeTheLock(30);
  const auto deadline = std::chrono::steady_clock::now() + kMost;
  while (any() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(kToTakeTheLock);
}

std::thread start_without_signals(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // Those that an instruction raises are handled where it is.
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, own);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // The mask is restored also when the thread cannot be started.
  const std::shared_ptr<void> restore(
      nullptr, [&before](void*) { pthread_sigmask(SIG_SETMASK, &before, nullptr); });
  return std::thread(std::move(body));
}

}  // namespace hetcomm::torch_backend
