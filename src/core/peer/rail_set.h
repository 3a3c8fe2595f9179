// RailSet: the connections of a pair, and the one that messages go over. Under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include <hetcomm/communicator.h>

#include "src/core/peer/rail.h"

namespace hetcomm {

class RailSet {
 public:
  // |numbers_them|: this is the lower rank, which names connections to the other in kOpen.
  explicit RailSet(bool numbers_them) : numbers_them_(numbers_them) {}
  RailSet(const RailSet&) = delete;
  RailSet& operator=(const RailSet&) = delete;

  bool empty() const { return rails_.empty(); }
  size_t size() const { return rails_.size(); }
  Rail& back() { return *rails_.back(); }
  Rail& operator[](size_t index) { return *rails_[index]; }
  const Rail& operator[](size_t index) const { return *rails_[index]; }
  template <typename Use>
  void for_each(Use&& use) const {
    for (const auto& rail : rails_) use(*rail);
  }

  // Messages go over it; null: over none.
  Rail* current() const { return current_; }
  void set_current(Rail* rail) { current_ = rail; }

  // Null: there is no such connection (any more), open or not.
  Rail* find(uint64_t id) const;
  Rail* find_over(size_t transport) const;
  // One whose number has not come yet.
  Rail* find_unknown() const;
  // One up to that number.
  Rail* find_up_to(uint64_t id) const;
  // The one with the best estimate that can take over messages.
  Rail* best_open() const;
  // One that should take over the messages from the current one.
  Rail* better_one() const;
  bool is_better(const Rail& rail) const;
  // Neither messages nor bulk data are begun on |rail|, since another one is in use: current() is
  // not null.
  bool is_replaced(const Rail& rail) const;
  // The lower rank has numbered the connection of that |id|, and the number is still on its way.
  bool is_early(uint64_t id) const;
  bool all_flushed() const;

  // Calls |use(Rail&)| for the connections that share bulk data: all of the current one's kind.
  template <typename Use>
  void for_each_bulk(Use&& use) const {
    for (const auto& rail : rails_) {
      if (rail->is_open_both_ways() && same_kind(*rail, *current_)) use(*rail);
    }
  }

  Rail& add(std::unique_ptr<Rail> rail);
  // Takes |rail| out; whoever destroys it waits until no upcall of it is on the stack.
  std::unique_ptr<Rail> remove(Rail& rail);
  // The peer has told the number of |rail|.
  void learn(Rail& rail, uint64_t id);
  // Returns how many there have been, as far as this rank knows.
  uint64_t made() const { return made_; }

  // Counters of |transport|, made on first use; the address stays.
  hetcomm_counters_t* counters_of(std::string_view transport);
  const std::deque<hetcomm_counters_t>& counters() const { return counters_; }

 private:
  static bool same_kind(const Rail& a, const Rail& b) {
    return &a == &b || (a.kind == b.kind && !a.capabilities().lossless);
  }
  template <typename Which>
  Rail* find_if(Which&& which) const;

  const bool numbers_them_;
  std::vector<std::unique_ptr<Rail>> rails_;
  Rail* current_ = nullptr;
  uint64_t made_ = 0;
  std::deque<hetcomm_counters_t> counters_;
};

}  // namespace hetcomm
