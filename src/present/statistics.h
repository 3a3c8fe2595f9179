// Computes statistics of measurements.
#pragma once

#include <vector>

namespace hetcomm::present {

// Returns the middle value, or the mean of the two middle values, or NaN if |values| is empty.
double median(std::vector<double> values);

// Returns the geometric mean of |values|, which are positive, or NaN if there are none.
double geometric_mean(const std::vector<double>& values);

}  // namespace hetcomm::present
