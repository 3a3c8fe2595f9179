#include "src/system/biased_lock.h"

namespace hetcomm {

void BiasedLock::set_up(Bias bias) {
  fence_.set_up();
  const bool biased = bias == Bias::kSoleUser && fence_.asymmetric();
  sole_.store(biased ? kNobodyYet : kShared, std::memory_order_relaxed);
}

// Revokes the role of the sole user. kShared becomes visible only after the fence, so a thread that
// sees kShared can rely on |inside_|.
void BiasedLock::end_sole_use() {
  sole_.store(kEnding, std::memory_order_seq_cst);
  fence_.heavy();
  sole_.store(kShared, std::memory_order_release);
}

bool BiasedLock::enter_new_user() {
  uintptr_t sole = sole_.load(std::memory_order_acquire);
  if (sole == kShared) [[likely]]
    return false;
  if (sole == kNobodyYet &&
      sole_.compare_exchange_strong(sole, self(), std::memory_order_seq_cst)) {
    fence_.heavy();
    return enter();
  }
  end_sole_use();
  return false;
}

bool BiasedLock::try_lock_shared() {
  uintptr_t sole = sole_.load(std::memory_order_acquire);
  if (sole != kShared && sole != kNobodyYet) [[unlikely]] {
    end_sole_use();
    sole = kShared;
  }
  while (inside_.load(std::memory_order_acquire) == 0 &&
         word_.load(std::memory_order_relaxed) == 0 &&
         word_.exchange(1, std::memory_order_seq_cst) == 0) {
    if (sole == kShared) [[likely]]
      return true;
    sole = sole_.load(std::memory_order_seq_cst);
    if (sole == kNobodyYet) return true;  // any later sole user will see the word
    if (sole != kShared) end_sole_use();
    sole = kShared;
    if (inside_.load(std::memory_order_acquire) == 0) return true;
    // After the fence, either the sole user sees the word free when it leaves, or this thread sees
    // that the sole user has left.
    word_.store(0, std::memory_order_release);
    fence_.heavy();
  }
  return false;
}

}  // namespace hetcomm
