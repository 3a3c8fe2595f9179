// The kernels for every SIMD target that this processor supports, and a second, scalar way to read
// and write narrow floats: a search among the values of all bit patterns, calculated from the
// format's definition.
#pragma once

#include "src/reduce/targets.h"
// Highway's headers must follow targets.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <hwy/targets.h>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "src/reduce/kernels.h"
#include "src/reduce/reduce.h"

namespace hetcomm::test {

inline const std::vector<reduce::Kernels>& all_kernels() {
  static const std::vector<reduce::Kernels> kAll = [] {
    std::vector<reduce::Kernels> all;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      all.push_back(reduce::make_kernels());
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return all;
  }();
  return kAll;
}

class NarrowFormat {
 public:
  NarrowFormat(int exponent_bits, int mantissa_bits, bool has_infinity)
      : e_(exponent_bits), m_(mantissa_bits), has_infinity_(has_infinity) {
    // Positive numbers increase with their bit patterns. One more step beyond the largest stands
    // for overflow.
    for (uint32_t pattern = 0; pattern <= largest(); ++pattern)
      values_.push_back(magnitude(pattern));
    values_.push_back(magnitude(largest() + 1));
  }

  uint32_t patterns() const { return 2u << (e_ + m_); }
  uint32_t nan() const {
    return has_infinity_ ? infinity() | (m_ > 2 ? 1u << (m_ - 1) : (1u << m_) - 1)
                         : (1u << (e_ + m_)) - 1;
  }
  bool is_nan(uint32_t pattern) const {
    const uint32_t magnitude = pattern & ((1u << (e_ + m_)) - 1);
    return has_infinity_ ? magnitude > infinity() : magnitude == nan();
  }
  double value(uint32_t pattern) const {
    const uint32_t unsigned_pattern = pattern & ((1u << (e_ + m_)) - 1);
    double result = std::numeric_limits<double>::quiet_NaN();
    if (has_infinity_ && unsigned_pattern == infinity()) {
      result = std::numeric_limits<double>::infinity();
    } else if (!is_nan(pattern)) {
      result = magnitude(unsigned_pattern);
    }
    return pattern >> (e_ + m_) ? -result : result;
  }
  // Returns the bit pattern of the nearest number; on a tie, the even pattern.
  uint32_t pattern(float number) const {
    if (std::isnan(number)) return nan();
    const double wanted = std::abs(static_cast<double>(number));
    const uint32_t sign = std::signbit(number) ? 1u << (e_ + m_) : 0;
    auto index = static_cast<uint32_t>(values_.size() - 1);
    if (wanted < values_.back()) {
      const auto above = std::upper_bound(values_.begin(), values_.end(), wanted);
      index = static_cast<uint32_t>(above - values_.begin()) - 1;
      const double down = wanted - values_[index];
      const double up = values_[index + 1] - wanted;
      if (up < down || (up == down && index % 2 == 1)) ++index;
    }
    // Infinity, or NaN if the format has no infinity.
    return sign | (index > largest() ? largest() + 1 : index);
  }

 private:
  uint32_t infinity() const { return ((1u << e_) - 1) << m_; }
  uint32_t largest() const { return (has_infinity_ ? infinity() : nan()) - 1; }
  double magnitude(uint32_t pattern) const {
    const int bias = (1 << (e_ - 1)) - 1;
    const int exponent = static_cast<int>(pattern >> m_);
    const int fraction = static_cast<int>(pattern & ((1u << m_) - 1));
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - m_);
    return std::ldexp((1 << m_) + fraction, exponent - bias - m_);
  }

  int e_;
  int m_;
  bool has_infinity_;
  std::vector<double> values_;
};

inline const NarrowFormat& format_of(reduce::Type type) {
  static const NarrowFormat kHalf(5, 10, true);
  static const NarrowFormat kBrain(8, 7, true);
  static const NarrowFormat kE4m3(4, 3, false);
  static const NarrowFormat kE5m2(5, 2, true);
  switch (type) {
    case reduce::Type::kFloat16:
      return kHalf;
    case reduce::Type::kBfloat16:
      return kBrain;
    case reduce::Type::kFloat8E4M3fn:
      return kE4m3;
    default:
      return kE5m2;
  }
}

inline constexpr reduce::Type kNarrowTypes[] = {reduce::Type::kFloat16, reduce::Type::kBfloat16,
                                                reduce::Type::kFloat8E4M3fn,
                                                reduce::Type::kFloat8E5M2};

}  // namespace hetcomm::test
