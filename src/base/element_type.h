// ElementType is the type of a tensor's elements. All layers share it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <hetcomm/datatype.h>

namespace hetcomm {

// The values are the same as in the C ABI.
enum class ElementType : int32_t {
  kBool = HETCOMM_BOOL,
  kInt8 = HETCOMM_INT8,
  kUint8 = HETCOMM_UINT8,
  kInt16 = HETCOMM_INT16,
  kUint16 = HETCOMM_UINT16,
  kInt32 = HETCOMM_INT32,
  kUint32 = HETCOMM_UINT32,
  kInt64 = HETCOMM_INT64,
  kUint64 = HETCOMM_UINT64,
  kFloat16 = HETCOMM_FLOAT16,
  kBfloat16 = HETCOMM_BFLOAT16,
  kFloat8E4M3fn = HETCOMM_FLOAT8_E4M3FN,
  kFloat8E5M2 = HETCOMM_FLOAT8_E5M2,
  kFloat32 = HETCOMM_FLOAT32,
  kFloat64 = HETCOMM_FLOAT64,
  kComplex64 = HETCOMM_COMPLEX64,
  kComplex128 = HETCOMM_COMPLEX128
};

// Returns the number of bytes in an element.
constexpr size_t size_of(ElementType type) {
#define HETCOMM_ELEMENT_BYTES_(name, value, bytes) bytes,
  constexpr uint8_t kBytes[] = {HETCOMM_DATATYPE_MAP(HETCOMM_ELEMENT_BYTES_)};
#undef HETCOMM_ELEMENT_BYTES_
  return kBytes[static_cast<size_t>(type)];
}

}  // namespace hetcomm
