// Private buffers for frames that were cut: received in part, or accepted by the kernel in part.
// Connections borrow them only while a frame is incomplete, so an idle connection owns none.
#pragma once

#include <cstddef>
#include <vector>

#include "src/base/span.h"
#include "src/system/numa_memory.h"

namespace hetcomm::tcp {

struct Buffer {
  NumaMemory data;
  size_t capacity = 0;
};

class BufferPool {
 public:
  // Buffers lie near NUMA node |node|.
  explicit BufferPool(int node = kAnyNumaNode);
  // Uninitialised. At least |size| bytes. Throws std::bad_alloc.
  Buffer take(size_t size);
  void give(Buffer buffer);  // never fails

 private:
  const int node_;
  size_t near_ = 0;  // buffers that were made near |node_|
  std::vector<Buffer> spare_;
};

}  // namespace hetcomm::tcp
