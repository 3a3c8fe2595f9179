// OpenClDevice wraps one OpenCL device of any vendor with a context. Buffers are the device's
// memory, and queues are its streams. The context is created on first use, unless the caller
// provides one.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devices/device.h"
#include "devices/opencl/api.h"
#include "devices/opencl/context.h"
#include "devices/opencl/options.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

// A stream consists of a queue, and the events of the copies and reductions submitted since the
// last event_record().
struct Stream {
  cl_command_queue queue;
  std::vector<cl_event> copies;
};

// The instance on which the functions of the table operate. All functions may be called by any
// thread.
class OpenClDevice {
 public:
  // Creates a device that creates its own context on first use. NOT_FOUND: no device matches the
  // options.
  static Result<std::unique_ptr<OpenClDevice>> create(const Options& options);
  // Creates a device for the first OpenCL device in a caller's context, which is retained.
  // INVALID_ARGUMENT: |context| is not a cl_context.
  static Result<std::unique_ptr<OpenClDevice>> create_from(void* context);
  OpenClDevice(const OpenClDevice&) = delete;
  OpenClDevice& operator=(const OpenClDevice&) = delete;
  ~OpenClDevice();

  const Api& api() const { return api_; }
  const char* name() const { return name_.c_str(); }
  const char* pci_address() const { return pci_address_.empty() ? nullptr : pci_address_.c_str(); }
  // Returns the vendor's error from the device's last failure; CL_SUCCESS if no call has failed.
  cl_int failure() const { return failure_.load(std::memory_order_relaxed); }
  void note_failure(cl_int status) {
    if (status != CL_SUCCESS) failure_.store(status, std::memory_order_relaxed);
  }
  // Returns the context, or null if there is none yet.
  Context* context() const { return context_.load(std::memory_order_acquire); }
  // Creates the context if there is none yet.
  Code open(Context** out_context);

  // Creates a Stream, whose address is the stream handle. An event handle is a cl_event.
  Code stream_create(void** out_stream);
  void stream_destroy(void* stream);
  // May throw std::bad_alloc.
  Code copy(void* stream, const void* address, const DeviceRows& rows, void* host, bool to_host);
  // May throw std::bad_alloc.
  Code copy_between(void* stream, const void* from, const DeviceRows& from_rows,
                    const OpenClDevice& to_device, void* to, const DeviceRows& to_rows);
  // May throw std::bad_alloc.
  Code reduce(void* stream, const DeviceReduction& what);
  Code event_record(void* stream, void** out_event);
  Code event_query(void* event);
  Code event_wait(void* event);
  void event_release(void* event);
  bool is_cpu() const { return is_cpu_; }
  Code event_notify(void* event, int file);

 private:
  OpenClDevice(const Api& api, cl_device_id device);
  Code copy_row(Stream& stream, const Location& location, uint64_t size, std::byte* host,
                bool to_host);
  Code copy_plane_between(Stream& stream, const Location& from, const DeviceRows& from_rows,
                          const Location& to, const DeviceRows& to_rows);
  Code copy_plane(Stream& stream, const Location& location, const DeviceRows& rows, std::byte* host,
                  bool to_host);

  const Api& api_;
  const cl_device_id device_;
  std::mutex opening_;
  std::atomic<Context*> context_{nullptr};  // owned
  std::atomic<cl_int> failure_{CL_SUCCESS};
  std::string name_;
  std::string pci_address_;
  bool is_cpu_ = false;
};

}  // namespace hetcomm::opencl
