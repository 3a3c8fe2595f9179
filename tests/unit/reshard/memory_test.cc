// The memory rule:
//    - whether strided elements share an address is decided as by brute force, for random strides,
//      even if not nested, and for distances of either sign;
//    - destination boxes that overlap in a rank's memory are refused and named; interleaved boxes
//      that do not overlap are accepted, and so are sources, checked by brute force over random
//      boxes;
//    - elements that stay in place do not count as overlap, and all others do;
//    - a search that would take too long is aborted.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/memory_rule.h"
#include "reshard/mesh.h"
#include "reshard/strided_addresses.h"

namespace hetcomm::reshard {
namespace {

using ::testing::HasSubstr;

std::vector<int64_t> list(const StridedAddresses& addresses) {
  std::vector<int64_t> all = {static_cast<int64_t>(addresses.offset)};
  for (size_t d = 0; d < addresses.dimensions; ++d) {
    std::vector<int64_t> next;
    for (const int64_t address : all) {
      for (uint64_t i = 0; i < addresses.extents[d]; ++i) {
        next.push_back(address + static_cast<int64_t>(i * addresses.strides[d]));
      }
    }
    all = std::move(next);
  }
  std::sort(all.begin(), all.end());
  return all;
}

StridedAddresses random_addresses(std::mt19937& random, uint64_t longest) {
  StridedAddresses addresses;
  addresses.offset = random() % 20;
  addresses.dimensions = random() % 5;
  for (size_t d = 0; d < addresses.dimensions; ++d) {
    addresses.extents[d] = 1 + random() % 4;
    addresses.strides[d] = random() % 8 == 0 ? random() % 3 : 1 + random() % longest;
  }
  return addresses;
}

TEST(StridedAddresses, OverlapMatchesBruteForce) {
  std::mt19937 random(1);
  size_t met = 0;
  constexpr size_t kRounds = 60'000;
  for (size_t round = 0; round < kRounds; ++round) {
    const uint64_t longest = std::vector<uint64_t>{5, 30, 1000}[round % 3];
    const StridedAddresses one = random_addresses(random, longest);
    const StridedAddresses other = random_addresses(random, longest);
    const auto span = static_cast<int64_t>(one.end() + other.end());
    const int64_t distance = static_cast<int64_t>(random() % (2 * one.end() + 9)) - span / 3;
    std::vector<int64_t> moved = list(other);
    for (int64_t& address : moved) address += distance;
    const std::vector<int64_t> held = list(one);
    std::vector<int64_t> both;
    std::set_intersection(held.begin(), held.end(), moved.begin(), moved.end(),
                          std::back_inserter(both));
    met += both.empty() ? 0u : 1u;
    ASSERT_EQ(find_meeting(one, other, distance), both.empty() ? Meeting::kApart : Meeting::kMeet)
        << "round " << round;
    const std::set<int64_t> addresses(held.begin(), held.end());
    ASSERT_EQ(find_repeat(one), addresses.size() == held.size() ? Meeting::kApart : Meeting::kMeet)
        << "round " << round;
  }
  EXPECT_GT(met, kRounds / 10);
  EXPECT_LT(met, kRounds / 10 * 9);
}

StridedAddresses addresses_of(std::vector<std::pair<uint64_t, uint64_t>> steps,
                              uint64_t offset = 0) {
  StridedAddresses addresses;
  addresses.offset = offset;
  for (const auto& [extent, stride] : steps) {
    addresses.extents[addresses.dimensions] = extent;
    addresses.strides[addresses.dimensions++] = stride;
  }
  return addresses;
}

TEST(StridedAddresses, OverlapOfLargeStridedRangesIsDecided) {
  // Columns of a matrix with 2^20 rows.
  const StridedAddresses left = addresses_of({{1u << 20, 3000}, {1000, 1}});
  const StridedAddresses right = addresses_of({{1u << 20, 3000}, {2000, 1}}, 1000);
  EXPECT_EQ(find_meeting(left, right), Meeting::kApart);
  EXPECT_EQ(find_meeting(left, right, -1), Meeting::kMeet);
  EXPECT_EQ(find_meeting(left, right, 1000), Meeting::kMeet);
  // Odd and even addresses.
  EXPECT_EQ(find_meeting(addresses_of({{1u << 20, 2}}), addresses_of({{1u << 20, 2}}, 1)),
            Meeting::kApart);
  // Multiples of two primes first meet at their product.
  EXPECT_EQ(
      find_meeting(addresses_of({{9000, 10'007}}, 10'007), addresses_of({{9000, 9973}}, 9973)),
      Meeting::kApart);
  EXPECT_EQ(
      find_meeting(addresses_of({{9999, 10'007}}, 10'007), addresses_of({{10'008, 9973}}, 9973)),
      Meeting::kMeet);
  EXPECT_EQ(find_repeat(addresses_of({{3, 2}, {2, 3}})), Meeting::kApart);
  EXPECT_EQ(find_repeat(addresses_of({{4, 2}, {3, 3}})), Meeting::kMeet);
  EXPECT_EQ(find_repeat(addresses_of({{2, 0}})), Meeting::kMeet);
}

TEST(StridedAddresses, LongSearchesAreAborted) {
  // The lengths have no common divisor, and are so sparse that most sums are missed.
  StridedAddresses one;
  StridedAddresses other;
  one.dimensions = other.dimensions = 6;
  const uint64_t lengths[] = {1'000'003, 1'000'033, 1'000'037, 1'000'039, 1'000'081, 1'000'099};
  for (size_t d = 0; d < 6; ++d) {
    one.extents[d] = other.extents[d] = 12;
    one.strides[d] = lengths[d] * 2;
    other.strides[d] = lengths[5 - d] * 2 + 4;
  }
  // Their differences are even, so nothing is searched.
  EXPECT_EQ(find_meeting(one, other, 1), Meeting::kApart);
  int unknown = 0;
  for (int64_t distance = 2; distance < 40; distance += 2) {
    if (find_meeting(one, other, distance) == Meeting::kUnknown) ++unknown;
  }
  EXPECT_GT(unknown, 0);
}

// --- destinations ------------------------------------------------------------------------------

Part part_of(int rank, std::vector<std::pair<uint64_t, uint64_t>> ranges, uint64_t offset = 0,
             std::vector<uint64_t> strides = {}) {
  Part part;
  part.rank = rank;
  for (const auto& [begin, end] : ranges) {
    part.box.begin[part.box.dimensions] = begin;
    part.box.end[part.box.dimensions++] = end;
  }
  part.offset = offset;
  part.strides = dense_strides(part.box);
  std::copy(strides.begin(), strides.end(), part.strides.begin());
  return part;
}

std::string fault(const Layout& layout) {
  const Status status = check_destination(layout);
  return status.ok() ? "" : std::string(status.text());
}

TEST(Destinations, ErrorNamesOverlappingBoxes) {
  Layout layout;
  layout.shape = {8};
  layout.parts = {part_of(0, {{0, 4}}), part_of(0, {{4, 8}})};
  ASSERT_TRUE(check(layout).ok());
  EXPECT_THAT(fault(layout), HasSubstr("rank 0, box [4:8] lies over box [0:4]"));
  layout.parts = {part_of(0, {{0, 4}}, 3), part_of(0, {{4, 8}})};
  EXPECT_THAT(fault(layout), HasSubstr("rank 0, box [4:8] lies over box [0:4]"));
  layout.parts = {part_of(0, {{0, 4}}, 4), part_of(0, {{4, 8}})};
  EXPECT_EQ(fault(layout), "");
  // Another rank has separate memory.
  layout.parts = {part_of(0, {{0, 4}}), part_of(1, {{4, 8}})};
  EXPECT_EQ(fault(layout), "");
  // Tests every second element, and the elements in between.
  layout.parts = {part_of(0, {{0, 4}}, 0, {2}), part_of(0, {{4, 8}}, 1, {2})};
  EXPECT_EQ(fault(layout), "");
  layout.parts = {part_of(0, {{0, 4}}, 0, {2}), part_of(0, {{4, 8}}, 2, {2})};
  EXPECT_THAT(fault(layout), HasSubstr("lies over"));
}

// Three tensors in the rows of one buffer: 2, 1 and 1 of 4 rows of each group.
TEST(Destinations, InterleavedBoxesAreAccepted) {
  Layout layout;
  layout.shape = {40, 16};
  layout.parts.clear();
  for (uint64_t group = 0; group < 10; ++group) {
    for (uint64_t row = 0; row < 4; ++row) {
      layout.parts.push_back(part_of(0, {{group + row * 10, group + row * 10 + 1}, {0, 16}},
                                     (group * 4 + row) * 16, {16, 1}));
    }
  }
  EXPECT_EQ(fault(layout), "");
  layout.parts.clear();
  layout.parts.push_back(part_of(0, {{0, 20}, {0, 16}}, 0, {48, 1}));
  layout.parts.push_back(part_of(0, {{20, 40}, {0, 16}}, 32, {48, 1}));
  EXPECT_EQ(fault(layout), "");
  layout.parts.edit()[1].offset = 33;  // into the next row
  EXPECT_THAT(fault(layout), HasSubstr("rank 0, box [20:40, 0:16]"));
}

TEST(Destinations, PaddingMayOverlap) {
  Layout layout;
  layout.shape = {6};
  layout.padded_shape = {8};
  layout.parts = {part_of(0, {{0, 4}}), part_of(0, {{4, 8}}, 4)};
  EXPECT_EQ(fault(layout), "");
  // The second box's padding would overlap the first box.
  layout.parts = {part_of(0, {{0, 4}}, 2), part_of(0, {{4, 8}}, 0)};
  ASSERT_TRUE(check(layout).ok());
  EXPECT_EQ(fault(layout), "");
}

TEST(Destinations, BoxesOfAMeshDoNotOverlap) {
  Result<Layout> made = layout_of({64, 4096}, {{2}, {0, 1}}, {strided_shard(1, 512)});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->parts.size(), 1024u);
  EXPECT_EQ(fault(made.value()), "");
}

// Random cuts of a small tensor on two ranks, with random strides and offsets.
Layout random_layout(std::mt19937& random) {
  Layout layout;
  layout.shape = {1 + random() % 5, 1 + random() % 6};
  std::vector<std::vector<uint64_t>> cuts;
  for (const uint64_t extent : layout.shape) {
    std::vector<uint64_t>& own = cuts.emplace_back(std::vector<uint64_t>{0, extent});
    if (random() % 2 == 0) own.push_back(random() % extent);
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
  }
  const uint64_t loose = random() % 3 == 0 ? 1 : 12;
  for (size_t i = 0; i + 1 < cuts[0].size(); ++i) {
    for (size_t j = 0; j + 1 < cuts[1].size(); ++j) {
      Part part = part_of(static_cast<int>(random() % 2),
                          {{cuts[0][i], cuts[0][i + 1]}, {cuts[1][j], cuts[1][j + 1]}},
                          random() % (10 * loose));
      if (random() % 2 == 0) part.strides = {1 + random() % loose, 1 + random() % loose};
      layout.parts.push_back(part);
    }
  }
  return layout;
}

// Returns the elements at each address of |rank|'s memory.
std::map<uint64_t, std::set<std::vector<uint64_t>>> held_by(const Layout& layout, int rank) {
  std::map<uint64_t, std::set<std::vector<uint64_t>>> held;
  for (const Part& part : layout.parts) {
    if (part.rank != rank) continue;
    for (uint64_t i = part.box.begin[0]; i < part.box.end[0]; ++i) {
      for (uint64_t j = part.box.begin[1]; j < part.box.end[1]; ++j) {
        const uint64_t address = part.offset + (i - part.box.begin[0]) * part.strides[0] +
                                 (j - part.box.begin[1]) * part.strides[1];
        held[address].insert({i, j});
      }
    }
  }
  return held;
}

TEST(Destinations, RefusalMatchesBruteForce) {
  std::mt19937 random(2);
  size_t sound = 0;
  size_t refused = 0;
  for (size_t round = 0; round < 20'000; ++round) {
    const Layout layout = random_layout(random);
    if (!check(layout).ok()) continue;
    bool twice = false;
    for (const int rank : {0, 1}) {
      for (const auto& [address, elements] : held_by(layout, rank)) twice |= elements.size() > 1;
    }
    ++(twice ? refused : sound);
    ASSERT_EQ(check_destination(layout).ok(), !twice) << to_table(layout);
  }
  EXPECT_GT(sound, 1000u);
  EXPECT_GT(refused, 1000u);
}

// Tests two layouts in one buffer, the second one |distance| elements after the first. Compares
// bytes.
TEST(Footprints, OverlapMatchesBruteForce) {
  std::mt19937 random(3);
  size_t stayed = 0;
  size_t met = 0;
  size_t apart = 0;
  for (size_t round = 0; round < 30'000; ++round) {
    const Layout one = random_layout(random);
    Layout other = random_layout(random);
    // Often the addresses are the same, cut in another way, or only some of them.
    const bool is_alike = random() % 2 == 0;
    if (is_alike) {
      other = one;
      Part& part = other.parts.edit()[random() % other.parts.size()];
      const size_t d = random() % 2;
      const uint64_t cut = random() % part.box.extent(d);
      part.box.begin[d] += cut;
      part.offset += cut * part.strides[d];
    }
    if (!check(one).ok() || check_destination(one).code() != Code::kOk) continue;
    const uint64_t bytes = 1 + random() % 4;
    const int64_t distance = is_alike ? 0 : static_cast<int64_t>(random() % 21) - 10;
    for (const bool may_stay : {false, true}) {
      bool meets = false;
      bool stays = false;
      const auto held = held_by(other, 0);
      for (const auto& [address, elements] : held_by(one, 0)) {
        for (uint64_t byte = 0; byte < bytes; ++byte) {
          const int64_t at = static_cast<int64_t>(address * bytes + byte) - distance;
          const auto found = held.find(at < 0 ? UINT64_MAX : static_cast<uint64_t>(at) / bytes);
          if (found == held.end()) continue;
          const bool same = found->second == elements &&
                            at % static_cast<int64_t>(bytes) == static_cast<int64_t>(byte);
          (same && may_stay ? stays : meets) = true;
        }
      }
      const Meeting found = find_meeting(footprint_of(one, 0, bytes), footprint_of(other, 0, bytes),
                                         distance, may_stay);
      stayed += stays && !meets ? 1u : 0u;
      ++(meets ? met : apart);
      ASSERT_NE(found, Meeting::kUnknown);
      // Boxes whose elements stay may still be refused if their strides are not nested.
      if (stays && !meets && found == Meeting::kMeet) continue;
      ASSERT_EQ(found, meets ? Meeting::kMeet : Meeting::kApart)
          << round << ": " << to_table(one) << to_table(other) << distance << ", " << bytes;
    }
  }
  EXPECT_GT(stayed, 1000u);
  EXPECT_GT(met, 1000u);
  EXPECT_GT(apart, 1000u);
}

TEST(Footprints, ElementsThatStayInPlaceDoNotOverlap) {
  Layout rows;
  rows.shape = {8, 4};
  rows.parts = {part_of(0, {{0, 6}, {0, 4}}), part_of(1, {{6, 8}, {0, 4}})};
  Layout fewer = rows;
  fewer.parts = {part_of(0, {{0, 3}, {0, 4}}), part_of(1, {{3, 8}, {0, 4}})};
  const Footprint from = footprint_of(rows, 0, 4);
  EXPECT_EQ(find_meeting(from, footprint_of(fewer, 0, 4), 0, true), Meeting::kApart);
  EXPECT_EQ(find_meeting(from, footprint_of(fewer, 0, 4), 0, false), Meeting::kMeet);
  EXPECT_EQ(find_meeting(from, footprint_of(fewer, 0, 4), 4, true), Meeting::kMeet);
  // Uses the same memory with other elements.
  Layout columns = rows;
  columns.parts = {part_of(0, {{0, 8}, {0, 2}}), part_of(1, {{0, 8}, {2, 4}})};
  EXPECT_EQ(find_meeting(from, footprint_of(columns, 0, 4), 0, true), Meeting::kMeet);
  EXPECT_EQ(find_meeting(from, footprint_of(columns, 0, 4), 24 * 4, true), Meeting::kApart);
}

}  // namespace
}  // namespace hetcomm::reshard
