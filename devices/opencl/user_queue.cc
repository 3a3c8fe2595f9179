#include "devices/opencl/user_queue.h"

#include <new>

#include "devices/opencl/objects.h"

namespace hetcomm::opencl {

Code UserQueue::open(const Api& api, cl_context context, void* native, UserQueue** out_queue) {
  // OpenCL dereferences any handle without checking it, so |native| must look like an OpenCL
  // object.
  if (!are_of_one_vendor(context, native)) return Code::kInvalidArgument;
  const auto queue = static_cast<cl_command_queue>(native);
  cl_context owner = nullptr;
  if (api.GetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(owner), &owner, nullptr) !=
          CL_SUCCESS ||
      owner != context) {
    return Code::kInvalidArgument;
  }
  const cl_int status = api.RetainCommandQueue(queue);
  if (status != CL_SUCCESS) return code_of(status);
  *out_queue = new (std::nothrow) UserQueue(api, context, queue);
  if (*out_queue == nullptr) {
    api.ReleaseCommandQueue(queue);
    return Code::kOutOfMemory;
  }
  return Code::kOk;
}

Code UserQueue::record(cl_event* out_event) {
  cl_event event = nullptr;
  cl_int status = api_.EnqueueMarkerWithWaitList(queue_, 0, nullptr, &event);
  if (status != CL_SUCCESS) return code_of(status);
  // Without a flush, the queue may never start the commands.
  status = api_.Flush(queue_);
  if (status != CL_SUCCESS) {
    api_.ReleaseEvent(event);
    return code_of(status);
  }
  *out_event = event;
  return Code::kOk;
}

Code UserQueue::hold(cl_event* out_hold) {
  cl_int status = CL_SUCCESS;
  const cl_event hold = api_.CreateUserEvent(context_, &status);
  if (hold == nullptr) return code_of(status);
  status = api_.EnqueueBarrierWithWaitList(queue_, 1, &hold, nullptr);
  if (status != CL_SUCCESS) {
    end_hold(api_, hold);
    return code_of(status);
  }
  *out_hold = hold;
  return Code::kOk;
}

// Sets the event to complete even after a failure, since some vendors terminate the process on any
// other status. The operation itself reports its failure.
void UserQueue::end_hold(const Api& api, cl_event hold) {
  api.SetUserEventStatus(hold, CL_COMPLETE);
  api.ReleaseEvent(hold);
}

}  // namespace hetcomm::opencl
