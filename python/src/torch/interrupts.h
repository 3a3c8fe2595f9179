// Lets threads wait in the library without the GIL, and handles the interpreter's requests to these
// threads.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

namespace hetcomm::torch_backend {

// Interval at which a wait checks for signals.
inline constexpr std::chrono::milliseconds kSignalInterval(200);

// Runs the interpreter's signal handlers and rethrows their exceptions, such as KeyboardInterrupt
// after Ctrl-C. The handlers run on the main thread only; on other threads this does nothing.
void check_signals();

// Calls |wait| until it returns true. |wait| blocks for at most the given time, and returns whether
// |what| has happened. Signals are checked between the calls. Every 10 s a log line reports that
// the end of a group waits for |what|. Returns early if the interpreter has ended, since Python
// hooks and callbacks then never return.
void wait_in_steps(const char* what, const std::function<bool(std::chrono::milliseconds)>& wait);

// A thread that waits for an operation, or drops references that may belong to Python. If the
// interpreter ends while daemon threads wait, here or for a future, their operations are ended. The
// interpreter would end a thread that returns later, within torch functions that no exception may
// leave.
class WaitingThread {
 public:
  WaitingThread() { count_.fetch_add(1, std::memory_order_relaxed); }
  ~WaitingThread() { count_.fetch_sub(1, std::memory_order_relaxed); }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

  static bool any() { return count_.load(std::memory_order_relaxed) > 0; }
  // Waits a limited time for threads whose operations were ended to return. The caller must not
  // hold the GIL.
  static void let_all_return();

 private:
  static inline std::atomic<int> count_{0};
};

}  // namespace hetcomm::torch_backend
