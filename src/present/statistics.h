// Figures of many measurements.
#pragma once

#include <vector>

namespace hetcomm::present {

// The value in the middle, or the mean of the two in the middle; not a number if there are no
// |values|.
double median(std::vector<double> values);

// Takes positive |values|; not a number if there are none.
double geometric_mean(const std::vector<double>& values);

}  // namespace hetcomm::present
