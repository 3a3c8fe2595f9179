// CompletionInbox holds completions that were fetched from the device but not yet handled, in order
// of arrival.
//
// Two functions take completions out of this order. take_all_of() takes all completions of a queue
// pair that is being closed. put_aside() keeps completions from a peer that sends before this
// side's connection is complete. They stay aside until bring_back() or drop_aside().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "transports/rdma/verbs.h"

namespace hetcomm::rdma {

class CompletionInbox {
 public:
  // The maximum number of completions that one fetch() takes. A fetch() that returns fewer has
  // emptied the device's queue, unless memory ran out.
  static constexpr size_t kBatch = 32;

  CompletionInbox() { inbox_.reserve(2 * kBatch); }

  // Polls the device once. Returns the number of completions fetched; negative if the queue cannot
  // be read. Returns 0 if memory runs out.
  int fetch(const Verbs& verbs, ibv_cq* queue) {
    std::array<ibv_wc, kBatch> fresh;      // uninitialised, since most polls find nothing
    if (!make_room_for_batch()) return 0;  // completions stay on the device
    const int got = verbs.poll_cq(queue, kBatch, fresh.data());
    if (got > 0) inbox_.insert(inbox_.end(), fresh.begin(), fresh.begin() + got);
    return got;
  }
  bool empty() const { return next_ == inbox_.size(); }
  size_t size() const { return inbox_.size() - next_; }
  // Removes the oldest completion. Returns a copy, since the handler may call fetch().
  ibv_wc pop() { return inbox_[next_++]; }
  // Frees the space of handled completions. Call only when empty().
  void clear() {
    inbox_.clear();
    next_ = 0;
  }
  // Returns whether take_all_of() has already taken |completion|.
  static bool is_taken(const ibv_wc& completion) { return completion.wr_id == kTaken; }

  // Returns the position of the oldest completion. It is valid until pop() or clear().
  size_t begin() const { return next_; }
  // Passes the completions of queue pair |number|, starting at position |from|, to |use|. Returns
  // the position after the last completion, for the next call.
  template <typename Use>
  size_t take_all_of(uint32_t number, size_t from, Use&& use) {
    for (; from < inbox_.size(); ++from) {
      ibv_wc& completion = inbox_[from];
      if (completion.qp_num != number || is_taken(completion)) continue;
      use(std::as_const(completion));
      completion.wr_id = kTaken;
    }
    return from;
  }

  // Reserves space to put |count| completions aside.
  void reserve_aside(size_t count) { aside_.reserve(count); }
  // Keeps a completion whose connection is still being established.
  void put_aside(const ibv_wc& completion) { aside_.push_back(completion); }
  // Reserves space so that bring_back(number) cannot fail.
  void make_room_for(uint32_t number);
  // Moves the completions of queue pair |number| that were put aside to the front of the unhandled
  // ones.
  void bring_back(uint32_t number);
  // Passes the completions of queue pair |number| that were put aside to |use|, and removes them.
  template <typename Use>
  void drop_aside(uint32_t number, Use&& use) {
    std::erase_if(aside_, [&](const ibv_wc& completion) {
      if (completion.qp_num != number) return false;
      use(completion);
      return true;
    });
  }

 private:
  // The wr_id of a completion that take_all_of() has taken.
  static constexpr uint64_t kTaken = uint64_t{1} << 62;

  bool make_room_for_batch() {
    if (inbox_.capacity() - inbox_.size() >= kBatch) [[likely]]
      return true;
    return grow();
  }
  bool grow();

  std::vector<ibv_wc> inbox_;  // unhandled from next_ on
  size_t next_ = 0;
  std::vector<ibv_wc> aside_;
};

}  // namespace hetcomm::rdma
