// HostMemory allocates host memory through OpenCL, so that copy engines can access it at full
// speed. OpenCL cannot pin memory that was allocated elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "devices/opencl/api.h"
#include "devices/opencl/setup_queue.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

// All functions may be called by any thread.
class HostMemory {
 public:
  // |context| and its |queue| must outlive this object.
  HostMemory(const Api& api, cl_context context, SetupQueue& queue)
      : api_(api), context_(context), queue_(queue) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  // All memory must have been freed.
  ~HostMemory() = default;

  Code allocate(uint64_t size, void** out_host);
  void free(void* host);

 private:
  void unmap(cl_command_queue queue, cl_mem buffer, void* host);

  const Api& api_;
  const cl_context context_;
  SetupQueue& queue_;
  std::mutex mutex_;
  std::map<void*, cl_mem> mapped_;
};

}  // namespace hetcomm::opencl
