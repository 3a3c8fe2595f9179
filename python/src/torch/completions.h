// Tracks which threads complete the works of a group. Hooks and callbacks run on these threads.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace hetcomm::torch_backend {

class Completions {
 public:
  // Marks the calling thread, for the scope's lifetime, as completing a work or doing something
  // else for the group. Scopes on one thread are nested.
  class Scope {
   public:
    explicit Scope(Completions& completions);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Completions;
    Completions& completions_;
    const Scope* const outer_;
  };

  Completions() = default;
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Whether the calling thread has a scope, in any group. Another thread may wait for this thread,
  // so it must not wait for other threads' scopes.
  static bool any_here() { return innermost_ != nullptr; }

  // Waits until only the |own| scopes of the calling thread are left. Returns false if others
  // remain after |limit|.
  bool wait_for_others(size_t own, std::chrono::steady_clock::duration limit);

 private:
  constinit static thread_local const Scope* innermost_;

  std::atomic<size_t> count_{0};
  std::atomic<bool> waited_for_{false};
  std::mutex mutex_;  // for the wait only
  std::condition_variable changed_;
};

}  // namespace hetcomm::torch_backend
