// Reduces arrays in host memory, element by element.
//
// Any alignment is allowed. |out| may be one of the inputs but must not overlap them in any other
// way. Results are identical bit for bit on all processors and with any vector size, because no
// operation is reassociated or contracted. The bits of a NaN result are not defined for float32 and
// wider types. For narrower types there is one NaN result (0x7e00, 0x7fc0, 0x7f), except that
// float8_e4m3fn keeps the sign of a value that overflows. The functions assume the default
// floating-point environment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/element_type.h"

namespace hetcomm::reduce {

using Type = ElementType;
using hetcomm::size_of;

// The values are the same as in the C ABI.
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
// For bool, any nonzero byte is true, and the result is 0 or 1. SUM and MAX act as OR, and PRODUCT
// and MIN act as AND. Integers wrap around. The result of MIN and MAX is NaN if any input is NaN.
// float16, bfloat16 and float8 are accumulated in float32 and rounded once.
void combine(Type type, Operator op, std::byte* out, const std::byte* const* in, size_t inputs,
             size_t elements);

// Scales an input before PREMUL_SUM sums it: out = in * factor. float32 and narrower types are
// multiplied by |factor| rounded to float32. If |factor| is a whole number below 2^63 in magnitude,
// integers are multiplied exactly and wrap around. Otherwise their product is rounded to float64,
// then towards zero, and saturates.
void scale(Type type, std::byte* out, const std::byte* in, size_t elements, double factor);

// Divides the sum of AVERAGE: out = in / ranks. Integers round towards zero.
void divide(Type type, std::byte* out, const std::byte* in, size_t elements, uint32_t ranks);

// Describes how the inputs of several ranks are combined into one result.
struct Reduction {
  Type type = Type::kUint8;
  Operator op = Operator::kSum;
  uint32_t ranks = 1;  // AVERAGE: the divisor of the sum
  double factor = 1;   // PREMUL_SUM of types that round: the factor of each input
};

// Returns whether |op| rounds its result to a type narrower than float32. Sums and products of
// float16, bfloat16 and float8 do. If their intermediate values are kept in float32, the result
// does not depend on how the inputs are divided among steps.
bool rounds(Type type, Operator op);

// Computes out = in[0] op in[1] op ..., left to right, for any number of inputs. Divides for
// AVERAGE. |out| may be one of the inputs but must not overlap them in any other way. Types that
// round are multiplied, summed and divided in float32 and rounded once. For PREMUL_SUM of other
// types, the caller has already scaled the inputs. |before| is null or, only for types that round,
// the result of reduce_wide() for the preceding inputs.
void reduce(const Reduction& reduction, std::byte* out, const std::byte* const* in, size_t inputs,
            size_t elements, const float* before = nullptr);
// Like reduce(), but does not divide or round. Only for types that round. |out| may be |before|.
void reduce_wide(const Reduction& reduction, float* out, const std::byte* const* in, size_t inputs,
                 size_t elements, const float* before = nullptr);

// widen() converts float16, bfloat16 and float8 to float32, and narrow() converts back. Callers use
// them to round a result once after several steps. narrow() rounds to nearest, ties to even. It
// converts a number that is too large to infinity, or to NaN for float8_e4m3fn, which has no
// infinity.
void widen(Type type, float* out, const std::byte* in, size_t elements);
void narrow(Type type, std::byte* out, const float* in, size_t elements);

}  // namespace hetcomm::reduce
