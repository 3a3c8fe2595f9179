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
  // While a scope lives, the calling thread completes a work or does something else for the group.
  // Scopes of one thread are nested.
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

  // Whether the calling thread has a scope, of any group. Another thread may wait for it, so it
  // must not wait for other threads' scopes.
  static bool any_here() { return innermost_ != nullptr; }

  // Returns true when only |own| scopes are left, those of the calling thread. Returns false if
  // there are still more after |limit|.
  bool wait_for_others(size_t own, std::chrono::steady_clock::duration limit);

 private:
  constinit static thread_local const Scope* innermost_;

  std::atomic<size_t> count_{0};
  std::atomic<bool> waited_for_{false};
  std::mutex mutex_;  // for the wait only
  std::condition_variable changed_;
};

}  // namespace hetcomm::torch_backend
