#include "devices/opencl/notices.h"

#include <unistd.h>

#include <chrono>
#include <new>

namespace hetcomm::opencl {

Notices::~Notices() {
  std::unique_lock lock(shared_->mutex);
  shared_->none_left.wait_for(lock, std::chrono::seconds(1),
                              [&] { return shared_->outstanding == 0; });
  shared_->closed = true;
}

Code Notices::add(cl_event event, int file) {
  if (event == nullptr || file < 0) return Code::kInvalidArgument;
  auto* const notice = new (std::nothrow) Notice{shared_, file};
  if (notice == nullptr) return Code::kOutOfMemory;
  {
    const std::lock_guard lock(shared_->mutex);
    ++shared_->outstanding;
  }
  const cl_int status = api_.SetEventCallback(event, CL_COMPLETE, on_complete, notice);
  if (status == CL_SUCCESS) return Code::kOk;
  {
    const std::lock_guard lock(shared_->mutex);
    --shared_->outstanding;
  }
  delete notice;
  return code_of(status);
}

void CL_CALLBACK Notices::on_complete(cl_event /*event*/, cl_int /*status*/, void* notice) {
  const std::unique_ptr<Notice> own(static_cast<Notice*>(notice));
  Shared& shared = *own->shared;
  const std::lock_guard lock(shared.mutex);
  if (!shared.closed) {
    const uint64_t one = 1;
    const ssize_t put = write(own->file, &one, sizeof(one));
    static_cast<void>(put);  // a full eventfd also wakes its reader
  }
  if (--shared.outstanding == 0) shared.none_left.notify_all();
}

}  // namespace hetcomm::opencl
