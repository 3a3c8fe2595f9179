// Statistics of many measurements.
#pragma once

#include <vector>

namespace hetcomm::present {

// Returns the middle value, or the mean of the two middle values; NaN if there are no |values|.
double median(std::vector<double> values);

// Returns the geometric mean of positive |values|; NaN if there are none.
double geometric_mean(const std::vector<double>& values);

}  // namespace hetcomm::present
