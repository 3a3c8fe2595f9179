#include "src/system/numa_memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>

namespace hetcomm {
namespace {

// The largest number of nodes that the kernel supports. It refuses a mask that has a bit set beyond
// this number.
constexpr size_t kMaxNodes = 1024;
constexpr size_t kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t whole_pages(size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

}  // namespace

int prefer_numa_node(std::byte* begin, size_t bytes, int node) {
  if (node == kAnyNumaNode) return 0;
  if (node < 0 || static_cast<size_t>(node) >= kMaxNodes) return EINVAL;
  const auto skipped = -reinterpret_cast<uintptr_t>(begin) & (page_bytes() - 1);
  if (bytes < skipped) return 0;
  const size_t length = (bytes - skipped) / page_bytes() * page_bytes();
  if (length == 0) return 0;
  std::array<unsigned long, kMaxNodes / kBitsOfWord> mask{};
  const auto index = static_cast<size_t>(node);
  mask[index / kBitsOfWord] = 1UL << index % kBitsOfWord;
  // The kernel reads one bit fewer than this argument says.
  const long done =
      syscall(SYS_mbind, begin + skipped, length, MPOL_PREFERRED, mask.data(), kMaxNodes + 1, 0);
  return done == 0 ? 0 : errno;
}

int try_numa_node(int node) {
  void* const page =
      mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno;
  const int refusal = prefer_numa_node(static_cast<std::byte*>(page), page_bytes(), node);
  munmap(page, page_bytes());
  return refusal;
}

void NumaFree::operator()(std::byte* memory) const {
  if (mapped_bytes != 0) {
    munmap(memory, mapped_bytes);
  } else {
    std::free(memory);
  }
}

// Memory for a particular node is newly mapped, because the heap may return pages that the kernel
// has already allocated on another node.
NumaMemory allocate_near(size_t bytes, int node) {
  const size_t size = whole_pages(bytes);
  if (size < bytes) return {};  // exceeds the address space
  if (node == kAnyNumaNode) {
    return {static_cast<std::byte*>(std::aligned_alloc(page_bytes(), size)), NumaFree{}};
  }
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  NumaMemory result(static_cast<std::byte*>(memory), NumaFree{size});
  (void)prefer_numa_node(result.get(), size, node);
  return result;
}

}  // namespace hetcomm
