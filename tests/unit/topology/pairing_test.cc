// Which NICs are paired:
//    - hosts with equal NICs pair them in order; unequal NICs give the full rate of the slower
//      side;
//    - subnets and fabrics are respected, and doubtful pairs are used only if they add capacity;
//    - a failed pair is replaced if other ports have capacity;
//    - ports of last resort are used only for peers that no other port is known to reach;
//    - together the pairs carry as much as any set of pairs could: checked against all cuts of
//      random hosts;
//    - no port carries more than its rate, and there are never more pairs than requested.
#include "topology/machine/pairing.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hetcomm::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kMany = 64;

std::vector<Port> ports(const std::vector<uint64_t>& rates) {
  std::vector<Port> result;
  for (const uint64_t rate : rates) {
    result.push_back({rate, {}, {}});
    result.back().fabric = "one";
  }
  return result;
}

uint64_t total(const std::vector<PortPair>& pairs) {
  return std::accumulate(pairs.begin(), pairs.end(), uint64_t{0},
                         [](uint64_t sum, const PortPair& pair) { return sum + pair.mbit_per_s; });
}

TEST(Pairing, EqualHostsPairInOrder) {
  EXPECT_THAT(pair_ports(ports({100, 100, 100}), ports({100, 100, 100}), kMany),
              ElementsAre(PortPair{0, 0, 100}, PortPair{1, 1, 100}, PortPair{2, 2, 100}));
}

TEST(Pairing, TwoNicsPairWithOneTwiceAsFast) {
  EXPECT_THAT(pair_ports(ports({100, 100}), ports({200}), kMany),
              ElementsAre(PortPair{0, 0, 100}, PortPair{1, 0, 100}));
  EXPECT_THAT(pair_ports(ports({200}), ports({100, 100}), kMany),
              ElementsAre(PortPair{0, 0, 100}, PortPair{0, 1, 100}));
}

TEST(Pairing, EightNicsSpreadOverFour) {
  const auto equal =
      pair_ports(ports(std::vector<uint64_t>(8, 100)), ports({100, 100, 100, 100}), 4);
  EXPECT_EQ(total(equal), 400u);
  std::vector<int> uses(4);
  for (const PortPair& pair : equal) ++uses[pair.upper];
  EXPECT_THAT(uses, ElementsAre(1, 1, 1, 1));
  const auto faster =
      pair_ports(ports(std::vector<uint64_t>(8, 100)), ports({200, 200, 200, 200}), 8);
  EXPECT_EQ(total(faster), 800u);
  uses.assign(4, 0);
  for (const PortPair& pair : faster) ++uses[pair.upper];
  EXPECT_THAT(uses, ElementsAre(2, 2, 2, 2));
}

TEST(Pairing, PairsStayWithinSubnets) {
  std::vector<Port> lower{{100, {"10.0.0.0/24"}, {}}, {100, {"10.0.1.0/24"}, {}}};
  std::vector<Port> upper{{100, {"10.0.1.0/24"}, {}}, {100, {"10.0.0.0/24"}, {}}};
  EXPECT_THAT(pair_ports(lower, upper, kMany),
              ElementsAre(PortPair{0, 1, 100}, PortPair{1, 0, 100}));
  // Without a common subnet some pair has to be tried.
  upper[0].subnets = {"10.0.7.0/24"};
  EXPECT_THAT(pair_ports(lower, upper, kMany),
              ElementsAre(PortPair{0, 1, 100}, PortPair{1, 0, 100}));
  EXPECT_EQ(reach(lower[1], upper[0]), Reach::kMaybe);
}

TEST(Pairing, PairsStayWithinFabrics) {
  std::vector<Port> lower{{100, {"10.0.0.0/24"}, "a"}, {100, {"10.0.0.0/24"}, "b"}};
  std::vector<Port> upper{{100, {"10.0.0.0/24"}, "b"}, {100, {"10.0.0.0/24"}, "c"}};
  EXPECT_THAT(pair_ports(lower, upper, kMany), ElementsAre(PortPair{1, 0, 100}));
  upper[0].fabric = "d";
  EXPECT_THAT(pair_ports(lower, upper, kMany), IsEmpty());
}

TEST(Pairing, DoubtfulPairsAreTriedOnlyIfTheyAddCapacity) {
  // Both ends of the first subnet saturate each other.
  std::vector<Port> lower{{100, {"10.0.0.0/24"}, {}}, {100, {"10.0.1.0/24"}, {}}};
  std::vector<Port> upper{{100, {"10.0.0.0/24"}, {}}};
  EXPECT_THAT(pair_ports(lower, upper, kMany), ElementsAre(PortPair{0, 0, 100}));
  upper[0].mbit_per_s = 200;
  EXPECT_THAT(pair_ports(lower, upper, kMany),
              ElementsAre(PortPair{0, 0, 100}, PortPair{1, 0, 100}));
}

