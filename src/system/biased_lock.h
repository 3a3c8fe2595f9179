// BiasedLock is a try-lock that a sole user can take without an atomic read-modify-write
// instruction.
//
// As long as only one thread uses the lock, and does so with the "as_user" functions, that thread
// is the sole user: it takes the lock with two plain stores and a few loads. The first call by any
// other thread ends this role permanently, at the cost of a membarrier() call. From then on the
// lock is an ordinary try-lock.
//
//   nobody yet --first call as a user--> sole user --call of another thread--> ending --> shared
//
// Mutual exclusion: the sole user announces that it is inside, and then checks that it still is the
// sole user and that the word is free. The other thread revokes the role, fences on all
// processors, and then checks whether the sole user is inside. One of the two sees the other.
//
// try_lock() can fail although no thread holds the lock, because another thread is just trying to
// take it. A thread that has held the lock or failed to take it must then check for work that
// others left to it (see Engine).
#pragma once

#include <atomic>
#include <cstdint>

#include "src/system/membarrier.h"

namespace hetcomm {

class BiasedLock {
 public:
  enum class Bias : uint8_t { kNever, kSoleUser };

  // Prepares the lock for its first use. There is no sole user if |bias| is kNever or the kernel
  // lacks membarrier().
  void set_up(Bias bias);

  // [any-thread]
  bool try_lock() {
    return (sole_.load(std::memory_order_relaxed) == self() && enter()) || try_lock_shared();
  }
  // Same as try_lock(), but the first thread that calls this or try_enter_as_user() becomes the
  // sole user. [any-thread]
  bool try_lock_as_user() {
    return (sole_.load(std::memory_order_relaxed) == self() && enter()) || try_lock_new_user();
  }
  // Takes the lock if it is free and this thread is, or becomes, the sole user. A call by any other
  // thread fails and ends the role of the sole user, which may still be inside. After a failure,
  // other threads may have left work to this thread. [any-thread]
  bool try_enter_as_user() {
    if (sole_.load(std::memory_order_relaxed) == self()) [[likely]]
      return enter();
    return enter_new_user();
  }
  // Returns whether the sole user is still inside. Call this after try_enter_as_user() has failed.
  bool sole_user_inside() const { return inside_.load(std::memory_order_acquire) != 0; }
  void unlock() {
    if (entered_) {
      entered_ = false;
      inside_.store(0, std::memory_order_release);
    } else {
      word_.store(0, std::memory_order_release);
    }
  }

  // Returns the word on which waiters sleep. It is 1 while a thread other than the sole user holds
  // the lock.
  std::atomic<uint32_t>& word() { return word_; }
  bool looks_free() const {
    return word_.load(std::memory_order_relaxed) == 0 &&
           inside_.load(std::memory_order_relaxed) == 0;
  }

 private:
  // Values of |sole_| that do not identify a thread.
  static constexpr uintptr_t kNobodyYet = 0;
  static constexpr uintptr_t kEnding = 1;
  static constexpr uintptr_t kShared = 2;

  // Returns a value that identifies this thread among all running threads.
  static uintptr_t self() {
    [[gnu::tls_model("initial-exec")]] static thread_local uint64_t anchor = 0;
    return reinterpret_cast<uintptr_t>(&anchor);
  }
  bool enter() {
    inside_.store(1, std::memory_order_relaxed);
    fence_.light();
    if (sole_.load(std::memory_order_relaxed) == self() &&
        word_.load(std::memory_order_acquire) == 0) [[likely]] {
      entered_ = true;
      return true;
    }
    inside_.store(0, std::memory_order_release);
    fence_.light();
    return false;
  }
  bool enter_new_user();
  bool try_lock_new_user() { return enter_new_user() || try_lock_shared(); }
  bool try_lock_shared();
  void end_sole_use();

  AsymmetricFence fence_;
  alignas(64) std::atomic<uintptr_t> sole_{kShared};
  std::atomic<uint32_t> word_{0};
  std::atomic<uint32_t> inside_{0};  // 1 while the sole user is inside or tries to enter
  bool entered_ = false;             // true if the holder is the sole user; guarded by this lock
};

}  // namespace hetcomm
