// Defines views of bytes and of extents. Extents are a list of pieces of host memory that functions
// treat as one sequence of bytes.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "src/base/copy.h"
#include "src/base/thread_safety.h"

namespace hetcomm {

using ByteSpan = std::span<std::byte>;
using ConstByteSpan = std::span<const std::byte>;
using Extents = std::span<const iovec>;

// Copies |length| bytes, which must be between one and two words, by copying the first and the last
// word. The two words may overlap.
template <typename Word>
void copy_ends(std::byte* to, const std::byte* from, size_t length) {
  Word first = 0;
  Word last = 0;
  std::memcpy(&first, from, sizeof(Word));
  std::memcpy(&last, from + length - sizeof(Word), sizeof(Word));
  std::memcpy(to, &first, sizeof(Word));
  std::memcpy(to + length - sizeof(Word), &last, sizeof(Word));
}

// Copies like memcpy, but without a function call for short lengths.
inline void copy_bytes(void* target, const void* source, size_t length) {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  if (length > 16) {
    copy_long(to, from, length);
  } else if (length >= 8) {
    copy_ends<uint64_t>(to, from, length);
  } else if (length >= 4) {
    copy_ends<uint32_t>(to, from, length);
  } else {
    for (size_t i = 0; i < length; ++i) to[i] = from[i];
  }
}

// Stores two words with one 16-byte store. The processor can forward this store to a 16-byte load
// that follows at once. After two 8-byte stores, such a load would have to wait until both stores
// had reached the cache.
inline void store_two_words(void* target, uint64_t first, uint64_t second) {
  using TwoWords [[gnu::vector_size(16)]] = uint64_t;
  const TwoWords words = {first, second};
  std::memcpy(target, &words, sizeof(words));
}

inline uint64_t total_bytes(Extents extents) {
  uint64_t sum = 0;
  for (const iovec& extent : extents) sum += extent.iov_len;
  return sum;
}

// Calls |use(std::byte* piece, size_t length)| for the pieces that make up [offset, offset +
// length). Thread-safety analysis is off, because |use| may need the baton. In that case the caller
// must hold it.
template <typename Use>
void for_each_piece(Extents extents, uint64_t offset, uint64_t length,
                    Use&& use) HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
  for (const iovec& extent : extents) {
    if (length == 0) return;
    if (offset >= extent.iov_len) {
      offset -= extent.iov_len;
      continue;
    }
    const size_t piece = static_cast<size_t>(std::min<uint64_t>(extent.iov_len - offset, length));
    use(static_cast<std::byte*>(extent.iov_base) + offset, piece);
    length -= piece;
    offset = 0;
  }
}

// Copies |source| into the extents, starting at |offset|. |source| must fit.
inline void scatter(Extents extents, uint64_t offset, ConstByteSpan source) {
  const std::byte* from = source.data();
  for_each_piece(extents, offset, source.size(), [&](std::byte* piece, size_t length) {
    copy_long(piece, from, length);
    from += length;
  });
}

// Returns the address of byte |offset| if the first piece contains [offset, offset + length).
// Returns null otherwise.
inline std::byte* single_piece(Extents extents, uint64_t offset, uint64_t length) {
  if (extents.empty() || offset > extents[0].iov_len || length > extents[0].iov_len - offset) {
    return nullptr;
  }
  return static_cast<std::byte*>(extents[0].iov_base) + offset;
}

// Copies bytes from the extents, starting at |offset|, to fill |target|. The extents must be long
// enough.
inline void gather(Extents extents, uint64_t offset, ByteSpan target) {
  std::byte* to = target.data();
  if (const std::byte* from = single_piece(extents, offset, target.size()); from != nullptr) {
    copy_bytes(to, from, target.size());
    return;
  }
  for_each_piece(extents, offset, target.size(), [&](const std::byte* piece, size_t length) {
    copy_long(to, piece, length);
    to += length;
  });
}

}  // namespace hetcomm
