// ArenaSleepers wakes ranks that sleep until a ticket arrives in their team's arena.
//
// A rank that goes to sleep sets its bit in the sleepers word, fences and checks for tickets once
// more. A rank that publishes a ticket checks the bits. If the kernels of all ranks support the
// global membarrier, only the sleeper executes a full fence, on behalf of both ranks, as in
// transports/shm.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/collectives/shared_arena.h"
#include "src/system/membarrier.h"

namespace hetcomm::collectives {

class ArenaSleepers {
 public:
  // |fences| is true if some rank's kernel lacks the global membarrier, so that every ticket needs
  // a fence.
  ArenaSleepers(const SharedArena& arena, uint32_t index, bool fences)
      : sleepers_(arena.sleepers()),
        words_((arena.ranks() + 63) / 64),
        index_(index),
        fences_(fences) {}

  // Announces that this rank is about to sleep. The next ticket then wakes it, once. After this
  // call, the caller must check for tickets once more. Returns whether the rank may sleep, because
  // the wake-up is guaranteed or the sleep is short.
  [[nodiscard]] bool announce(bool short_sleep) HETCOMM_UNDER_BATON {
    announced_ = true;
    sleepers_[index_ / 64].fetch_or(own_bit(index_ / 64), std::memory_order_seq_cst);
    // A short sleep can miss a ticket, but then delays it only briefly.
    return fences_ || short_sleep || global_membarrier();
  }
  bool announced() const HETCOMM_UNDER_BATON { return announced_; }
  void end() HETCOMM_UNDER_BATON {
    announced_ = false;
    sleepers_[index_ / 64].fetch_and(~own_bit(index_ / 64), std::memory_order_relaxed);
  }

  // Checks for sleepers after this rank has published a ticket.
  void look() HETCOMM_UNDER_BATON {
    if (fences_) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    uint64_t bits = 0;
    for (size_t word = 0; word < words_; ++word) {
      bits |= sleepers_[word].load(std::memory_order_relaxed) & ~own_bit(word);
    }
    if (bits != 0) [[unlikely]]
      found_ = true;
  }
  // Calls |wake(index)| for each sleeping rank, if look() has found any.
  template <typename Wake>
  void wake(Wake&& wake) HETCOMM_UNDER_BATON {
    if (!found_) return;
    found_ = false;
    for (size_t word = 0; word < words_; ++word) take(word, wake);
  }

 private:
  template <typename Wake>
  void take(size_t word, Wake&& wake) HETCOMM_UNDER_BATON {
    uint64_t bits = sleepers_[word].load(std::memory_order_relaxed) & ~own_bit(word);
    if (bits == 0) return;
    bits &= sleepers_[word].fetch_and(~bits, std::memory_order_seq_cst);
    for (; bits != 0; bits &= bits - 1) {
      wake(static_cast<uint32_t>(word * 64) + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
  uint64_t own_bit(size_t word) const HETCOMM_UNDER_BATON {
    return index_ / 64 == word ? uint64_t{1} << (index_ % 64) : 0;
  }

  std::atomic<uint64_t>* const sleepers_;
  const size_t words_;
  const uint32_t index_;
  const bool fences_;
  bool announced_ = false;
  bool found_ = false;  // a sleeping rank may be waiting for a ticket from this rank
};

}  // namespace hetcomm::collectives
