#include "src/core/peer/rails/rail_set.h"

#include <algorithm>

#include "src/base/baton_role.h"

namespace hetcomm {

template <typename Which>
Rail* RailSet::find_if(Which&& which) const {
  const auto found =
      std::find_if(rails_.begin(), rails_.end(),
                   [&](const auto& rail) HETCOMM_UNDER_BATON { return which(*rail); });
  return found != rails_.end() ? found->get() : nullptr;
}

Rail* RailSet::find(uint64_t id) const {
  return find_if([&](const Rail& rail) HETCOMM_UNDER_BATON { return rail.id == id && rail.known; });
}

Rail* RailSet::find_over(const RailEnds& ends) const {
  return find_if([&](const Rail& rail) HETCOMM_UNDER_BATON { return rail.ends == ends; });
}

Rail* RailSet::find_unknown() const {
  return find_if([](const Rail& rail) HETCOMM_UNDER_BATON { return !rail.known; });
}

Rail* RailSet::find_up_to(uint64_t id) const {
  return find_if([&](const Rail& rail) HETCOMM_UNDER_BATON { return rail.id <= id; });
}

Rail* RailSet::best_open() const {
  Rail* best = nullptr;
  for (const auto& rail : rails_) {
    if (!rail->is_open_both_ways() || rail->leaving) continue;
    if (best == nullptr || rail->score_us() < best->score_us()) best = rail.get();
  }
  return best;
}

// A working lossless rail is never replaced, since no copies of its messages were kept.
bool RailSet::is_better(const Rail& rail) const {
  return current_ != nullptr && &rail != current_ && rail.is_open_both_ways() &&
         rail.score_us() * kClearlyBetter < current_->score_us() &&
         !current_->capabilities().lossless;
}

bool RailSet::is_early(uint64_t id) const {
  if (numbers_them_ || find(id) != nullptr) return false;
  return id > made_ || find_unknown() != nullptr;
}

bool RailSet::all_flushed() const {
  return std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) HETCOMM_UNDER_BATON {
    return rail->endpoint().flushed();
  });
}

Rail& RailSet::add(std::unique_ptr<Rail> rail) {
  rails_.reserve(rails_.size() + 1);
  rail->id = numbers_them_ ? ++made_ : 0;
  rail->known = numbers_them_;
  rail->counters().connected = 1;
  rails_.push_back(std::move(rail));
  return *rails_.back();
}

std::unique_ptr<Rail> RailSet::remove(Rail& rail) {
  const auto found = std::find_if(rails_.begin(), rails_.end(),
                                  [&](const auto& each) { return each.get() == &rail; });
  std::unique_ptr<Rail> removed = std::move(*found);
  rails_.erase(found);
  hetcomm_counters_t& counters = rail.counters();
  const bool another = find_if([&](Rail& each) HETCOMM_UNDER_BATON {
                         return &each.counters() == &counters;
                       }) != nullptr;
  counters.connected = another ? 1 : 0;
  return removed;
}

void RailSet::learn(Rail& rail, uint64_t id) {
  rail.id = id;
  rail.known = true;
  made_ = std::max(made_, id);
}

hetcomm_counters_t* RailSet::counters_of(std::string_view transport) {
  for (hetcomm_counters_t& counters : counters_) {
    if (transport == counters.transport) return &counters;
  }
  hetcomm_counters_t& counters = counters_.emplace_back();
  const size_t length = std::min(transport.size(), sizeof(counters.transport) - 1);
  std::copy_n(transport.begin(), length, counters.transport);
  return &counters;
}

}  // namespace hetcomm
