#include "transports/tcp/buffer_pool.h"

#include <algorithm>
#include <utility>

#include "transports/tcp/wire.h"

namespace hetcomm::tcp {
namespace {

// Fits every message; larger buffers (rests of cancelled puts) are not kept.
constexpr size_t kStandardBytes = kHeadBytes + kMaxMessageBytes;
constexpr size_t kMaxSpare = 8;

}  // namespace

BufferPool::BufferPool() { spare_.reserve(kMaxSpare); }

Buffer BufferPool::take(size_t size) {
  if (size <= kStandardBytes && !spare_.empty()) {
    Buffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  const size_t capacity = std::max(size, kStandardBytes);
  return {std::make_unique_for_overwrite<std::byte[]>(capacity), capacity};
}

void BufferPool::give(Buffer buffer) {
  if (buffer.capacity == kStandardBytes && spare_.size() < kMaxSpare) {
    spare_.push_back(std::move(buffer));
  }
}

}  // namespace hetcomm::tcp
