#include "src/reduce/reduce.h"

#include <cassert>

#include "src/reduce/kernels.h"

namespace hetcomm::reduce {
namespace {

constexpr std::array<size_t, kTypes> kSizes = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 1, 1, 4, 8, 8, 16};

constexpr size_t at(Type type) { return static_cast<size_t>(type); }
constexpr size_t at(Operator op) { return static_cast<size_t>(op); }

// Made at the first use, and the same ever after.
const Kernels& kernels() {
  static const Kernels kKernels = make_kernels();
  return kKernels;
}

}  // namespace

Kernels make_kernels() {
  Kernels kernels;
  add_integers(kernels);
  add_floats(kernels);
  add_narrow_floats(kernels);
  return kernels;
}

size_t size_of(Type type) { return kSizes[at(type)]; }

bool is_defined(Type type, Operator op) { return kernels().combine[at(type)][at(op)] != nullptr; }

void combine(Type type, Operator op, std::byte* out, const std::byte* const* in, size_t inputs,
             size_t elements) {
  assert(inputs >= 1 && inputs <= kMaxInputs);
  kernels().combine[at(type)][at(op)](out, in, inputs, elements * kSizes[at(type)]);
}

void scale(Type type, std::byte* out, const std::byte* in, size_t elements, double factor) {
  kernels().scale[at(type)](out, in, elements * kSizes[at(type)], factor);
}

void divide(Type type, std::byte* out, const std::byte* in, size_t elements, uint32_t ranks) {
  assert(ranks >= 1);
  const size_t bytes = elements * kSizes[at(type)];
  // The inverse of a power of two is exact, and so is the product as much as the quotient.
  const bool by_inverse = type >= Type::kFloat16 && (ranks & (ranks - 1)) == 0;
  if (by_inverse) return kernels().scale[at(type)](out, in, bytes, 1.0 / ranks);
  kernels().divide[at(type)](out, in, bytes, ranks);
}

void widen(Type type, float* out, const std::byte* in, size_t elements) {
  kernels().widen[at(type)](out, in, elements);
}

void narrow(Type type, std::byte* out, const float* in, size_t elements) {
  kernels().narrow[at(type)](out, in, elements);
}

}  // namespace hetcomm::reduce
