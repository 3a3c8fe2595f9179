// BufferPool lends buffers for incomplete frames: frames that were received only in part, or of
// which the kernel accepted only a part. A connection borrows a buffer only while a frame is
// incomplete, so an idle connection holds none.
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
  // A limited number of the buffers is allocated near NUMA node |node|.
  explicit BufferPool(int node = kAnyNumaNode);
  // Returns an uninitialised buffer of at least |size| bytes. Throws std::bad_alloc.
  Buffer take(size_t size);
  void give(Buffer buffer);  // takes a buffer back; never fails

 private:
  const int node_;
  size_t near_ = 0;  // buffers that were allocated near |node_|
  std::vector<Buffer> spare_;
};

}  // namespace hetcomm::tcp