TEST(Pairing, FailedPairIsReplaced) {
  const std::vector<Port> lower = ports({100, 100});
  const std::vector<Port> upper = ports({100, 100});
  const auto without = [&](size_t bad_lower, size_t bad_upper) {
    return pair_ports(lower, upper, kMany, [&](size_t i, size_t j) {
      return i == bad_lower && j == bad_upper ? Reach::kNo : Reach::kYes;
    });
  };
  EXPECT_THAT(without(0, 0), ElementsAre(PortPair{0, 1, 100}, PortPair{1, 0, 100}));
  EXPECT_THAT(without(0, 1), ElementsAre(PortPair{0, 0, 100}, PortPair{1, 1, 100}));
}

TEST(Pairing, UnknownRateCountsAsTheSlowestKnown) {
  EXPECT_THAT(pair_ports(ports({0, 0}), ports({0, 0}), kMany),
              ElementsAre(PortPair{0, 0, 0}, PortPair{1, 1, 0}));
  EXPECT_THAT(pair_ports(ports({0}), ports({100, 25}), kMany), ElementsAre(PortPair{0, 0, 25}));
}

TEST(Pairing, EveryPortIsUsedIfNoRateIsKnown) {
  EXPECT_THAT(pair_ports(ports({0, 0}), ports({0}), kMany),
              ElementsAre(PortPair{0, 0, 0}, PortPair{1, 0, 0}));
  for (size_t lower = 1; lower <= 5; ++lower) {
    for (size_t upper = 1; upper <= 5; ++upper) {
      std::vector<bool> lower_used(lower);
      std::vector<bool> upper_used(upper);
      const auto pairs = pair_ports(ports(std::vector<uint64_t>(lower)),
                                    ports(std::vector<uint64_t>(upper)), kMany);
      for (const PortPair& pair : pairs) {
        lower_used[pair.lower] = true;
        upper_used[pair.upper] = true;
      }
      EXPECT_EQ(std::count(lower_used.begin(), lower_used.end(), true),
                static_cast<int64_t>(lower));
      EXPECT_EQ(std::count(upper_used.begin(), upper_used.end(), true),
                static_cast<int64_t>(upper));
    }
  }
}

TEST(Pairing, SurePairsExcludeDoubtfulOnesIfNoRateIsKnown) {
  const Port a{.subnets = {"a"}};
  const Port b{.subnets = {"b"}};
  const Port c{.subnets = {"c"}};
  EXPECT_THAT(pair_ports({a, b}, {a}, kMany), ElementsAre(PortPair{0, 0, 0}));
  EXPECT_THAT(pair_ports({a, b}, {a, c}, kMany), ElementsAre(PortPair{0, 0, 0}, PortPair{1, 1, 0}));
  EXPECT_THAT(pair_ports({a, b}, {c}, kMany), ElementsAre(PortPair{0, 0, 0}, PortPair{1, 0, 0}));
}

