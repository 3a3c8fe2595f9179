#include "devices/opencl/memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

namespace hetcomm::opencl {
namespace {

// The word at |address|, which may be any number. False: there is none to read.
bool read_word(const void* address, uintptr_t* out_word) {
  if (reinterpret_cast<uintptr_t>(address) % alignof(uintptr_t) != 0) return false;
  const iovec to = {.iov_base = out_word, .iov_len = sizeof(*out_word)};
  const iovec from = {.iov_base = const_cast<void*>(address), .iov_len = sizeof(*out_word)};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof(*out_word);
}

}  // namespace

// Objects of one vendor begin with the address of the same table of functions (cl_khr_icd).
bool are_of_one_vendor(const void* known, const void* name) {
  uintptr_t own = 0;
  uintptr_t other = 0;
  return read_word(known, &own) && read_word(name, &other) && own == other;
}

Buffers::~Buffers() {
  for (const auto& [name, known] : known_) {
    for (uint64_t i = 0; i < known.users; ++i) {
      api_.ReleaseMemObject(static_cast<cl_mem>(const_cast<void*>(name)));
    }
  }
}

// Some vendors make a buffer of any size, and look for room when it is used first.
Code Buffers::touch(cl_mem buffer, uint64_t size) {
  cl_command_queue queue = nullptr;
  const Code opened = queue_.open(&queue);
  if (opened != Code::kOk) return opened;
  const std::byte zero{0};
  cl_int status =
      api_.EnqueueWriteBuffer(queue, buffer, CL_TRUE, size - 1, 1, &zero, 0, nullptr, nullptr);
  // A call that blocks may return before the buffer has the byte, and other queues do not wait.
  if (status == CL_SUCCESS) status = api_.Finish(queue);
  return status == CL_SUCCESS ? Code::kOk : Code::kOutOfMemory;
}

Code Buffers::allocate(uint64_t size, void** out_name) {
  cl_int status = CL_SUCCESS;
  const uint64_t whole = std::max<uint64_t>(size, 1);  // OpenCL has no empty buffers
  const cl_mem buffer = api_.CreateBuffer(context_, CL_MEM_READ_WRITE, whole, nullptr, &status);
  if (buffer == nullptr) {
    // The size is the one argument that is a caller's.
    const Code code = code_of(status);
    return code == Code::kInvalidArgument ? Code::kOutOfMemory : code;
  }
  const Code touched = touch(buffer, whole);
  if (touched != Code::kOk) {
    api_.ReleaseMemObject(buffer);
    return touched;
  }
  const std::lock_guard lock(mutex_);
  try {
    known_[buffer] = {.size = size, .users = 1};
  } catch (const std::bad_alloc&) {
    api_.ReleaseMemObject(buffer);
    return Code::kOutOfMemory;
  }
  *out_name = buffer;
  return Code::kOk;
}

Code Buffers::retain(void* name, uint64_t size) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(name);
  if (found == known_.end() && !are_of_one_vendor(context_, name)) return Code::kInvalidArgument;
  const auto buffer = static_cast<cl_mem>(name);
  cl_context context = nullptr;
  cl_mem_object_type type = 0;
  size_t whole = 0;
  if (api_.GetMemObjectInfo(buffer, CL_MEM_CONTEXT, sizeof(context), &context, nullptr) !=
          CL_SUCCESS ||
      api_.GetMemObjectInfo(buffer, CL_MEM_TYPE, sizeof(type), &type, nullptr) != CL_SUCCESS ||
      api_.GetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof(whole), &whole, nullptr) != CL_SUCCESS ||
      context != context_ || type != CL_MEM_OBJECT_BUFFER) {
    return Code::kInvalidArgument;
  }
  // Such memory cannot be copied to and from the host.
  cl_mem_flags flags = 0;
  constexpr cl_mem_flags kClosed =
      CL_MEM_HOST_NO_ACCESS | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY;
  if (api_.GetMemObjectInfo(buffer, CL_MEM_FLAGS, sizeof(flags), &flags, nullptr) != CL_SUCCESS ||
      (flags & kClosed) != 0) {
    return Code::kUnsupported;
  }
  if (size > whole) return Code::kOutOfRange;
  Known& known = found != known_.end() ? found->second : known_[name];
  if (api_.RetainMemObject(buffer) != CL_SUCCESS) {
    if (known.users == 0) known_.erase(name);
    return Code::kInvalidArgument;
  }
  if (known.users++ == 0) known.size = whole;
  return Code::kOk;
}

void Buffers::release(void* name) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(name);
  if (found == known_.end()) return;
  if (--found->second.users == 0) known_.erase(found);
  api_.ReleaseMemObject(static_cast<cl_mem>(name));
}

Code Buffers::find(const void* name, uint64_t* out_size) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(name);
  if (found == known_.end()) return Code::kNotFound;
  *out_size = found->second.size;
  return Code::kOk;
}

Code Buffers::check(const void* name, uint64_t offset, uint64_t size, cl_mem* out_buffer) {
  uint64_t whole = 0;
  if (find(name, &whole) != Code::kOk) return Code::kInvalidArgument;
  if (offset > whole || size > whole - offset) return Code::kOutOfRange;
  *out_buffer = static_cast<cl_mem>(const_cast<void*>(name));
  return Code::kOk;
}

}  // namespace hetcomm::opencl
