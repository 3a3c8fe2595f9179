/* Defines the element types, and the reduction operators that combine elements. Collective
 * operations, reshard plans and devices use them. */
#ifndef HETCOMM_DATATYPE_H_
#define HETCOMM_DATATYPE_H_

#include <stddef.h>
#include <stdint.h>

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The element types: X(name, value, bytes). */
#define HETCOMM_DATATYPE_MAP(X) \
  X(BOOL, 0, 1)                 \
  X(INT8, 1, 1)                 \
  X(UINT8, 2, 1)                \
  X(INT16, 3, 2)                \
  X(UINT16, 4, 2)               \
  X(INT32, 5, 4)                \
  X(UINT32, 6, 4)               \
  X(INT64, 7, 8)                \
  X(UINT64, 8, 8)               \
  X(FLOAT16, 9, 2)              \
  X(BFLOAT16, 10, 2)            \
  X(FLOAT8_E4M3FN, 11, 1)       \
  X(FLOAT8_E5M2, 12, 1)         \
  X(FLOAT32, 13, 4)             \
  X(FLOAT64, 14, 8)             \
  X(COMPLEX64, 15, 8)           \
  X(COMPLEX128, 16, 16)

/* Holds HETCOMM_BOOL to HETCOMM_COMPLEX128. The type has a fixed width, because the size of an enum
 * can differ between compilers. */
typedef int32_t hetcomm_datatype_t;
enum {
#define HETCOMM_DATATYPE_ENUM_(name, value, bytes) HETCOMM_##name = (value),
  HETCOMM_DATATYPE_MAP(HETCOMM_DATATYPE_ENUM_)
#undef HETCOMM_DATATYPE_ENUM_
      HETCOMM_DATATYPE_FORCE_INT_ = 0x7fffffff
};

/* The reduction operators: X(name, value).
 *
 * SUM, PRODUCT     Integers wrap around.
 * MIN, MAX         The result is NaN if any element is NaN. Not defined for complex types.
 * AND, OR, XOR     Bitwise for integers, logical for BOOL. Not defined for other types.
 * AVERAGE          The sum divided by the number of ranks. Integer results are rounded toward zero.
 *                  Not defined for BOOL.
 * PREMUL_SUM       Each rank's elements are multiplied by its options->factor, then summed. Not
 *                  defined for BOOL.
 *
 * A collective operation produces the same bits on all ranks. SUM, PRODUCT, AVERAGE and PREMUL_SUM
 * of FLOAT16, BFLOAT16 and the FLOAT8 types are computed in float32, in rank order, and rounded
 * once, so the bits do not depend on the algorithm, the size or the transport. The order in which
 * FLOAT32 and wider types are summed depends on the algorithm. The host and the devices may produce
 * different NaN bits, and zeros of different sign (HETCOMM_DEVICE_SUMS), but all ranks still get
 * the same bits. */
#define HETCOMM_REDUCTION_MAP(X) \
  X(SUM, 0)                      \
  X(PRODUCT, 1)                  \
  X(MIN, 2)                      \
  X(MAX, 3)                      \
  X(AND, 4)                      \
  X(OR, 5)                       \
  X(XOR, 6)                      \
  X(AVERAGE, 7)                  \
  X(PREMUL_SUM, 8)

/* Holds HETCOMM_REDUCE_SUM to HETCOMM_REDUCE_PREMUL_SUM. */
typedef int32_t hetcomm_reduction_t;
enum {
#define HETCOMM_REDUCTION_ENUM_(name, value) HETCOMM_REDUCE_##name = (value),
  HETCOMM_REDUCTION_MAP(HETCOMM_REDUCTION_ENUM_)
#undef HETCOMM_REDUCTION_ENUM_
      HETCOMM_REDUCE_FORCE_INT_ = 0x7fffffff
};

/* Gets the size of an element in bytes. INVALID_ARGUMENT: |datatype| is not one of the types above.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_datatype_size(hetcomm_datatype_t datatype, size_t* out_size_bytes) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* HETCOMM_DATATYPE_H_ */