// A fast network of its own, and an Ethernet that leads to rank 0's store.
TEST(Pairing, PortsOfLastResortAreUsedOnlyIfNothingElseIsSure) {
  std::vector<Port> both = {{.mbit_per_s = 100'000, .subnets = {"192.0.2.0/24"}},
                            {.mbit_per_s = 10'000, .subnets = {"198.51.100.0/24"}}};
  both[1].last_resort = true;
  const std::vector<Port> ethernet = {{.mbit_per_s = 10'000, .subnets = {"198.51.100.0/24"}}};
  EXPECT_THAT(pair_ports(both, both, kMany), ElementsAre(PortPair{0, 0, 100'000}));
  EXPECT_THAT(pair_ports(both, ethernet, kMany), ElementsAre(PortPair{1, 0, 10'000}));
  EXPECT_THAT(pair_ports(ethernet, both, kMany), ElementsAre(PortPair{0, 1, 10'000}));
  const auto fast_fails = [&](size_t i, size_t j) {
    return i == 0 && j == 0 ? Reach::kNo : reach(both[i], both[j]);
  };
  EXPECT_THAT(pair_ports(both, both, kMany, fast_fails), ElementsAre(PortPair{1, 1, 10'000}));
  // The route carries the data if nothing is known to work.
  const std::vector<Port> elsewhere = {{.mbit_per_s = 50'000, .subnets = {"203.0.113.0/24"}}};
  EXPECT_THAT(pair_ports(both, elsewhere, kMany), ElementsAre(PortPair{1, 0, 10'000}));
  EXPECT_THAT(pair_ports(elsewhere, both, kMany), ElementsAre(PortPair{0, 1, 10'000}));
  std::vector<Port> far = {{.mbit_per_s = 100'000, .subnets = {"192.0.3.0/24"}},
                           {.mbit_per_s = 10'000, .subnets = {"198.51.101.0/24"}}};
  far[1].last_resort = true;
  EXPECT_THAT(pair_ports(both, far, kMany), ElementsAre(PortPair{1, 1, 10'000}));
  // It fails as well: the others are tried.
  const auto route_fails = [&](size_t i, size_t j) {
    return i == 1 || j == 1 ? Reach::kNo : reach(both[i], far[j]);
  };
  EXPECT_THAT(pair_ports(both, far, kMany, route_fails), ElementsAre(PortPair{0, 0, 100'000}));
}

TEST(Pairing, HostsWithoutPortsGetNoPairs) {
  EXPECT_THAT(pair_ports({}, {}, kMany), IsEmpty());
  EXPECT_THAT(pair_ports(ports({100}), {}, kMany), IsEmpty());
  EXPECT_THAT(pair_ports(ports({100}), ports({100}), 0), IsEmpty());
}

TEST(Pairing, PairsAreSortedByRateAndLimited) {
  const auto pairs = pair_ports(ports({25, 100, 50}), ports({25, 100, 50}), 2);
  EXPECT_EQ(pairs.size(), 2u);
  EXPECT_GE(pairs[0].mbit_per_s, pairs[1].mbit_per_s);
}

// Returns the capacity of the smallest cut, which is the largest possible flow.
uint64_t smallest_cut(const std::vector<uint64_t>& lower, const std::vector<uint64_t>& upper,
                      const std::vector<std::vector<bool>>& reaches) {
  uint64_t least = UINT64_MAX;
  for (unsigned int set = 0; set < 1u << lower.size(); ++set) {
    uint64_t cut = 0;
    std::vector<bool> met(upper.size());
    for (size_t i = 0; i < lower.size(); ++i) {
      if ((set >> i & 1) == 0) {
        cut += lower[i];
        continue;
      }
      for (size_t j = 0; j < upper.size(); ++j) met[j] = met[j] || reaches[i][j];
    }
    for (size_t j = 0; j < upper.size(); ++j) cut += met[j] ? upper[j] : 0;
    least = std::min(least, cut);
  }
  return least;
}

TEST(Pairing, PairsReachTheMaximumTotalRate) {
  constexpr uint64_t kRates[] = {10, 25, 50, 100, 100, 200, 400};
  for (unsigned int seed = 0; seed < 5000; ++seed) {
    std::mt19937 random(seed);
    const auto side = [&random, &kRates] {
      std::vector<uint64_t> rates(random() % 9);
      for (uint64_t& rate : rates) rate = kRates[random() % std::size(kRates)];
      return rates;
    };
    const std::vector<uint64_t> lower = side();
    const std::vector<uint64_t> upper = side();
    std::vector<std::vector<bool>> reaches(lower.size(), std::vector<bool>(upper.size()));
    const unsigned int density = 1 + random() % 4;
    for (auto& row : reaches) {
      for (size_t j = 0; j < row.size(); ++j) row[j] = random() % 4 < density;
    }
    const auto reach = [&](size_t i, size_t j) {
      return !reaches[i][j] ? Reach::kNo : (i + j) % 3 == 0 ? Reach::kMaybe : Reach::kYes;
    };
    const auto pairs = pair_ports(ports(lower), ports(upper), kMany, reach);
    ASSERT_EQ(total(pairs), smallest_cut(lower, upper, reaches)) << seed;
    std::vector<uint64_t> used_lower(lower.size());
    std::vector<uint64_t> used_upper(upper.size());
    for (const PortPair& pair : pairs) {
      ASSERT_TRUE(reaches[pair.lower][pair.upper]) << seed;
      used_lower[pair.lower] += pair.mbit_per_s;
      used_upper[pair.upper] += pair.mbit_per_s;
    }
    for (size_t i = 0; i < lower.size(); ++i) ASSERT_LE(used_lower[i], lower[i]) << seed;
    for (size_t j = 0; j < upper.size(); ++j) ASSERT_LE(used_upper[j], upper[j]) << seed;
    // Such a flow needs fewer pairs than ports.
    if (!pairs.empty()) {
      ASSERT_LT(pairs.size(), lower.size() + upper.size()) << seed;
    }
    const size_t most = random() % 5;
    ASSERT_EQ(pair_ports(ports(lower), ports(upper), most, reach).size(),
              std::min(most, pairs.size()))
        << seed;
  }
}

}  // namespace
}  // namespace hetcomm::topology
