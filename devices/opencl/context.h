// A context of OpenCL, with what the library keeps in it: buffers, pinned host memory, notices.
#pragma once

#include <memory>
#include <utility>

#include "devices/opencl/api.h"
#include "devices/opencl/host_memory.h"
#include "devices/opencl/memory.h"
#include "devices/opencl/notices.h"
#include "devices/opencl/setup_queue.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

// One reference to a context.
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
  // A new context of |device|.
  static Code make(const Api& api, cl_device_id device, std::unique_ptr<Context>* out_context);
  // |context| has |device|.
  Context(const Api& api, ContextReference context, cl_device_id device)
      : context_(std::move(context)),
        queue_(api, get(), device),
        buffers_(api, get(), queue_),
        host_memory_(api, get(), queue_),
        notices_(api) {}

  cl_context get() const { return context_.get(); }
  Buffers& buffers() { return buffers_; }
  HostMemory& host_memory() { return host_memory_; }
  Notices& notices() { return notices_; }

 private:
  const ContextReference context_;  // goes last
  SetupQueue queue_;
  Buffers buffers_;
  HostMemory host_memory_;
  Notices notices_;
};

}  // namespace hetcomm::opencl
