#include "pipeline/execute/norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>

#include <hetcomm/datatype.h>

namespace hetcomm::pipeline {
namespace {

template <typename Value>
Value read_at(const std::byte* data, uint64_t index) {
  Value value;
  std::memcpy(&value, data + index * sizeof(Value), sizeof(Value));
  return value;
}

// Returns the maximum. NaN counts as the greatest value.
double greater(double one, double other) { return std::isnan(other) || other > one ? other : one; }

// Returns the value of a float with |exponent_bits| and |fraction_bits| after the sign bit. With
// |has_infinity|, the greatest exponent encodes infinity and NaN. Otherwise only all ones are NaN.
double value_of(uint32_t bits, int exponent_bits, int fraction_bits, bool has_infinity) {
  const uint32_t most = (1u << exponent_bits) - 1;
  const uint32_t exponent = bits >> fraction_bits & most;
  const uint32_t ones = (1u << fraction_bits) - 1;
  const uint32_t fraction = bits & ones;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == most && (has_infinity || fraction == ones)) {
    return has_infinity && fraction == 0 ? HUGE_VAL : std::nan("");
  }
  const uint32_t whole = exponent == 0 ? fraction : fraction + ones + 1;
  const int power = std::max(static_cast<int>(exponent), 1) - bias - fraction_bits;
  return std::ldexp(static_cast<double>(whole), power);
}

}  // namespace

template <typename Read>
void GradientNorm::add_each(uint64_t count, Read&& read) {
  const bool is_greatest = std::isinf(type_);
  const bool is_euclidean = type_ == 2;
  double sum = 0;
  double greatest = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const double size = read(i);
    has_nonfinite_ |= !std::isfinite(size);
    if (is_greatest) {
      greatest = greater(greatest, size);
    } else {
      sum += is_euclidean ? size * size : std::pow(size, type_);
    }
  }
  add(is_greatest ? greatest : sum, has_nonfinite_);
}

void GradientNorm::add(double part, bool has_nonfinite) {
  has_nonfinite_ |= has_nonfinite;
  if (!std::isinf(type_)) {
    part_ += part;
  } else {
    part_ = greater(part_, part);
  }
}

void GradientNorm::add(const std::byte* data, uint64_t count, int32_t datatype) {
  const auto numbers = [&]<typename Value>(Value) {
    add_each(count,
             [&](uint64_t i) { return std::abs(static_cast<double>(read_at<Value>(data, i))); });
  };
  const auto pairs = [&]<typename Value>(Value) {
    add_each(count, [&](uint64_t i) {
      const auto real = static_cast<double>(read_at<Value>(data, 2 * i));
      const auto imaginary = static_cast<double>(read_at<Value>(data, 2 * i + 1));
      return std::abs(std::complex(real, imaginary));
    });
  };
  const auto bits = [&]<typename Bits>(Bits, int exponent, int fraction, bool has_infinity) {
    add_each(count, [&](uint64_t i) {
      return value_of(read_at<Bits>(data, i), exponent, fraction, has_infinity);
    });
  };
  switch (datatype) {
    case HETCOMM_INT8:
      return numbers(int8_t{});
    case HETCOMM_UINT8:
      return numbers(uint8_t{});
    case HETCOMM_INT16:
      return numbers(int16_t{});
    case HETCOMM_UINT16:
      return numbers(uint16_t{});
    case HETCOMM_INT32:
      return numbers(int32_t{});
    case HETCOMM_UINT32:
      return numbers(uint32_t{});
    case HETCOMM_INT64:
      return numbers(int64_t{});
    case HETCOMM_UINT64:
      return numbers(uint64_t{});
    case HETCOMM_FLOAT16:
      return bits(uint16_t{}, 5, 10, true);
    case HETCOMM_BFLOAT16:
      return bits(uint16_t{}, 8, 7, true);
    case HETCOMM_FLOAT8_E4M3FN:
      return bits(uint8_t{}, 4, 3, false);
    case HETCOMM_FLOAT8_E5M2:
      return bits(uint8_t{}, 5, 2, true);
    case HETCOMM_FLOAT32:
      return numbers(float{});
    case HETCOMM_FLOAT64:
      return numbers(double{});
    case HETCOMM_COMPLEX64:
      return pairs(float{});
    case HETCOMM_COMPLEX128:
      return pairs(double{});
    default:
      return;
  }
}

double GradientNorm::norm() const {
  return std::isinf(type_) ? part_ : type_ == 2 ? std::sqrt(part_) : std::pow(part_, 1 / type_);
}

}  // namespace hetcomm::pipeline
