// The functions of one SIMD target, by type and operator. reduce.cc calls those of the best target
// of the processor; tests make and call all of them.
#pragma once

#include <array>
#include <cstddef>

namespace hetcomm::reduce {

inline constexpr size_t kTypes = 17;
inline constexpr size_t kOperators = 9;

// Null if the operator is not defined for the type. Lengths are in bytes of |out|, or of |in| if
// that is the narrow one.
struct Kernels {
  using Combine = void (*)(std::byte* out, const std::byte* const* in, size_t inputs, size_t bytes);
  using Average = void (*)(std::byte* out, const std::byte* const* in, size_t inputs, size_t bytes,
                           float ranks);
  using Map = void (*)(std::byte* out, const std::byte* in, size_t bytes, double operand);
  using Widen = void (*)(float* out, const std::byte* in, size_t elements);
  using Narrow = void (*)(std::byte* out, const float* in, size_t elements);

  const char* target = nullptr;
  std::array<std::array<Combine, kOperators>, kTypes> combine{};
  std::array<Average, kTypes> average{};  // for types that round: divides the sum, then rounds
  std::array<Map, kTypes> scale{};
  std::array<Map, kTypes> divide{};  // by a whole number, at least 1
  std::array<Widen, kTypes> widen{};
  std::array<Narrow, kTypes> narrow{};
};

// The kernels are those of the SIMD target that Highway has chosen.
Kernels make_kernels();

// Fill in parts of the kernels, each in the file of its name.
void add_integers(Kernels& kernels);
void add_floats(Kernels& kernels);
void add_narrow_floats(Kernels& kernels);

}  // namespace hetcomm::reduce
