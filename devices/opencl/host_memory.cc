#include "devices/opencl/host_memory.h"

#include <new>

namespace hetcomm::opencl {

Code HostMemory::allocate(uint64_t size, void** out_host) {
  cl_command_queue queue = nullptr;
  const Code opened = queue_.open(&queue);
  if (opened != Code::kOk) return opened;
  cl_int status = CL_SUCCESS;
  const cl_mem buffer = api_.CreateBuffer(context_, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, size,
                                          nullptr, &status);
  if (buffer == nullptr) return code_of(status);
  // The memory stays mapped until it is freed.
  void* const host = api_.EnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                           size, 0, nullptr, nullptr, &status);
  if (host == nullptr) {
    api_.ReleaseMemObject(buffer);
    return code_of(status);
  }
  const std::lock_guard lock(mutex_);
  try {
    mapped_[host] = buffer;
  } catch (const std::bad_alloc&) {
    unmap(queue, buffer, host);
    return Code::kOutOfMemory;
  }
  *out_host = host;
  return Code::kOk;
}

void HostMemory::free(void* host) {
  cl_command_queue queue = nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(host);
  if (found == mapped_.end() || queue_.open(&queue) != Code::kOk) return;
  unmap(queue, found->second, host);
  mapped_.erase(found);
}

void HostMemory::unmap(cl_command_queue queue, cl_mem buffer, void* host) {
  api_.EnqueueUnmapMemObject(queue, buffer, host, 0, nullptr, nullptr);
  api_.Finish(queue);
  api_.ReleaseMemObject(buffer);
}

}  // namespace hetcomm::opencl
