// Buffers tracks the known buffers of one OpenCL context: the library's own allocations, and the
// buffers that a caller has registered.
//
// The name of a buffer is its cl_mem handle. OpenCL dereferences any handle without checking it, so
// a name is passed to OpenCL only if it is known here or looks like an object of this vendor.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "devices/opencl/api.h"
#include "devices/opencl/setup_queue.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

// All functions may be called by any thread.
class Buffers {
 public:
  // |context| and its |queue| must outlive this object.
  Buffers(const Api& api, cl_context context, SetupQueue& queue)
      : api_(api), context_(context), queue_(queue) {}
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  // Releases the remaining buffers.
  ~Buffers();

  Code allocate(uint64_t size, void** out_name);
  // Retains a caller's buffer until release() has been called as many times as retain().
  Code retain(void* name, uint64_t size);
  void release(void* name);
  Code find(const void* name, uint64_t* out_size);
  // Returns false if no context of this process tracks a buffer called |name|. Can also return true
  // for other names. Costs one load.
  static bool may_be_known(const void* name) {
    return names_[bucket_of(name)].load(std::memory_order_acquire) != 0;
  }
  // Returns the reason why retain() refuses the buffer; "" if it does not refuse.
  const char* rule_against(void* name, uint64_t size);
  // Returns the buffer called |name| if it contains [offset, offset + size). kInvalidArgument: the
  // name is not known. kOutOfRange: the buffer is shorter.
  Code check(const void* name, uint64_t offset, uint64_t size, cl_mem* out_buffer);

 private:
  struct Known {
    uint64_t size = 0;
    uint64_t users = 0;
  };
  Code touch(cl_mem buffer, uint64_t size);
  Code check_named(cl_mem buffer, uint64_t size, uint64_t* out_whole, const char** out_rule) const;
  // Size of |names_|. Each entry counts the known names that bucket_of() maps to it.
  static constexpr size_t kBuckets = 4096;
  static size_t bucket_of(const void* name) {
    return (reinterpret_cast<uintptr_t>(name) >> 4) * 0x9e3779b97f4a7c15u >> 52;
  }
  static inline std::array<std::atomic<uint32_t>, kBuckets> names_{};
  static void note(const void* name) {
    names_[bucket_of(name)].fetch_add(1, std::memory_order_release);
  }
  static void forget(const void* name) {
    names_[bucket_of(name)].fetch_sub(1, std::memory_order_release);
  }

  const Api& api_;
  const cl_context context_;
  SetupQueue& queue_;
  std::mutex mutex_;
  std::map<const void*, Known> known_;
};

}  // namespace hetcomm::opencl
