// UserQueue observes the progress of a user's queue and can block it. The library submits no copies
// to such a queue.
#pragma once

#include "devices/opencl/api.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

// All functions may be called by any thread, and none of them blocks.
class UserQueue {
 public:
  // Retains the queue |native|, which must belong to |context|.
  static Code open(const Api& api, cl_context context, void* native, UserQueue** out_queue);
  UserQueue(const UserQueue&) = delete;
  UserQueue& operator=(const UserQueue&) = delete;
  ~UserQueue() { api_.ReleaseCommandQueue(queue_); }

  // Records an event that completes when everything now in the queue has completed.
  Code record(cl_event* out_event);
  // Makes later commands in the queue wait for |*out_hold|, an event that end_hold() sets.
  Code hold(cl_event* out_hold);
  static void end_hold(const Api& api, cl_event hold);

 private:
  UserQueue(const Api& api, cl_context context, cl_command_queue queue)
      : api_(api), context_(context), queue_(queue) {}

  const Api& api_;
  const cl_context context_;
  const cl_command_queue queue_;
};

}  // namespace hetcomm::opencl
