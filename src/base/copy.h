// Copies of more than a few bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hetcomm {

// copy_long() calls this where memcpy is slow.
void copy_by_lines(std::byte* target, const std::byte* source, size_t length);

// True where memcpy of |length| bytes may be slow: it copies more than some KiB by one instruction
// of the processor, which on AMD's Zen 3 and 4 takes twenty times as long if the target lies less
// than a line behind the source, modulo the size of a page. Arrays of NumPy and of malloc() begin
// 16 bytes after a page boundary, and buffers to copy from begin at one.
inline bool may_be_slow(const std::byte* target, const std::byte* source, size_t length) {
  constexpr size_t kLong = 2048;
  constexpr uintptr_t kPage = 4096;
  constexpr uintptr_t kLine = 64;
  const uintptr_t distance =
      (reinterpret_cast<uintptr_t>(target) - reinterpret_cast<uintptr_t>(source)) % kPage;
  return length >= kLong && distance - 1 < kLine - 1;
}

// memcpy that is equally fast for all alignments of target and source.
inline void copy_long(std::byte* target, const std::byte* source, size_t length) {
  if (may_be_slow(target, source, length)) [[unlikely]] {
    copy_by_lines(target, source, length);
    return;
  }
  std::memcpy(target, source, length);
}

// memcpy that does not fetch the target. On return the copy is complete for every thread that this
// thread notifies.
void copy_streaming(std::byte* target, const std::byte* source, size_t length);

}  // namespace hetcomm
