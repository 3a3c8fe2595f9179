#include "src/reduce/reduce.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "src/reduce/kernels.h"

namespace hetcomm::reduce {
namespace {

constexpr size_t at(Type type) { return static_cast<size_t>(type); }
constexpr size_t at(Operator op) { return static_cast<size_t>(op); }

// A block is small enough to stay in the L1 cache between two steps.
constexpr size_t kBlockBytes = 4096;
constexpr size_t kBlockElements = kBlockBytes / sizeof(float);

bool is_narrow(Type type) { return type >= Type::kFloat16 && type <= Type::kFloat8E5M2; }

std::byte* bytes_of(float* numbers) { return reinterpret_cast<std::byte*>(numbers); }

// Computes |sum| = |sum| op in[0] op in[1] ... for |elements| elements of the inputs from |at_byte|
// on. PREMUL_SUM first scales each of them. If |begun| is false, |sum| is uninitialized and the
// result starts with in[0].
void add_block(const Reduction& reduction, float* sum, const std::byte* const* in, size_t inputs,
               size_t at_byte, size_t elements, bool begun) {
  std::array<float, kBlockElements> wide;
  const std::byte* const terms[] = {bytes_of(sum), bytes_of(wide.data())};
  for (size_t i = 0; i < inputs; ++i) {
    float* const to = begun ? wide.data() : sum;
    widen(reduction.type, to, in[i] + at_byte, elements);
    if (reduction.op == Operator::kPremulSum) {
      scale(Type::kFloat32, bytes_of(to), bytes_of(to), elements, reduction.factor);
    }
    if (begun) combine(Type::kFloat32, reduction.op, bytes_of(sum), terms, 2, elements);
    begun = true;
  }
}

void reduce_rounding(const Reduction& reduction, std::byte* out, const std::byte* const* in,
                     size_t inputs, size_t elements, const float* before) {
  const size_t size = size_of(reduction.type);
  std::array<float, kBlockElements> sum;
  for (size_t done = 0; done < elements; done += kBlockElements) {
    const size_t count = std::min(kBlockElements, elements - done);
    if (before != nullptr) std::memcpy(sum.data(), before + done, count * sizeof(float));
    add_block(reduction, sum.data(), in, inputs, done * size, count, before != nullptr);
    if (reduction.op == Operator::kAverage) {
      divide(Type::kFloat32, bytes_of(sum.data()), bytes_of(sum.data()), count, reduction.ranks);
    }
    narrow(reduction.type, out + done * size, sum.data(), count);
  }
}

// Combines more than kMaxInputs inputs, with several kernel calls per block.
void combine_many(Type type, Operator op, std::byte* out, const std::byte* const* in, size_t inputs,
                  size_t elements) {
  const size_t size = size_of(type);
  alignas(64) std::array<std::byte, kBlockBytes> partial;
  for (size_t done = 0; done < elements; done += kBlockBytes / size) {
    const size_t count = std::min(kBlockBytes / size, elements - done);
    std::array<const std::byte*, kMaxInputs> terms;
    size_t used = 0;
    for (size_t i = 0; i < inputs; ++i) {
      terms[used++] = in[i] + done * size;
      if (used < kMaxInputs || i + 1 == inputs) continue;
      combine(type, op, partial.data(), terms.data(), used, count);
      terms[0] = partial.data();
      used = 1;
    }
    combine(type, op, out + done * size, terms.data(), used, count);
  }
}

// Returns the kernels, which are created on first use and never change.
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

bool is_defined(Type type, Operator op) { return kernels().combine[at(type)][at(op)] != nullptr; }

void combine(Type type, Operator op, std::byte* out, const std::byte* const* in, size_t inputs,
             size_t elements) {
  assert(inputs >= 1 && inputs <= kMaxInputs);
  kernels().combine[at(type)][at(op)](out, in, inputs, elements * size_of(type));
}

void scale(Type type, std::byte* out, const std::byte* in, size_t elements, double factor) {
  kernels().scale[at(type)](out, in, elements * size_of(type), factor);
}

void divide(Type type, std::byte* out, const std::byte* in, size_t elements, uint32_t ranks) {
  assert(ranks >= 1);
  const size_t bytes = elements * size_of(type);
  // The reciprocal of a power of two is exact, so multiplying by it gives the same result as
  // dividing.
  const bool by_inverse = type >= Type::kFloat16 && (ranks & (ranks - 1)) == 0;
  if (by_inverse) return kernels().scale[at(type)](out, in, bytes, 1.0 / ranks);
  kernels().divide[at(type)](out, in, bytes, ranks);
}

bool rounds(Type type, Operator op) {
  return is_narrow(type) && op != Operator::kMin && op != Operator::kMax;
}

void reduce(const Reduction& reduction, std::byte* out, const std::byte* const* in, size_t inputs,
            size_t elements, const float* before) {
  const Type type = reduction.type;
  const Operator op = reduction.op;
  const bool divides = op == Operator::kAverage && reduction.ranks > 1;
  if (rounds(type, op)) {
    const bool plain = before == nullptr && !divides && op != Operator::kPremulSum;
    if (plain && inputs <= kMaxInputs) return combine(type, op, out, in, inputs, elements);
    if (before == nullptr && divides && inputs <= kMaxInputs) {
      kernels().average[at(type)](out, in, inputs, elements * size_of(type),
                                  static_cast<float>(reduction.ranks));
      return;
    }
    return reduce_rounding(reduction, out, in, inputs, elements, before);
  }
  assert(before == nullptr);
  if (inputs <= kMaxInputs) {
    combine(type, op, out, in, inputs, elements);
  } else {
    combine_many(type, op, out, in, inputs, elements);
  }
  if (divides) divide(type, out, out, elements, reduction.ranks);
}

void reduce_wide(const Reduction& reduction, float* out, const std::byte* const* in, size_t inputs,
                 size_t elements, const float* before) {
  assert(rounds(reduction.type, reduction.op));
  const size_t size = size_of(reduction.type);
  for (size_t done = 0; done < elements; done += kBlockElements) {
    const size_t count = std::min(kBlockElements, elements - done);
    if (before != nullptr && before != out) {
      std::memcpy(out + done, before + done, count * sizeof(float));
    }
    add_block(reduction, out + done, in, inputs, done * size, count, before != nullptr);
  }
}

void widen(Type type, float* out, const std::byte* in, size_t elements) {
  kernels().widen[at(type)](out, in, elements);
}

void narrow(Type type, std::byte* out, const float* in, size_t elements) {
  kernels().narrow[at(type)](out, in, elements);
}

}  // namespace hetcomm::reduce
