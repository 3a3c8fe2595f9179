// Maps element types between the names used by PyTorch and NumPy, the numbers of DLPack, and those
// of the C ABI.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "python/src/objects.h"

namespace hetcomm_python {

struct ElementTypeEntry {
  const char* name;
  uint8_t code;  // as defined by DLPack 1.1
  uint8_t bits;
};
// Element types, indexed by hetcomm_datatype_t.
inline constexpr std::array<ElementTypeEntry, 17> kElementTypes = {{{"bool", 6, 8},
                                                                    {"int8", 0, 8},
                                                                    {"uint8", 1, 8},
                                                                    {"int16", 0, 16},
                                                                    {"uint16", 1, 16},
                                                                    {"int32", 0, 32},
                                                                    {"uint32", 1, 32},
                                                                    {"int64", 0, 64},
                                                                    {"uint64", 1, 64},
                                                                    {"float16", 2, 16},
                                                                    {"bfloat16", 4, 16},
                                                                    {"float8_e4m3fn", 10, 8},
                                                                    {"float8_e5m2", 12, 8},
                                                                    {"float32", 2, 32},
                                                                    {"float64", 2, 64},
                                                                    {"complex64", 5, 64},
                                                                    {"complex128", 5, 128}}};
static_assert(HETCOMM_BOOL == 0 && HETCOMM_BFLOAT16 == 10 && HETCOMM_COMPLEX128 == 16);

// Returns the element type with the PyTorch or NumPy name |name|. Raises ValueError for an unknown
// name.
inline nb::dlpack::dtype type_named(const std::string& name) {
  for (const ElementTypeEntry& type : kElementTypes) {
    if (name == type.name) return {.code = type.code, .bits = type.bits, .lanes = 1};
  }
  throw nb::value_error(("there is no data type '" + name + "'").c_str());
}

}  // namespace hetcomm_python
