#include "transports/tcp/buffer_pool.h"

#include <algorithm>
#include <new>
#include <utility>

#include "transports/tcp/wire.h"

namespace hetcomm::tcp {
namespace {

// The size of a pooled buffer, which is large enough for every message. Larger buffers (for the
// rest of a cancelled put) are not pooled.
constexpr size_t kStandardBytes = kHeadBytes + kMaxMessageBytes;
constexpr size_t kMaxSpare = 8;
// The largest number of buffers that are allocated near the pool's NUMA node. They are kept
// permanently, since mapping a buffer takes system calls.
constexpr size_t kMaxNear = 8;

}  // namespace

BufferPool::BufferPool(int node) : node_(node) { spare_.reserve(kMaxSpare + kMaxNear); }

Buffer BufferPool::take(size_t size) {
  if (size <= kStandardBytes && !spare_.empty()) {
    Buffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  const size_t capacity = std::max(size, kStandardBytes);
  const bool is_near = node_ != kAnyNumaNode && near_ < kMaxNear && capacity == kStandardBytes;
  Buffer buffer{allocate_near(capacity, is_near ? node_ : kAnyNumaNode), capacity};
  if (buffer.data == nullptr) throw std::bad_alloc();
  if (is_near) ++near_;
  return buffer;
}

void BufferPool::give(Buffer buffer) {
  const bool is_near = buffer.data.get_deleter().mapped_bytes != 0;
  if (is_near || (buffer.capacity == kStandardBytes && spare_.size() < kMaxSpare)) {
    spare_.push_back(std::move(buffer));
  }
}

}  // namespace hetcomm::tcp
