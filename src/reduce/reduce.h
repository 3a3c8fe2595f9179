// Element-wise reductions of host memory.
//
// Any alignment is allowed. |out| may be one of the inputs but must not overlap them in any other
// way. Every processor gives the same bits with any vector size: nothing is reassociated or
// contracted. The bits of a NaN result are not defined for float32 and wider. Narrower types have
// one NaN (0x7e00, 0x7fc0, 0x7f), except that float8_e4m3fn keeps the sign of a value that
// overflows. The floating-point environment is the default one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/element_type.h"

namespace hetcomm::reduce {

using Type = ElementType;
using hetcomm::size_of;

// Values as in the C ABI.
enum class Operator : int32_t {
  kSum = 0,
  kProduct,
  kMin,
  kMax,
  kAnd,
  kOr,
  kXor,
  kAverage,
  kPremulSum
};

inline constexpr size_t kMaxInputs = 8;

// Returns whether |op| is defined for |type|. MIN and MAX are not defined for complex types. AND,
// OR and XOR are defined for integers and bool only, AVERAGE and PREMUL_SUM for all but bool.
// Callers of the functions below pass only defined combinations.
bool is_defined(Type type, Operator op);

// Computes out[i] = in[0][i] op in[1][i] op ..., left to right, for 1 to kMaxInputs inputs. Treats
// AVERAGE and PREMUL_SUM as SUM.
//
// bool: any byte but 0 is true, the result is 0 or 1; SUM and MAX are OR, PRODUCT and MIN are AND.
// Integers wrap around. MIN and MAX are NaN if an element is. float16, bfloat16 and float8 are
// accumulated in float32 and rounded once.
void combine(Type type, Operator op, std::byte* out, const std::byte* const* in, size_t inputs,
             size_t elements);

// Scales inputs before PREMUL_SUM sums them: out = in * factor. float32 and narrower are multiplied
// by the float32 next to |factor|. Integers are multiplied by a whole factor exactly and wrap
// around; the product with another factor is rounded to float64, then towards zero, and saturates.
void scale(Type type, std::byte* out, const std::byte* in, size_t elements, double factor);

// Divides after AVERAGE has summed: out = in / ranks. Integers round towards zero.
void divide(Type type, std::byte* out, const std::byte* in, size_t elements, uint32_t ranks);

// A Reduction says how the inputs of several ranks become one result.
struct Reduction {
  Type type = Type::kUint8;
  Operator op = Operator::kSum;
  uint32_t ranks = 1;  // AVERAGE: the divisor of the sum
  double factor = 1;   // PREMUL_SUM of types that round: the factor of each input
};

// Returns whether a step of the operator rounds to less than float32: sums and products of float16,
// bfloat16 and float8. Their results do not depend on where steps are taken if the intermediate
// values are float32.
bool rounds(Type type, Operator op);

// Computes out = in[0] op in[1] op ..., left to right, for any number of inputs; AVERAGE divides.
// |out| may be one of the inputs but must not overlap them in any other way. Types that round are
// multiplied, summed and divided in float32 and rounded once. |before|, if not null, is the result
// of the inputs before these (reduce_wide), only for types that round.
void reduce(const Reduction& reduction, std::byte* out, const std::byte* const* in, size_t inputs,
            size_t elements, const float* before = nullptr);
// Reduces without dividing or rounding. Only for types that round. |out| may be |before|.
void reduce_wide(const Reduction& reduction, float* out, const std::byte* const* in, size_t inputs,
                 size_t elements, const float* before = nullptr);

// These two serve results that are rounded once after several steps. They convert float16, bfloat16
// and float8 to float32 and back; narrow() rounds to nearest, ties to even. A number that is too
// large becomes infinity, or NaN in float8_e4m3fn, which has no infinity.
void widen(Type type, float* out, const std::byte* in, size_t elements);
void narrow(Type type, std::byte* out, const float* in, size_t elements);

}  // namespace hetcomm::reduce
