// Threads wait in the library without the interpreter's lock. These functions handle the
// interpreter's requests to them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

namespace hetcomm::torch_backend {

// A wait checks for signals at this interval.
inline constexpr std::chrono::milliseconds kSignalInterval(200);

// Runs the interpreter's signal handlers and throws what they raise: KeyboardInterrupt after
// Ctrl-C. The handlers run on the main thread only; on other threads this does nothing.
void check_signals();

// Calls |wait| until it returns true. |wait| waits for at most the time that it is given, and
// returns whether |what| has happened. Signals are checked between the calls. Every 10 s a line of
// the log says that the end of a group waits for |what|. Returns early if the interpreter has
// ended: hooks and callbacks of Python do not return then.
void wait_in_steps(const char* what, const std::function<bool(std::chrono::milliseconds)>& wait);

// A thread that waits for an operation, or drops references that may belong to Python. If the
// interpreter ends while daemon threads wait, here or for a future, their operations are ended. A
// thread that returns later than that would be ended by the interpreter, within functions of torch
// that no exception may leave.
class WaitingThread {
 public:
  WaitingThread() { count_.fetch_add(1, std::memory_order_relaxed); }
  ~WaitingThread() { count_.fetch_sub(1, std::memory_order_relaxed); }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

  static bool any() { return count_.load(std::memory_order_relaxed) > 0; }
  // Gives threads whose operations were ended time to return. The caller does not hold the
  // interpreter's lock.
  static void let_all_return();

 private:
  static inline std::atomic<int> count_{0};
};

}  // namespace hetcomm::torch_backend
