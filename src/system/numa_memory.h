// Allocates memory near a NUMA node. The library requests that the kernel take pages from that node
// while the node has free ones, and from other nodes afterwards. A refusal is no error. Kernels
// without NUMA, containers that forbid the system call, and full or absent nodes only make memory
// more distant.
#pragma once

#include <cstddef>
#include <memory>

namespace hetcomm {

// Stands for no particular node: memory may lie anywhere.
inline constexpr int kAnyNumaNode = -1;

// Requests memory on |node| for the whole pages of [begin, begin + bytes) that have not been
// touched yet. For a shared mapping this applies to all processes. Returns 0, or the errno of the
// refusal. Does nothing for kAnyNumaNode.
int prefer_numa_node(std::byte* begin, size_t bytes, int node);

// Returns 0 if this process may request memory on |node|, or the errno of the refusal.
int try_numa_node(int node);

struct NumaFree {
  size_t mapped_bytes = 0;  // 0: the memory comes from the heap
  void operator()(std::byte* memory) const;
};
using NumaMemory = std::unique_ptr<std::byte[], NumaFree>;

// Returns at least |bytes| of page-aligned, uninitialised memory near |node|, or heap memory for
// kAnyNumaNode. Returns null if out of memory.
NumaMemory allocate_near(size_t bytes, int node);

}  // namespace hetcomm
