// Copying past the caches.
#pragma once

#include <cstddef>

namespace hetcomm {

// memcpy that does not fetch the target. Complete for whomever this thread tells, on return.
void copy_streaming(std::byte* target, const std::byte* source, size_t length);

}  // namespace hetcomm
