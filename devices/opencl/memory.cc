#include "devices/opencl/memory.h"

#include <algorithm>

#include "devices/opencl/objects.h"

namespace hetcomm::opencl {

Buffers::~Buffers() {
  for (const auto& [name, known] : known_) {
    forget(name);
    for (uint64_t i = 0; i < known.users; ++i) {
      api_.ReleaseMemObject(static_cast<cl_mem>(const_cast<void*>(name)));
    }
  }
}

// Touches the buffer, since some vendors accept any size and allocate memory on first use.
Code Buffers::touch(cl_mem buffer, uint64_t size) {
  cl_command_queue queue = nullptr;
  const Code opened = queue_.open(&queue);
  if (opened != Code::kOk) return opened;
  const std::byte zero{0};
  cl_int status =
      api_.EnqueueWriteBuffer(queue, buffer, CL_TRUE, size - 1, 1, &zero, 0, nullptr, nullptr);
  // A blocking call may return before the buffer holds the byte, and other queues do not wait for
  // it.
  if (status == CL_SUCCESS) status = api_.Finish(queue);
  return status == CL_SUCCESS ? Code::kOk : Code::kOutOfMemory;
}

Code Buffers::allocate(uint64_t size, void** out_name) {
  cl_int status = CL_SUCCESS;
  const uint64_t whole = std::max<uint64_t>(size, 1);  // OpenCL has no empty buffers
  const cl_mem buffer = api_.CreateBuffer(context_, CL_MEM_READ_WRITE, whole, nullptr, &status);
  if (buffer == nullptr) {
    // Only the size comes from the caller, so an invalid argument means that the size is too large.
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
    note(buffer);
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
  uint64_t whole = 0;
  const char* rule = nullptr;
  const Code code = check_named(buffer, size, &whole, &rule);
  if (code != Code::kOk) return code;
  Known& known = found != known_.end() ? found->second : known_[name];
  if (api_.RetainMemObject(buffer) != CL_SUCCESS) {
    if (known.users == 0) known_.erase(name);
    return Code::kInvalidArgument;
  }
  if (known.users++ == 0) {
    known.size = whole;
    note(name);
  }
  return Code::kOk;
}

// Checks whether |buffer|, which looks like an object of this vendor, can be retained. Sets
// |*out_whole| to its size, or |*out_rule| to the reason for the refusal.
Code Buffers::check_named(cl_mem buffer, uint64_t size, uint64_t* out_whole,
                          const char** out_rule) const {
  const auto ask = [&](cl_mem_info what, auto* answer) {
    return api_.GetMemObjectInfo(buffer, what, sizeof(*answer), answer, nullptr) == CL_SUCCESS;
  };
  const auto refuse = [&](Code code, const char* rule) {
    *out_rule = rule;
    return code;
  };
  cl_context context = nullptr;
  cl_mem_object_type type = 0;
  size_t whole = 0;
  if (!ask(CL_MEM_CONTEXT, &context) || !ask(CL_MEM_TYPE, &type) || !ask(CL_MEM_SIZE, &whole)) {
    return refuse(Code::kInvalidArgument, "the address is an object of OpenCL, but no cl_mem");
  }
  if (context != context_) {
    return refuse(
        Code::kInvalidArgument,
        "the cl_mem is of another cl_context: hetcomm_device_from_native() makes a device "
        "of that one");
  }
  if (type != CL_MEM_OBJECT_BUFFER) {
    return refuse(Code::kInvalidArgument, "the cl_mem is an image or a pipe, and no buffer");
  }
  // Memory with these flags cannot be copied both to and from the host.
  cl_mem_flags flags = 0;
  constexpr cl_mem_flags kClosed =
      CL_MEM_HOST_NO_ACCESS | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY;
  if (!ask(CL_MEM_FLAGS, &flags) || (flags & kClosed) != 0) {
    return refuse(Code::kUnsupported,
                  "the cl_mem was made with CL_MEM_HOST_NO_ACCESS, _READ_ONLY or _WRITE_ONLY: the "
                  "host may not read and write it");
  }
  if (size > whole) return refuse(Code::kOutOfRange, "the range ends past the buffer");
  *out_whole = whole;
  return Code::kOk;
}

const char* Buffers::rule_against(void* name, uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (known_.find(name) == known_.end() && !are_of_one_vendor(context_, name)) {
    return "the address is no cl_mem of this vendor";
  }
  uint64_t whole = 0;
  const char* rule = "";
  static_cast<void>(check_named(static_cast<cl_mem>(name), size, &whole, &rule));
  return rule;
}

void Buffers::release(void* name) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(name);
  if (found == known_.end()) return;
  if (--found->second.users == 0) {
    forget(name);
    known_.erase(found);
  }
  api_.ReleaseMemObject(static_cast<cl_mem>(name));
}

Code Buffers::find(const void* name, uint64_t* out_size) {
  if (!may_be_known(name)) return Code::kNotFound;
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
