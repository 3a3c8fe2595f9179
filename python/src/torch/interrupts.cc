#include "python/src/torch/interrupts.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <thread>
#include <torch/csrc/utils/pybind.h>

#include "python/src/torch/log.h"

namespace hetcomm::torch_backend {

void check_signals() {
  // Signal handlers run on the main thread. Other threads must not acquire the GIL here, because
  // the interpreter may be shutting down.
  if (syscall(SYS_gettid) != getpid() || Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

void wait_in_steps(const char* what, const std::function<bool(std::chrono::milliseconds)>& wait) {
  constexpr std::chrono::seconds kBetweenLines(10);
  auto next_line = std::chrono::steady_clock::now() + kBetweenLines;
  while (!wait(kSignalInterval) && Py_IsInitialized() != 0) {
    check_signals();
    if (std::chrono::steady_clock::now() < next_line) continue;
    log_warning("the end of a group waits for ", what);
    next_line += kBetweenLines;
  }
}

void WaitingThread::let_all_return() {
  constexpr std::chrono::milliseconds kMax(500);
  constexpr std::chrono::milliseconds kToTakeTheLock(30);
  const auto deadline = std::chrono::steady_clock::now() + kMax;
  while (any() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(kToTakeTheLock);
}

}  // namespace hetcomm::torch_backend
