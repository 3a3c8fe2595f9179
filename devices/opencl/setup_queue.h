// SetupQueue owns the queue for a context's own set-up: mappings and first touches of memory. The
// queue is created on first use.
#pragma once

#include <mutex>

#include "devices/opencl/api.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

class SetupQueue {
 public:
  // |context| and |device| must outlive this object.
  SetupQueue(const Api& api, cl_context context, cl_device_id device)
      : api_(api), context_(context), device_(device) {}
  SetupQueue(const SetupQueue&) = delete;
  SetupQueue& operator=(const SetupQueue&) = delete;
  ~SetupQueue() {
    if (queue_ != nullptr) api_.ReleaseCommandQueue(queue_);
  }

  // Creates the queue on the first call. [any-thread]
  Code open(cl_command_queue* out_queue) {
    const std::lock_guard lock(mutex_);
    cl_int status = CL_SUCCESS;
    if (queue_ == nullptr) queue_ = api_.CreateCommandQueue(context_, device_, 0, &status);
    *out_queue = queue_;
    return queue_ != nullptr ? Code::kOk : code_of(status);
  }

 private:
  const Api& api_;
  const cl_context context_;
  const cl_device_id device_;
  std::mutex mutex_;
  cl_command_queue queue_ = nullptr;
};

}  // namespace hetcomm::opencl
