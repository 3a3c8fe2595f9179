// Copying past the caches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm::shm {

// From this size of the exposed memory on, a transfer will not stay in the caches, and fetching
// its target only to overwrite it would cost a third of the memory's bandwidth: copy_streaming()
// then. A small put into large memory may well be read soon.
inline constexpr uint64_t kStreamingTarget = 8 << 20;
inline constexpr uint64_t kStreamingPut = 1 << 20;

// memcpy that does not fetch the target. Complete for whomever this thread tells, on return.
void copy_streaming(std::byte* target, const std::byte* source, size_t length);

}  // namespace hetcomm::shm
