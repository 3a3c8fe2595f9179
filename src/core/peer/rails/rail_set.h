// RailSet holds the connections of a pair, and records which of them carries the messages. Callers
// hold the baton.
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
  // |numbers_them| is true on the lower rank, which numbers the connections and sends the numbers
  // in kOpen.
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

  // Returns the connection that carries messages, or null.
  Rail* current() const HETCOMM_UNDER_BATON { return current_; }
  void set_current(Rail* rail) HETCOMM_UNDER_BATON { current_ = rail; }

  // Find a connection, open or not yet open, by its number or its ends. Return null if there is
  // none.
  Rail* find(uint64_t id) const HETCOMM_UNDER_BATON;
  Rail* find_over(const RailEnds& ends) const HETCOMM_UNDER_BATON;
  // Finds a connection whose number has not arrived yet. Returns null if there is none.
  Rail* find_unknown() const HETCOMM_UNDER_BATON;
  // Finds a connection with a number up to |id|, or one whose number has not arrived yet. Returns
  // null if there is none.
  Rail* find_up_to(uint64_t id) const HETCOMM_UNDER_BATON;
  // Returns the connection with the best estimate among those that can take over messages, or null.
  Rail* best_open() const HETCOMM_UNDER_BATON;
  // Returns whether |rail| should take over the messages from the current connection.
  bool is_better(const Rail& rail) const HETCOMM_UNDER_BATON;
  // Returns whether |id| can be the number of a connection whose number this rank has not received
  // yet. Always false on the lower rank.
  bool is_early(uint64_t id) const HETCOMM_UNDER_BATON;
  bool all_flushed() const HETCOMM_UNDER_BATON;

  // Calls |use(Rail&)| for the open connections that share bulk data: the current one, and the
  // others of its kind unless they are lossless. Skips connections that are being retired.
  template <typename Use>
  void for_each_bulk(Use&& use) const HETCOMM_UNDER_BATON {
    for (const auto& rail : rails_) {
      if (rail->is_open_both_ways() && !rail->retiring && same_kind(*rail, *current_)) use(*rail);
    }
  }

  Rail& add(std::unique_ptr<Rail> rail) HETCOMM_UNDER_BATON;
  // Removes |rail| and returns it. The caller destroys it when none of its upcalls is on the stack.
  std::unique_ptr<Rail> remove(Rail& rail) HETCOMM_UNDER_BATON;
  // Records |id|, the number that the peer has reported for |rail|.
  void learn(Rail& rail, uint64_t id) HETCOMM_UNDER_BATON;
  // Returns how many connections have been made, as far as this rank knows.
  uint64_t made() const HETCOMM_UNDER_BATON { return made_; }

  // Returns the counters of |transport|, made on first use. Their address does not change.
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
