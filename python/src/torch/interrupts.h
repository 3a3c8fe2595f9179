// Lets threads wait in the library without the GIL. The waits react to signals and to the shutdown
// of the interpreter.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

namespace hetcomm::torch_backend {

// The interval at which a wait checks for signals.
inline constexpr std::chrono::milliseconds kSignalInterval(200);

// Runs the interpreter's signal handlers and rethrows their exceptions, such as KeyboardInterrupt
// after Ctrl-C. Handlers run only on the main thread. On other threads this function does nothing.
void check_signals();

// Calls |wait| until it returns true. |wait| blocks for at most the given time, and returns whether
// the event |what| has occurred. Signals are checked between the calls. Every 10 s a log line
// reports that the end of a group waits for |what|. Returns early if the interpreter has shut down,
// since Python hooks and callbacks then never return.
void wait_in_steps(const char* what, const std::function<bool(std::chrono::milliseconds)>& wait);

// While an object exists, its thread is counted as one that waits for an operation or drops
// references that may belong to Python. Before the interpreter shuts down, the library ends the
// operations for which daemon threads wait, and waits for the counted threads. The interpreter
// would terminate a thread that returned later, inside PyTorch functions that no exception may
// leave.
class WaitingThread {
 public:
  WaitingThread() { count_.fetch_add(1, std::memory_order_relaxed); }
  ~WaitingThread() { count_.fetch_sub(1, std::memory_order_relaxed); }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

  static bool any() { return count_.load(std::memory_order_relaxed) > 0; }
  // Waits until no counted threads are left, for at most about half a second. The caller has ended
  // their operations, and must not hold the GIL.
  static void let_all_return();

 private:
  static inline std::atomic<int> count_{0};
};

}  // namespace hetcomm::torch_backend
