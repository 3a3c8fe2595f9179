// RailSet: the connections of a pair, and the one that messages go over. Under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include <hetcomm/communicator.h>

#include "src/base/baton_role.h"
#include "src/core/peer/rails/rail.h"

namespace hetcomm {

class RailSet {
 public:
  // |numbers_them|: this is the lower rank, which names connections to the other in kOpen.
  explicit RailSet(bool numbers_them) : numbers_them_(numbers_them) {}
  RailSet(const RailSet&) = delete;
  RailSet& operator=(const RailSet&) = delete;

  bool empty() const HETCOMM_UNDER_BATON { return rails_.empty(); }
  size_t size() const HETCOMM_UNDER_BATON { return rails_.size(); }
  Rail& back() HETCOMM_UNDER_BATON { return *rails_.back(); }
  Rail& operator[](size_t index) { return *rails_[index]; }
  const Rail& operator[](size_t index) const { return *rails_[index]; }
  template <typename Use>
  void for_each(Use&& use) const HETCOMM_UNDER_BATON {
    for (const auto& rail : rails_) use(*rail);
  }

  // Messages go over it; null: over none.
  Rail* current() const HETCOMM_UNDER_BATON { return current_; }
  void set_current(Rail* rail) HETCOMM_UNDER_BATON { current_ = rail; }

  // Null: there is no such connection (any more), open or not.
  Rail* find(uint64_t id) const HETCOMM_UNDER_BATON;
  Rail* find_over(const RailEnds& ends) const HETCOMM_UNDER_BATON;
  // One whose number has not come yet.
  Rail* find_unknown() const HETCOMM_UNDER_BATON;
  // One up to that number.
  Rail* find_up_to(uint64_t id) const HETCOMM_UNDER_BATON;
  // The one with the best estimate that can take over messages.
  Rail* best_open() const HETCOMM_UNDER_BATON;
  // It should take over the messages from the current one.
  bool is_better(const Rail& rail) const HETCOMM_UNDER_BATON;
  // The lower rank has numbered the connection of that |id|, and the number is still on its way.
  bool is_early(uint64_t id) const HETCOMM_UNDER_BATON;
  bool all_flushed() const HETCOMM_UNDER_BATON;

  // Calls |use(Rail&)| for the connections that share bulk data: all of the current one's kind.
  template <typename Use>
  void for_each_bulk(Use&& use) const HETCOMM_UNDER_BATON {
    for (const auto& rail : rails_) {
      if (rail->is_open_both_ways() && !rail->retiring && same_kind(*rail, *current_)) use(*rail);
    }
  }

  Rail& add(std::unique_ptr<Rail> rail) HETCOMM_UNDER_BATON;
  // Takes |rail| out; whoever destroys it waits until no upcall of it is on the stack.
  std::unique_ptr<Rail> remove(Rail& rail) HETCOMM_UNDER_BATON;
  // The peer has told the number of |rail|.
  void learn(Rail& rail, uint64_t id) HETCOMM_UNDER_BATON;
  // Returns how many there have been, as far as this rank knows.
  uint64_t made() const HETCOMM_UNDER_BATON { return made_; }

  // Counters of |transport|, made on first use; the address stays.
  hetcomm_counters_t* counters_of(std::string_view transport) HETCOMM_UNDER_BATON;
  const std::deque<hetcomm_counters_t>& counters() const HETCOMM_UNDER_BATON { return counters_; }

 private:
  static bool same_kind(const Rail& a, const Rail& b) HETCOMM_UNDER_BATON {
    return &a == &b || (a.kind == b.kind && !a.capabilities().lossless);
  }
  template <typename Which>
  Rail* find_if(Which&& which) const HETCOMM_UNDER_BATON;

  const bool numbers_them_;
  std::vector<std::unique_ptr<Rail>> rails_;
  Rail* current_ = nullptr;
  uint64_t made_ = 0;
  std::deque<hetcomm_counters_t> counters_;
};

}  // namespace hetcomm
