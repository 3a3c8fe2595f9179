// The buffers of one OpenCL context that the library knows: those that it allocated, and those that
// a caller has named.
//
// A name of memory is a cl_mem. OpenCL reads through whatever it is given as one, so that no name
// reaches it before it is known here, or looks like an object of this vendor.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "devices/opencl/api.h"
#include "devices/opencl/setup_queue.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

// Whether |name|, which may be any number, looks like an object of the vendor that |known| is of.
bool are_of_one_vendor(const void* known, const void* name);

// All functions may be called by any thread.
class Buffers {
 public:
  // |context| and |queue|, which is one of it, outlive this.
  Buffers(const Api& api, cl_context context, SetupQueue& queue)
      : api_(api), context_(context), queue_(queue) {}
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  // Releases what is still there.
  ~Buffers();

  Code allocate(uint64_t size, void** out_name);
  // Keeps a buffer of the caller's, until it was released as often.
  Code retain(void* name, uint64_t size);
  void release(void* name);
  Code find(const void* name, uint64_t* out_size);
  // The buffer |name|, of which [offset, offset + size) is going to be copied.
  Code check(const void* name, uint64_t offset, uint64_t size, cl_mem* out_buffer);

 private:
  struct Known {
    uint64_t size = 0;
    uint64_t users = 0;
  };
  Code touch(cl_mem buffer, uint64_t size);

  const Api& api_;
  const cl_context context_;
  SetupQueue& queue_;
  std::mutex mutex_;
  std::map<const void*, Known> known_;
};

}  // namespace hetcomm::opencl
