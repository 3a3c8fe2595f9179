// Statistics of zero, one and many values.
#include "src/present/statistics.h"

#include <cmath>

#include <gtest/gtest.h>

namespace hetcomm::present {
namespace {

TEST(Median, IsTheMiddleValueOrTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median({7}), 7);
  EXPECT_DOUBLE_EQ(median({5, 1, 3}), 3);
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(GeometricMean, IsTheNthRootOfTheProduct) { EXPECT_NEAR(geometric_mean({1, 4, 16}), 4, 1e-9); }

TEST(Statistics, EmptyInputGivesNan) {
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_TRUE(std::isnan(geometric_mean({})));
}

}  // namespace
}  // namespace hetcomm::present
