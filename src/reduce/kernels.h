// Kernels holds the functions of one SIMD target, by type and operator. reduce.cc calls the
// functions of the processor's best target. Tests call the functions of every target.
#pragma once

#include <array>
#include <cstddef>

namespace hetcomm::reduce {

inline constexpr size_t kTypes = 17;
inline constexpr size_t kOperators = 9;

// A pointer is null if the operation is not defined for the type. |bytes| is the length of |out|
// and of each input.
struct Kernels {
  using Combine = void (*)(std::byte* out, const std::byte* const* in, size_t inputs, size_t bytes);
  using Average = void (*)(std::byte* out, const std::byte* const* in, size_t inputs, size_t bytes,
                           float ranks);
  using Map = void (*)(std::byte* out, const std::byte* in, size_t bytes, double operand);
  using Widen = void (*)(float* out, const std::byte* in, size_t elements);
  using Narrow = void (*)(std::byte* out, const float* in, size_t elements);

  const char* target = nullptr;
  std::array<std::array<Combine, kOperators>, kTypes> combine{};
  std::array<Average, kTypes> average{};  // only for types that round; divides before rounding
  std::array<Map, kTypes> scale{};
  std::array<Map, kTypes> divide{};  // divides by a whole number of at least 1
  std::array<Widen, kTypes> widen{};
  std::array<Narrow, kTypes> narrow{};
};

// Returns the kernels of the SIMD target that Highway has chosen.
Kernels make_kernels();

// Each function adds the kernels of its types. add_integers() is in integers.cc, and so on.
void add_integers(Kernels& kernels);
void add_floats(Kernels& kernels);
void add_narrow_floats(Kernels& kernels);

}  // namespace hetcomm::reduce
