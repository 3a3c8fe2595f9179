// Threads that wait in the library do so without the interpreter's lock. Here they learn what the
// interpreter wants of them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

namespace hetcomm::torch_backend {

// A wait looks for signals this often.
inline constexpr std::chrono::milliseconds kSignalInterval(200);

// Runs the interpreter's signal handlers, which run on its main thread only, and throws what they
// raise: KeyboardInterrupt after Ctrl-C. Nothing on other threads.
void check_signals();

// Calls |wait| until it returns true. |wait| waits for at most the time that it is given, and
// returns whether |what| has come about. Signals are checked between the calls. A line of the log
// says every 10 s that the end of a group waits for |what|. Returns early where the interpreter has
// ended: hooks and callbacks of Python do not come back then.
void wait_in_steps(const char* what, const std::function<bool(std::chrono::milliseconds)>& wait);

// A thread that waits for an operation, or drops what may be of Python. Where the interpreter ends
// while daemon threads wait, here or for a future, their operations are ended; a thread that comes
// back later than that would be ended by the interpreter, inside of functions of torch that no
// exception may leave.
class WaitingThread {
 public:
  WaitingThread() { count_.fetch_add(1, std::memory_order_relaxed); }
  ~WaitingThread() { count_.fetch_sub(1, std::memory_order_relaxed); }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

  static bool any() { return count_.load(std::memory_order_relaxed) > 0; }
  // Gives threads whose operations were ended the time to come back. The caller does not hold the
  // interpreter's lock.
  static void let_all_return();

 private:
  static inline std::atomic<int> count_{0};
};

}  // namespace hetcomm::torch_backend
