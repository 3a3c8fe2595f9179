// The word that was probably meant: swapped, missing and added letters, nothing that is too far,
// and words of any length.
#include "src/present/nearest.h"

#include <string>

#include <gtest/gtest.h>

namespace hetcomm::present {
namespace {

TEST(Nearest, FindsTheWordWithTheFewestChanges) {
  EXPECT_EQ(nearest("explian", {"topology", "explain", "reshard"}), "explain");
  EXPECT_EQ(nearest("--pere", {"--device", "--peer"}), "--peer");
  EXPECT_EQ(nearest("h1f1b", {"1f1b", "h-1f1b", "hh1f1b"}), "h-1f1b");
  EXPECT_EQ(nearest("abc", {"abd", "a-b-c"}), "abd");
  EXPECT_EQ(nearest("abcdef", {"a-b-c-d-e-f"}), "");
  EXPECT_EQ(nearest("--transport", {"--transports", "--variables"}), "--transports");
}

TEST(Nearest, FindsNothingIfEveryWordIsTooFar) {
  EXPECT_EQ(nearest("explain", {"topology", "reshard"}), "");
  EXPECT_EQ(nearest("", {"a", "topology"}), "");
  EXPECT_EQ(nearest("explain", {}), "");
}

TEST(Nearest, FindsNothingForAVeryLongWord) {
  EXPECT_EQ(nearest(std::string(1 << 20, 'x'), {"explain", "topology"}), std::string());
}

TEST(Nearest, DistanceIsCappedAtTheBound) {
  EXPECT_EQ(distance_below(4, "TSL", "TLS"), 1U);
  EXPECT_EQ(distance_below(4, "abc", "xyz"), 3U);
  EXPECT_EQ(distance_below(3, "abc", "xyz"), 3U);
  EXPECT_EQ(distance_below(2, "abc", "xyz"), 2U);
  EXPECT_EQ(distance_below(4, std::string(1 << 20, 'x'), "TLS"), 4U);
}

}  // namespace
}  // namespace hetcomm::present
