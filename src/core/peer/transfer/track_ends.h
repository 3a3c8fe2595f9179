// TrackEnds holds the ends of tracks that wait for a partner, because one of the two ranks has not
// opened its end yet.
//
// Ends of queues are joined in order. Ends of redistributions are joined if they have the same
// content. Among these, an existing end is preferred to a gone one, which is an end that was closed
// while it waited. A gone end is joined only if it belongs to the same plan, since gone ends of
// earlier plans may remain. ReshardBoard reports plans that differ. The cost per end grows only
// with the logarithm of the number of ends. All callers hold the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "src/base/baton_role.h"

namespace hetcomm {

// Two ends can be joined only if their keys are equal.
struct TrackKey {
  uint32_t channel = 0;  // the receiver's channel
  uint32_t use = 0;      // TrackTerms::use
  uint64_t tag = 0;

  auto operator<=>(const TrackKey&) const = default;
};

// An End has key(), content(), plan, is_gone() and name(). change() finds an end by its name().
template <typename End>
class TrackEnds {
 public:
  TrackEnds() = default;
  TrackEnds(const TrackEnds&) = delete;
  TrackEnds& operator=(const TrackEnds&) = delete;

  size_t size() const HETCOMM_UNDER_BATON { return ends_.size(); }
  // Adds |end|, which must not be gone. If this throws std::bad_alloc, nothing has changed.
  void add(End end) HETCOMM_UNDER_BATON {
    const uint64_t arrival = next_++;
    const TrackKey key = end.key();
    const auto content = by_content_.insert({key, false, end.content(), 0, arrival}).first;
    try {
      const auto order = in_order_.insert({key, false, arrival}).first;
      try {
        const auto name = by_name_.emplace(end.name(), arrival);
        try {
          ends_.emplace(arrival, std::move(end));
        } catch (...) {
          by_name_.erase(name);
          throw;
        }
      } catch (...) {
        in_order_.erase(order);
        throw;
      }
    } catch (...) {
      by_content_.erase(content);
      throw;
    }
  }
  // Removes and returns the end that matches these terms, if there is one. For a redistribution,
  // also removes the gone ends with |key| that arrived before it, or all of them if there is no
  // match. These can no longer match.
  std::optional<End> take(const TrackKey& key, uint64_t content,
                          uint64_t plan) HETCOMM_UNDER_BATON {
    const uint64_t arrival = key.use == 0 ? first(key) : find(key, content, plan);
    if (key.use != 0) drop_gone(key, arrival);
    if (arrival == kNone) return {};
    const auto found = ends_.find(arrival);
    std::optional<End> end(std::move(found->second));
    unlist(key, *end, arrival);
    ends_.erase(found);
    return end;
  }
  // Calls use(end) for the ends that have |name| and are not gone. |use| can make them gone.
  template <typename Use>
  void change(uint64_t name, Use&& use) HETCOMM_UNDER_BATON {
    for (auto each = by_name_.lower_bound(name); each != by_name_.end() && each->first == name;) {
      const uint64_t arrival = each->second;
      End& end = ends_.at(arrival);
      use(end);
      if (!end.is_gone()) {
        ++each;
        continue;
      }
      each = by_name_.erase(each);
      note_gone(end, arrival);
    }
  }
  // Removes the ends that have |name| and are not gone.
  void erase(uint64_t name) HETCOMM_UNDER_BATON {
    for (auto each = by_name_.lower_bound(name); each != by_name_.end() && each->first == name;) {
      const uint64_t arrival = each->second;
      const auto end = ends_.find(arrival);
      each = by_name_.erase(each);
      unlist(end->second.key(), end->second, arrival);
      ends_.erase(end);
    }
  }
  // Removes the ends for which which(end) and is_gone(channel of the end) are true. Scans all ends
  // only when their number has doubled.
  template <typename IsGone, typename Which>
  void tidy(IsGone&& is_gone, Which&& which) HETCOMM_UNDER_BATON {
    if (ends_.size() < tidy_at_) return;
    for (auto each = ends_.begin(); each != ends_.end();) {
      End& end = each->second;
      if (!which(end) || !is_gone(end.key().channel)) {
        ++each;
        continue;
      }
      unlist(end.key(), end, each->first);
      each = ends_.erase(each);
    }
    tidy_at_ = 2 * ends_.size() + kFirstTidy;
  }
  template <typename Use>
  void for_each(Use&& use) HETCOMM_UNDER_BATON {
    for (auto& [arrival, end] : ends_) use(end);
  }
  void clear() HETCOMM_UNDER_BATON {
    ends_.clear();
    by_content_.clear();
    in_order_.clear();
    by_name_.clear();
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  static constexpr size_t kFirstTidy = 16;
  // The key, true if the end is gone, the content, the plan (0 unless gone), and the order of
  // arrival.
  using ContentKey = std::tuple<TrackKey, bool, uint64_t, uint64_t, uint64_t>;
  using OrderKey = std::tuple<TrackKey, bool, uint64_t>;

  uint64_t first_of(const TrackKey& key, bool gone) const {
    const auto found = in_order_.lower_bound({key, gone, 0});
    if (found == in_order_.end() || std::get<0>(*found) != key || std::get<1>(*found) != gone) {
      return kNone;
    }
    return std::get<2>(*found);
  }
  uint64_t first(const TrackKey& key) const {
    return std::min(first_of(key, false), first_of(key, true));
  }
  uint64_t find(const TrackKey& key, bool gone, uint64_t content, uint64_t plan) const {
    const auto found = by_content_.lower_bound({key, gone, content, plan, 0});
    if (found == by_content_.end()) return kNone;
    const auto& [its_key, is_gone, its_content, its_plan, arrival] = *found;
    const bool fits =
        its_key == key && is_gone == gone && its_content == content && its_plan == plan;
    return fits ? arrival : kNone;
  }
  uint64_t find(const TrackKey& key, uint64_t content, uint64_t plan) const {
    const uint64_t existing = find(key, false, content, 0);
    return existing != kNone ? existing : find(key, true, content, plan);
  }
  void drop_gone(const TrackKey& key, uint64_t before) {
    for (uint64_t each = first_of(key, true); each < before; each = first_of(key, true)) {
      const auto end = ends_.find(each);
      unlist(key, end->second, each);
      ends_.erase(end);
    }
  }
  // Moves |end| to the gone ends in both indexes. Allocates nothing.
  void note_gone(const End& end, uint64_t arrival) {
    auto content = by_content_.extract({end.key(), false, end.content(), 0, arrival});
    content.value() = {end.key(), true, end.content(), end.plan, arrival};
    by_content_.insert(std::move(content));
    auto order = in_order_.extract({end.key(), false, arrival});
    order.value() = {end.key(), true, arrival};
    in_order_.insert(std::move(order));
  }
  void unlist(const TrackKey& key, const End& end, uint64_t arrival) {
    const bool gone = end.is_gone();
    by_content_.erase({key, gone, end.content(), gone ? end.plan : 0, arrival});
    in_order_.erase({key, gone, arrival});
    if (gone) return;
    const auto [first, last] = by_name_.equal_range(end.name());
    const auto own =
        std::find_if(first, last, [arrival](const auto& each) { return each.second == arrival; });
    if (own != last) by_name_.erase(own);
  }

  std::map<uint64_t, End> ends_;  // by order of arrival
  std::set<ContentKey> by_content_;
  std::set<OrderKey> in_order_;
  std::multimap<uint64_t, uint64_t> by_name_;  // arrival numbers of the ends that are not gone
  uint64_t next_ = 0;
  size_t tidy_at_ = kFirstTidy;
};

}  // namespace hetcomm
