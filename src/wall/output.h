// Fills in the caller's output structures. Later releases may add members, so the caller's
// structure may be shorter or longer than the library's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "src/base/status.h"

namespace hetcomm::capi {

// The size of each structure in its first release, as given by a specialization for the structure.
// The sizes never change.
template <typename Output>
inline constexpr size_t kFirstSize = 0;

template <typename Output>
Status check_output(const Output& output) {
  constexpr size_t least = kFirstSize<Output>;
  static_assert(least > sizeof(size_t) && least <= sizeof(Output));
  constexpr size_t kMax = 4096;  // a larger value indicates uninitialized memory
  const size_t size = output.struct_size;
  if (size >= least && size <= kMax) return {};
  return Status(Code::kInvalidArgument, size == 0 ? "the output's struct_size is not set"
                                                  : "the output's struct_size is " +
                                                        std::to_string(size) +
                                                        ", and has to be its sizeof");
}

// Writes as much of |value| as fits in the caller's structure at |out|, whose size was checked.
// Zeroes all bytes past |value|.
template <typename Output>
void write_output(Output value, size_t size, std::byte* out) {
  value.struct_size = size;
  const size_t known = std::min(size, sizeof(value));
  std::memcpy(out, &value, known);
  std::memset(out + known, 0, size - known);
}
template <typename Output>
Status write_output(const Output& value, Output* out) {
  HETCOMM_RETURN_IF_ERROR(check_output(*out));
  write_output(value, out->struct_size, reinterpret_cast<std::byte*>(out));
  return {};
}

}  // namespace hetcomm::capi
