// A context of OpenCL, with what the library keeps in it: buffers, pinned host memory, notices.
#pragma once

#include <memory>

#include "devices/opencl/api.h"
#include "devices/opencl/host_memory.h"
#include "devices/opencl/memory.h"
#include "devices/opencl/notices.h"
#include "devices/opencl/setup_queue.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

class Context {
 public:
  // A new context of |device|.
  static Code make(const Api& api, cl_device_id device, std::unique_ptr<Context>* out_context);
  // Takes over one reference to |context|, which has |device|.
  Context(const Api& api, cl_context context, cl_device_id device)
      : api_(api),
        context_{api, context},
        queue_(api, context, device),
        buffers_(api, context, queue_),
        host_memory_(api, context, queue_),
        notices_(api) {}

  cl_context get() const { return context_.context; }
  Buffers& buffers() { return buffers_; }
  HostMemory& host_memory() { return host_memory_; }
  Notices& notices() { return notices_; }

 private:
  struct Reference {
    const Api& api;
    const cl_context context;
    ~Reference() { api.ReleaseContext(context); }
  };
  const Api& api_;
  const Reference context_;  // goes last
  SetupQueue queue_;
  Buffers buffers_;
  HostMemory host_memory_;
  Notices notices_;
};

}  // namespace hetcomm::opencl
