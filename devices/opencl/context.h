// Context owns an OpenCL context and the objects that the library keeps in it: buffers, pinned host
// memory, notices, kernels. The memory of a context is identified by buffers (cl_mem), and by
// pointers where the vendor supports them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "devices/opencl/api.h"
#include "devices/opencl/host_memory.h"
#include "devices/opencl/location.h"
#include "devices/opencl/memory.h"
#include "devices/opencl/notices.h"
#include "devices/opencl/pointers.h"
#include "devices/opencl/reductions.h"
#include "devices/opencl/setup_queue.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

// Owns one reference to a context.
class ContextReference {
 public:
  ContextReference(const Api& api, cl_context context) : api_(api), context_(context) {}
  ContextReference(ContextReference&& other) noexcept
      : api_(other.api_), context_(std::exchange(other.context_, nullptr)) {}
  ContextReference& operator=(ContextReference&&) = delete;
  ~ContextReference() {
    if (context_ != nullptr) api_.ReleaseContext(context_);
  }
  cl_context get() const { return context_; }

 private:
  const Api& api_;
  cl_context context_;
};

class Context {
 public:
  // Creates a new context for |device|.
  static Code make(const Api& api, cl_device_id device, std::unique_ptr<Context>* out_context);
  // Takes ownership of |context|, a reference to an OpenCL context that contains |device|.
  Context(const Api& api, ContextReference context, cl_device_id device)
      : context_(std::move(context)),
        queue_(api, get(), device),
        buffers_(api, get(), queue_),
        pointers_(api, get(), device),
        host_memory_(api, get(), queue_),
        notices_(api),
        reductions_(api, get(), device, pointers_) {}

  cl_context get() const { return context_.get(); }
  Buffers& buffers() { return buffers_; }
  const Pointers& pointers() const { return pointers_; }
  HostMemory& host_memory() { return host_memory_; }
  Notices& notices() { return notices_; }
  Reductions& reductions() { return reductions_; }

  // Finds the allocation that contains |address|, which may be any value. kNotFound: there is none.
  // This function and the next three accept both buffers and pointers. [any-thread]
  Code find(const void* address, void** out_base, uint64_t* out_size);
  // Retains memory that the library has not allocated. buffers().release() releases it.
  Code retain(void* address, uint64_t size);
  // Returns the reason why retain() refuses the memory; "" if it does not refuse, or if the
  // vendor's call fails.
  const char* rule_against(void* address, uint64_t size);
  // Locates the |size| bytes from |address| + |offset| for a copy. kInvalidArgument: |address| is
  // not known. kOutOfRange: the bytes end past its allocation.
  Code locate(const void* address, uint64_t offset, uint64_t size, Location* out_location);

 private:
  const ContextReference context_;  // destroyed last
  SetupQueue queue_;
  Buffers buffers_;
  const Pointers pointers_;
  HostMemory host_memory_;
  Notices notices_;
  Reductions reductions_;
};

}  // namespace hetcomm::opencl
