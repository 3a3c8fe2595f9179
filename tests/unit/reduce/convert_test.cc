// Narrow floats to float32 and back, on every SIMD target. Every bit pattern in every format is
// widened exactly and converted back unchanged. The midpoint between two neighbours and the numbers
// next to it are rounded to nearest even. Overflow becomes infinity or NaN, and every NaN becomes
// the same NaN. Lengths that fill no vector modify nothing else.
#include <bit>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/unit/reduce/fixture.h"

namespace hetcomm::test {
namespace {

using reduce::Kernels;
using reduce::Type;

std::vector<std::byte> packed(Type type, const std::vector<uint32_t>& patterns) {
  const size_t size = reduce::size_of(type);
  std::vector<std::byte> bytes(patterns.size() * size);
  for (size_t i = 0; i < patterns.size(); ++i) std::memcpy(&bytes[i * size], &patterns[i], size);
  return bytes;
}
uint32_t unpacked(Type type, const std::vector<std::byte>& bytes, size_t index) {
  uint32_t pattern = 0;
  std::memcpy(&pattern, &bytes[index * reduce::size_of(type)], reduce::size_of(type));
  return pattern;
}

// Returns all values of |format|, the midpoints between them and some other numbers, each with its
// float32 neighbours and its negation, and NaNs.
std::vector<float> hard_numbers(const NarrowFormat& format) {
  std::vector<float> numbers;
  const float infinity = std::numeric_limits<float>::infinity();
  const auto add = [&](double value) {
    const auto number = static_cast<float>(value);
    for (const float near :
         {number, std::nextafter(number, infinity), std::nextafter(number, 0.0f)}) {
      numbers.push_back(near);
      numbers.push_back(-near);
    }
  };
  for (uint32_t pattern = 0; pattern + 1 < format.patterns() / 2; ++pattern) {
    const double value = format.value(pattern);
    if (!std::isfinite(value)) continue;
    add(value);
    const double next = format.value(pattern + 1);
    // The last step is as wide as the one before.
    add(std::isfinite(next) ? (value + next) / 2 : value + (value - format.value(pattern - 1)) / 2);
  }
  for (const double value :
       {1e-45, 1e-38, 1e-30, 479.0, 480.0, 481.0, 65536.0, 1e9, 1e30, 3.4e38}) {
    add(value);
  }
  add(static_cast<double>(infinity));
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xffc12345u, 0x7fffffffu, 0xffffffffu}) {
    numbers.push_back(std::bit_cast<float>(bits));
  }
  return numbers;
}

TEST(ReduceConvert, EveryPatternIsWidenedExactlyAndConvertsBack) {
  for (const Type type : kNarrowTypes) {
    const NarrowFormat& format = format_of(type);
    std::vector<uint32_t> patterns(format.patterns());
    for (uint32_t i = 0; i < format.patterns(); ++i) patterns[i] = i;
    const auto in = packed(type, patterns);
    for (const Kernels& kernels : all_kernels()) {
      std::vector<float> wide(patterns.size());
      kernels.widen[static_cast<size_t>(type)](wide.data(), in.data(), wide.size());
      std::vector<std::byte> back(in.size());
      kernels.narrow[static_cast<size_t>(type)](back.data(), wide.data(), wide.size());
      for (uint32_t i = 0; i < format.patterns(); ++i) {
        const double value = format.value(i);
        if (format.is_nan(i)) {
          ASSERT_TRUE(std::isnan(wide[i])) << kernels.target << " " << i;
          ASSERT_EQ(unpacked(type, back, i), format.nan()) << kernels.target << " " << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]),
                    std::bit_cast<uint32_t>(static_cast<float>(value)))
              << kernels.target << " " << i;
          ASSERT_EQ(unpacked(type, back, i), i) << kernels.target;
        }
      }
    }
  }
}

TEST(ReduceConvert, NarrowingRoundsToNearestEvenOnEveryTarget) {
  for (const Type type : kNarrowTypes) {
    const NarrowFormat& format = format_of(type);
    const std::vector<float> numbers = hard_numbers(format);
    std::vector<uint32_t> expected;
    for (const float number : numbers) expected.push_back(format.pattern(number));
    for (const Kernels& kernels : all_kernels()) {
      std::vector<std::byte> out(numbers.size() * reduce::size_of(type));
      kernels.narrow[static_cast<size_t>(type)](out.data(), numbers.data(), numbers.size());
      for (size_t i = 0; i < numbers.size(); ++i) {
        ASSERT_EQ(unpacked(type, out, i), expected[i])
            << kernels.target << " type " << static_cast<int>(type) << " of " << numbers[i];
      }
    }
  }
}

TEST(ReduceConvert, ShortLengthsModifyOnlyTheOutput) {
  constexpr auto kGuard = std::byte{0xa5};
  for (const Type type : kNarrowTypes) {
    const size_t size = reduce::size_of(type);
    for (const Kernels& kernels : all_kernels()) {
      for (size_t elements = 0; elements < 40; ++elements) {
        const std::vector<float> in(elements, 1.0f);
        std::vector<std::byte> out(elements * size + 64, kGuard);
        kernels.narrow[static_cast<size_t>(type)](out.data() + 1, in.data(), elements);
        ASSERT_EQ(out[0], kGuard);
        for (size_t i = 1 + elements * size; i < out.size(); ++i) ASSERT_EQ(out[i], kGuard);
        std::vector<float> wide(elements + 32, -7.0f);
        kernels.widen[static_cast<size_t>(type)](wide.data(), out.data() + 1, elements);
        for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(wide[i], i < elements ? 1.0f : -7.0f);
      }
    }
  }
}

}  // namespace
}  // namespace hetcomm::test
