// Reduces arrays in host memory element by element.
//
// Any alignment is allowed. |out| may be one of the inputs but must not overlap them in any other
// way. Every processor gives the same bits with any vector size: nothing is reassociated or
// contracted. The bits of a NaN result are not defined for float32 and wider. Narrower types have
// one NaN (0x7e00, 0x7fc0, 0x7f), except that float8_e4m3fn keeps the sign of a value that
// overflows. The functions assume the default floating-point environment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/element_type.h"

namespace hetcomm::reduce {

using Type = ElementType;
using hetcomm::size_of;

// The values are those of the C ABI.
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
// For bool, any byte but 0 is true and the result is 0 or 1. SUM and MAX are OR, PRODUCT and MIN
// are AND. Integers wrap around. MIN and MAX are NaN if an element is. float16, bfloat16 and float8
// are accumulated in float32 and rounded once.
void combine(Type type, Operator op, std::byte* out, const std::byte* const* in, size_t inputs,
             size_t elements);

// Scales inputs before PREMUL_SUM sums them: out = in * factor. float32 and narrower are multiplied
// by the float32 next to |factor|. Integers are multiplied by a whole factor exactly and wrap
// around. Their product with any other factor is rounded to float64, then towards zero, and
// saturates.
void scale(Type type, std::byte* out, const std::byte* in, size_t elements, double factor);

// Divides after AVERAGE has summed: out = in / ranks. Integers round towards zero.
void divide(Type type, std::byte* out, const std::byte* in, size_t elements, uint32_t ranks);

// The rule by which the inputs of several ranks become one result.
struct Reduction {
  Type type = Type::kUint8;
  Operator op = Operator::kSum;
  uint32_t ranks = 1;  // AVERAGE: the divisor of the sum
  double factor = 1;   // PREMUL_SUM of types that round: the factor of each input
};

// Returns whether a step of |op| rounds to less than float32, as sums and products of float16,
// bfloat16 and float8 do. With intermediate values in float32, their results do not depend on where
// steps are taken.
bool rounds(Type type, Operator op);

// Computes out = in[0] op in[1] op ..., left to right, for any number of inputs. Divides for
// AVERAGE. |out| may be one of the inputs but must not overlap them in any other way. Types that
// round are multiplied, summed and divided in float32 and rounded once. |before|, only for types
// that round, is null or the result of reduce_wide() for the inputs before these.
void reduce(const Reduction& reduction, std::byte* out, const std::byte* const* in, size_t inputs,
            size_t elements, const float* before = nullptr);
// Reduces like reduce(), but neither divides nor rounds. Only for types that round. |out| may be
// |before|.
void reduce_wide(const Reduction& reduction, float* out, const std::byte* const* in, size_t inputs,
                 size_t elements, const float* before = nullptr);

// widen() converts float16, bfloat16 and float8 to float32, and narrow() converts back. Callers use
// them to round a result once after several steps. narrow() rounds to nearest, ties to even. It
// turns a number that is too large into infinity, or into NaN for float8_e4m3fn, which has no
// infinity.
void widen(Type type, float* out, const std::byte* in, size_t elements);
void narrow(Type type, std::byte* out, const float* in, size_t elements);

}  // namespace hetcomm::reduce
