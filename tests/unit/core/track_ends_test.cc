// Track ends that wait for their partner:
//  * queue ends are taken in order, whether or not they are gone;
//  * redistribution ends are taken by their content, existing ones first, and gone ones only for
//    the same plan; gone ends before the taken one are discarded;
//  * under a random mix of all these operations the ends behave like a list that is searched from
//    the front.
#include "src/core/peer/transfer/track_ends.h"

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <random>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

struct End {
  TrackKey where;
  uint64_t what = 0;
  uint64_t plan = 0;
  uint64_t number = 0;
  bool gone = false;

  TrackKey key() const { return where; }
  uint64_t content() const { return what; }
  bool is_gone() const { return gone; }
  uint64_t name() const { return number; }
};

// The matching rule, implemented as a search along a list.
std::optional<End> take(std::list<End>& ends, const TrackKey& key, uint64_t content,
                        uint64_t plan) {
  const auto first = [&](auto&& fits) {
    return std::find_if(ends.begin(), ends.end(),
                        [&](const End& end) { return end.where == key && fits(end); });
  };
  auto found = first([](const End&) { return true; });
  if (key.use != 0) {
    found = first([&](const End& end) { return end.what == content && !end.gone; });
    if (found == ends.end()) {
      found = first(
          [&](const End& end) { return end.what == content && end.gone && end.plan == plan; });
    }
    for (auto each = ends.begin(); each != found;) {
      each = each->where == key && each->gone ? ends.erase(each) : std::next(each);
    }
  }
  if (found == ends.end()) return {};
  const End end = *found;
  ends.erase(found);
  return end;
}

TEST(TrackEnds, RandomOperationsMatchAPlainList) {
  std::mt19937_64 random(5);
  TrackEnds<End> ends;
  std::list<End> list;
  uint64_t number = 0;
  for (int step = 0; step < 50'000; ++step) {
    const TrackKey key{static_cast<uint32_t>(random() % 2), static_cast<uint32_t>(random() % 2),
                       random() % 2};
    const uint64_t content = key.use == 0 ? 0 : random() % 3;
    const uint64_t plan = random() % 4;
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        ends.add({key, content, plan, ++number});
        list.push_back({key, content, plan, number});
        break;
      case 3: {
        if (list.empty()) break;
        auto each = std::next(list.begin(), static_cast<ptrdiff_t>(random() % list.size()));
        ends.change(each->number, [](End& end) { end.gone = true; });
        each->gone = true;
        break;
      }
      case 4: {
        if (list.empty() || random() % 4 != 0) break;
        auto each = std::next(list.begin(), static_cast<ptrdiff_t>(random() % list.size()));
        ends.erase(each->number);
        if (!each->gone) list.erase(each);
        break;
      }
      default: {
        const std::optional<End> expected = take(list, key, content, plan);
        const std::optional<End> found = ends.take(key, content, plan);
        ASSERT_EQ(found.has_value(), expected.has_value()) << step;
        if (expected) {
          ASSERT_EQ(found->number, expected->number) << step;
        }
      }
    }
    ASSERT_EQ(ends.size(), list.size()) << step;
  }
}

TEST(TrackEnds, TidyDropsOnlyChosenEndsOfClosedChannels) {
  TrackEnds<End> ends;
  for (uint32_t channel = 0; channel < 64; ++channel) ends.add({{channel, 1, 0}, 0, 0, channel});
  ends.tidy([](uint32_t channel) { return channel % 2 == 0; },
            [](const End& end) { return end.number % 4 == 0; });
  EXPECT_EQ(ends.size(), 48U);
  EXPECT_FALSE(ends.take({4, 1, 0}, 0, 0));
  EXPECT_TRUE(ends.take({2, 1, 0}, 0, 0));
  EXPECT_TRUE(ends.take({3, 1, 0}, 0, 0));
}

}  // namespace
}  // namespace hetcomm
