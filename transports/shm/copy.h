// Copying past the caches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm::shm {

// From this size of a whole transfer on, its target will not stay in the caches, and fetching it only to
// overwrite it would cost a third of the memory's bandwidth: copy_streaming() then.
inline constexpr uint64_t kStreamingBytes = 24 << 20;

// memcpy that does not fetch the target. Complete for whomever this thread tells, on return.
void copy_streaming(std::byte* target, const std::byte* source, size_t length);

}  // namespace hetcomm::shm
