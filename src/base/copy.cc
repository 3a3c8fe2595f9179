#include "src/base/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hetcomm {

#if defined(__x86_64__)
namespace {

constexpr size_t kLine = 64;

// Copies whole cache lines to |target|, which is aligned to a cache line. The first three variants
// below use streaming stores, which bypass the caches.
using CopyLines = void (*)(std::byte* target, const std::byte* source, size_t length);

__attribute__((target("avx512f"))) void copy_lines_512(std::byte* target, const std::byte* source,
                                                       size_t length) {
  for (size_t i = 0; i < length; i += kLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i), _mm512_loadu_si512(source + i));
  }
}

__attribute__((target("avx2"))) void copy_lines_256(std::byte* target, const std::byte* source,
                                                    size_t length) {
  for (size_t i = 0; i < length; i += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i + 32), high);
  }
}

void copy_lines_128(std::byte* target, const std::byte* source, size_t length) {
  for (size_t i = 0; i < length; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
  }
}

__attribute__((target("avx2"))) void copy_cached_lines_256(std::byte* target,
                                                           const std::byte* source, size_t length) {
  for (size_t i = 0; i < length; i += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 32));
    _mm256_store_si256(reinterpret_cast<__m256i*>(target + i), low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(target + i + 32), high);
  }
}

void copy_cached_lines_128(std::byte* target, const std::byte* source, size_t length) {
  for (size_t i = 0; i < length; i += 16) {
    _mm_store_si128(reinterpret_cast<__m128i*>(target + i),
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
  }
}

// Copies the whole cache lines of |target| with |copy_lines|, and the bytes before and after them
// with memcpy.
void copy_with(CopyLines copy_lines, std::byte* target, const std::byte* source, size_t length) {
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  if (length < head + kLine) {
    std::memcpy(target, source, length);
    return;
  }
  std::memcpy(target, source, head);
  const size_t middle = (length - head) / kLine * kLine;
  copy_lines(target + head, source + head, middle);
  std::memcpy(target + head + middle, source + head + middle, length - head - middle);
}

CopyLines best_copy_lines() {
  if (__builtin_cpu_supports("avx512f")) return copy_lines_512;
  if (__builtin_cpu_supports("avx2")) return copy_lines_256;
  return copy_lines_128;
}

}  // namespace

void copy_streaming(std::byte* target, const std::byte* source, size_t length) {
  static const CopyLines copy_lines = best_copy_lines();
  copy_with(copy_lines, target, source, length);
  // Without the fence, a later store that notifies another thread could become visible before the
  // streaming stores.
  _mm_sfence();
}

void copy_by_lines(std::byte* target, const std::byte* source, size_t length) {
  static const CopyLines copy_lines =
      __builtin_cpu_supports("avx2") ? copy_cached_lines_256 : copy_cached_lines_128;
  copy_with(copy_lines, target, source, length);
}

#else

void copy_streaming(std::byte* target, const std::byte* source, size_t length) {
  std::memcpy(target, source, length);
}

void copy_by_lines(std::byte* target, const std::byte* source, size_t length) {
  std::memcpy(target, source, length);
}

#endif

}  // namespace hetcomm
