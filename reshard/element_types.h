// Names the element types of a tensor before and after a move, and says which conversions exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "src/base/element_type.h"

namespace hetcomm::reshard {

// The names of the element types in documents, in the order of ElementType.
inline constexpr const char* kElementTypeWords[] = {
    "bool",        "int8",    "uint8",   "int16",     "uint16",    "int32",
    "uint32",      "int64",   "uint64",  "float16",   "bfloat16",  "float8_e4m3fn",
    "float8_e5m2", "float32", "float64", "complex64", "complex128"};
static_assert(std::size(kElementTypeWords) == static_cast<size_t>(ElementType::kComplex128) + 1);

// Says how a number that is too large for float8_e4m3fn, which has no infinity, is converted.
// kSaturates gives the largest number of the same sign, as in PyTorch. kIsNan gives NaN, as in
// collective operations.
enum class Overflow : uint8_t { kSaturates, kIsNan };

// The element types of a tensor before and after a move.
struct TypePair {
  ElementType source{};
  ElementType destination{};
  Overflow overflow = Overflow::kSaturates;
};

// Returns whether |type| is a floating-point type of fewer than 32 bits.
bool is_narrow(ElementType type);

// Returns whether elements of type |from| can be converted to |to|. Conversions exist between the
// floating-point types of at most 32 bits, between float32 and float64, and from any type to
// itself.
bool can_convert(ElementType from, ElementType to);

// Returns the type for sums of |source| elements that go to |destination| elements: float64 if
// either is float64, float32 for other floating-point types, and |destination| for all others.
ElementType sum_type_of(ElementType source, ElementType destination);

}  // namespace hetcomm::reshard
