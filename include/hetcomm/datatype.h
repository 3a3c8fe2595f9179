/* Defines the types of elements, and the operators that combine elements. Collective operations,
 * redistributions and devices use them. */
#ifndef HETCOMM_DATATYPE_H_
#define HETCOMM_DATATYPE_H_

#include <stddef.h>
#include <stdint.h>

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Types of elements: X(name, value, bytes). */
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
 * may differ between compilers. */
typedef int32_t hetcomm_datatype_t;
enum {
#define HETCOMM_DATATYPE_ENUM_(name, value, bytes) HETCOMM_##name = (value),
  HETCOMM_DATATYPE_MAP(HETCOMM_DATATYPE_ENUM_)
#undef HETCOMM_DATATYPE_ENUM_
      HETCOMM_DATATYPE_FORCE_INT_ = 0x7fffffff
};

/* Operators: X(name, value).
 *
 * SUM, PRODUCT     Integers wrap around.
 * MIN, MAX         The result is NaN if an element is. Not defined for complex types.
 * AND, OR, XOR     Defined for integers, bit by bit, and for BOOL.
 * AVERAGE          The sum divided by the number of ranks. Integers are rounded towards zero. Not
 *                  defined for BOOL.
 * PREMUL_SUM       The sum of options->factor times each rank's elements. Not defined for BOOL.
 *
 * In a collective operation all ranks get the same bits. SUM, PRODUCT, AVERAGE and PREMUL_SUM of
 * FLOAT16, BFLOAT16 and the FLOAT8 types are calculated in float32, in the order of ranks, and
 * rounded once: every algorithm, size and transport gives the same bits. The order in which FLOAT32
 * and wider types are summed depends on the algorithm. The host and the devices may give NaNs with
 * different bits, and may choose differently between two zeros (HETCOMM_DEVICE_SUMS). All ranks get
 * the same ones. */
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

/* Gives the size of an element in bytes. INVALID_ARGUMENT: |datatype| is no type. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_datatype_size(hetcomm_datatype_t datatype, size_t* out_size_bytes) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* HETCOMM_DATATYPE_H_ */
