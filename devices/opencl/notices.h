// Signals eventfds from OpenCL's callbacks when OpenCL events complete.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "devices/opencl/api.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

class Notices {
 public:
  explicit Notices(const Api& api) : api_(api), shared_(std::make_shared<Shared>()) {}
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;
  // Waits up to a second for pending notices. Notices that fire later do not write to their files.
  ~Notices();

  // Adds 1 to the eventfd |file| when |event| has completed. [any-thread]
  Code add(cl_event event, int file);

 private:
  // A vendor's thread may still use this after the Notices are destroyed.
  struct Shared {
    std::mutex mutex;
    std::condition_variable none_left;
    uint64_t outstanding = 0;
    bool closed = false;
  };
  struct Notice {
    std::shared_ptr<Shared> shared;
    int file;
  };
  static void CL_CALLBACK on_complete(cl_event event, cl_int status, void* notice);

  const Api& api_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace hetcomm::opencl
