// Defines Location, which identifies bytes in a context's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/opencl/api.h"

namespace hetcomm::opencl {

// The bytes start at |offset| in |buffer|, or at |pointer| if |buffer| is null.
struct Location {
  cl_mem buffer = nullptr;
  uint64_t offset = 0;
  std::byte* pointer = nullptr;

  Location further(uint64_t bytes) const {
    if (pointer != nullptr) return {.pointer = pointer + bytes};
    return {.buffer = buffer, .offset = offset + bytes};
  }
};

}  // namespace hetcomm::opencl
