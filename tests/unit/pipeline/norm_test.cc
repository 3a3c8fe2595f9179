// The norm of gradients: every type of elements is read as what it is, those that are not finite
// are found wherever they lie, and parts add up to the norm of the whole.
#include "pipeline/execute/norm.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/datatype.h>

namespace hetcomm::pipeline {
namespace {

template <typename Element>
GradientNorm norm_of(double type, int32_t datatype, const std::vector<Element>& elements,
                     uint64_t each = 1) {
  GradientNorm norm(type);
  norm.add(reinterpret_cast<const std::byte*>(elements.data()), elements.size() / each, datatype);
  return norm;
}

TEST(GradientNorm, NormIsComputedForEveryType) {
  EXPECT_EQ(norm_of<int8_t>(2, HETCOMM_INT8, {-3, 4}).norm(), 5);
  EXPECT_EQ(norm_of<uint8_t>(2, HETCOMM_UINT8, {200}).norm(), 200);
  EXPECT_EQ(norm_of<int16_t>(2, HETCOMM_INT16, {-300, 400}).norm(), 500);
  EXPECT_EQ(norm_of<uint16_t>(2, HETCOMM_UINT16, {60'000}).norm(), 60'000);
  EXPECT_EQ(norm_of<int32_t>(2, HETCOMM_INT32, {-3, 4}).norm(), 5);
  EXPECT_EQ(norm_of<uint32_t>(2, HETCOMM_UINT32, {4'000'000'000}).norm(), 4e9);
  EXPECT_EQ(norm_of<int64_t>(2, HETCOMM_INT64, {-3, 4}).norm(), 5);
  EXPECT_EQ(norm_of<uint64_t>(2, HETCOMM_UINT64, {3, 4}).norm(), 5);
  EXPECT_EQ(norm_of<float>(2, HETCOMM_FLOAT32, {-3, 4}).norm(), 5);
  EXPECT_EQ(norm_of<double>(2, HETCOMM_FLOAT64, {-3, 4}).norm(), 5);
  EXPECT_EQ(norm_of<float>(2, HETCOMM_COMPLEX64, {3, 4, 0, -12}, 2).norm(), 13);
  EXPECT_EQ(norm_of<double>(HUGE_VAL, HETCOMM_COMPLEX128, {3, 4, 0, -12}, 2).norm(), 12);
}

TEST(GradientNorm, SixteenAndEightBitFloatsAreDecoded) {
  const auto value = [](int32_t datatype, uint16_t bits) {
    return norm_of<uint16_t>(HUGE_VAL, datatype, {bits}).norm();
  };
  EXPECT_EQ(value(HETCOMM_FLOAT16, 0x3C00), 1);
  EXPECT_EQ(value(HETCOMM_FLOAT16, 0xC500), 5);
  EXPECT_EQ(value(HETCOMM_FLOAT16, 0x7BFF), 65504);
  EXPECT_EQ(value(HETCOMM_FLOAT16, 0x0001), std::ldexp(1, -24));
  EXPECT_EQ(value(HETCOMM_FLOAT16, 0x8000), 0);
  EXPECT_TRUE(std::isinf(value(HETCOMM_FLOAT16, 0xFC00)));
  EXPECT_TRUE(std::isnan(value(HETCOMM_FLOAT16, 0x7E00)));
  EXPECT_EQ(value(HETCOMM_BFLOAT16, 0xC0A0), 5);
  EXPECT_EQ(value(HETCOMM_BFLOAT16, 0x0001), std::ldexp(1, -133));
  EXPECT_TRUE(std::isinf(value(HETCOMM_BFLOAT16, 0x7F80)));
  const auto byte = [](int32_t datatype, uint8_t bits) {
    return norm_of<uint8_t>(HUGE_VAL, datatype, {bits}).norm();
  };
  EXPECT_EQ(byte(HETCOMM_FLOAT8_E4M3FN, 0x38), 1);
  EXPECT_EQ(byte(HETCOMM_FLOAT8_E4M3FN, 0x7E), 448);
  EXPECT_TRUE(std::isnan(byte(HETCOMM_FLOAT8_E4M3FN, 0xFF)));
  EXPECT_EQ(byte(HETCOMM_FLOAT8_E5M2, 0x3C), 1);
  EXPECT_EQ(byte(HETCOMM_FLOAT8_E5M2, 0x7B), 57344);
  EXPECT_TRUE(std::isinf(byte(HETCOMM_FLOAT8_E5M2, 0x7C)));
  EXPECT_TRUE(std::isnan(byte(HETCOMM_FLOAT8_E5M2, 0x7D)));
}

TEST(GradientNorm, PowerNormsAndTheMaximumNormAreComputed) {
  EXPECT_DOUBLE_EQ(norm_of<double>(3, HETCOMM_FLOAT64, {3, -4, 5}).norm(), 6);
  EXPECT_DOUBLE_EQ(norm_of<double>(1, HETCOMM_FLOAT64, {3, -4, 5}).norm(), 12);
  EXPECT_DOUBLE_EQ(norm_of<double>(HUGE_VAL, HETCOMM_FLOAT64, {3, -7, 5}).norm(), 7);
}

TEST(GradientNorm, NonfiniteElementIsFoundAtAnyPosition) {
  const double nan = std::nan("");
  for (const double wrong : {nan, HUGE_VAL, -HUGE_VAL}) {
    for (const double type : {1.0, 2.0, 2.5, HUGE_VAL}) {
      for (size_t at = 0; at < 5; ++at) {
        std::vector<double> elements(5, 2.0);
        elements[at] = wrong;
        const GradientNorm norm = norm_of<double>(type, HETCOMM_FLOAT64, elements);
        EXPECT_TRUE(norm.has_nonfinite());
        EXPECT_FALSE(std::isfinite(norm.norm()));
        EXPECT_EQ(std::isnan(norm.norm()), std::isnan(wrong));
      }
    }
  }
  EXPECT_FALSE(norm_of<double>(2, HETCOMM_FLOAT64, {1, 2}).has_nonfinite());
  // Finite elements whose sum is not are no fault of theirs.
  EXPECT_FALSE(norm_of<double>(2, HETCOMM_FLOAT64, {1e200}).has_nonfinite());
}

TEST(GradientNorm, PartialNormsCombineToTheWholeNorm) {
  for (const double type : {2.0, 3.0, HUGE_VAL}) {
    const GradientNorm whole = norm_of<double>(type, HETCOMM_FLOAT64, {1, -2, 3, 4, -5});
    GradientNorm parts(type);
    for (const std::vector<double>& each : {std::vector<double>{1, -2}, {}, {3, 4, -5}}) {
      const GradientNorm part = norm_of<double>(type, HETCOMM_FLOAT64, each);
      parts.add(part.part(), part.has_nonfinite());
    }
    EXPECT_DOUBLE_EQ(parts.norm(), whole.norm());
    EXPECT_FALSE(parts.has_nonfinite());
    parts.add(std::nan(""), true);
    parts.add(1, false);
    EXPECT_TRUE(std::isnan(parts.norm()));
    EXPECT_TRUE(parts.has_nonfinite());
  }
}

}  // namespace
}  // namespace hetcomm::pipeline
