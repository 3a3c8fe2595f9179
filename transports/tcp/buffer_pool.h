// Private buffers for frames that were cut: received in part, or accepted by the kernel in part.
// Connections borrow them only while a frame is incomplete, so an idle connection owns none.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "src/base/span.h"

namespace hetcomm::tcp {

struct Buffer {
  std::unique_ptr<std::byte[]> data;
  size_t capacity = 0;
};

class BufferPool {
 public:
  BufferPool();
  // Uninitialised. At least |size| bytes.
  Buffer take(size_t size);
  void give(Buffer buffer);  // fails for nothing

 private:
  std::vector<Buffer> spare_;
};

}  // namespace hetcomm::tcp
