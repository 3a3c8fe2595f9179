// Allocates memory near a NUMA node. The kernel is requested to take pages from that node as long
// as it has free ones, and from other nodes otherwise. If the kernel cannot do that, the allocation
// still succeeds, but the memory is more distant. This happens if the kernel lacks NUMA support, a
// container forbids the system call, or the node is absent.
#pragma once

#include <cstddef>
#include <memory>

namespace hetcomm {

// Means no particular node: the memory can be on any node.
inline constexpr int kAnyNumaNode = -1;

// Requests memory on |node| for those whole pages of [begin, begin + bytes) that have not been
// touched yet. For a shared mapping this applies to all processes. Returns 0, or an errno if |node|
// is invalid or the kernel refuses. Does nothing for kAnyNumaNode.
int prefer_numa_node(std::byte* begin, size_t bytes, int node);

// Returns 0 if this process can request memory on |node|, or an errno if not.
int try_numa_node(int node);

struct NumaFree {
  size_t mapped_bytes = 0;  // 0: the memory comes from the heap
  void operator()(std::byte* memory) const;
};
using NumaMemory = std::unique_ptr<std::byte[], NumaFree>;

// Returns at least |bytes| of page-aligned, uninitialized memory near |node|, or heap memory for
// kAnyNumaNode. Returns null if out of memory.
NumaMemory allocate_near(size_t bytes, int node);

}  // namespace hetcomm
