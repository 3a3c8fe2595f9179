// Copies memory in cases where memcpy is slow or would fill the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hetcomm {

// Copies one cache line at a time. copy_long() calls this if memcpy is slow.
void copy_by_lines(std::byte* target, const std::byte* source, size_t length);

// Returns whether memcpy of |length| bytes may be slow. memcpy copies blocks of more than a few KiB
// with one string instruction (REP MOVSB). On AMD's Zen 3 and Zen 4 this instruction takes twenty
// times as long if the target starts less than a cache line after the source, modulo the page size.
// This case is common: large arrays from NumPy and malloc() begin 16 bytes after a page boundary,
// and source buffers begin at a page boundary.
inline bool may_be_slow(const std::byte* target, const std::byte* source, size_t length) {
  constexpr size_t kLong = 2048;
  constexpr uintptr_t kPage = 4096;
  constexpr uintptr_t kLine = 64;
  const uintptr_t distance =
      (reinterpret_cast<uintptr_t>(target) - reinterpret_cast<uintptr_t>(source)) % kPage;
  return length >= kLong && distance - 1 < kLine - 1;
}

// Copies like memcpy, but avoids the alignments of target and source for which memcpy is slow.
inline void copy_long(std::byte* target, const std::byte* source, size_t length) {
  if (may_be_slow(target, source, length)) [[unlikely]] {
    copy_by_lines(target, source, length);
    return;
  }
  std::memcpy(target, source, length);
}

// Copies like memcpy. On x86-64 it does not load the target into the caches. Any thread that this
// thread notifies afterwards sees the complete copy.
void copy_streaming(std::byte* target, const std::byte* source, size_t length);

}  // namespace hetcomm
