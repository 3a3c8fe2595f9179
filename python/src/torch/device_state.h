// Holds the library's state of one PyTorch device: names of memory and streams, host memory, and
// PyTorch's last error. In the device table, names take the place of addresses and streams.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "python/src/torch/event_watch.h"
#include "python/src/torch/reductions.h"

namespace hetcomm::torch_backend {

// All functions may be called from any thread.
class DeviceState {
 public:
  explicit DeviceState(c10::Device device);

  c10::Device device() const { return device_; }
  const char* name() const { return name_.c_str(); }
  // Returns whether the back-end has no events, or no streams to copy in. Work is then complete
  // when finish() returns (streams.h).
  bool is_synchronous() const { return synchronous_; }

  // Registers |bytes|, which has one dimension, and returns a name for it. Keeps the tensor until
  // drop().
  void* add(at::Tensor bytes);
  // Drops the tensor with |name|. Ignores an unknown |name|.
  void drop(const void* name);
  // Returns the bytes with |name|, or an undefined tensor if |name| is unknown.
  at::Tensor bytes(const void* name);

  // Allocates |size| bytes that no stream uses any more, and returns their name. May block.
  void* allocate(size_t size);

  // Returns a name for |stream|. It is valid as long as the device exists.
  void* name_stream(const c10::Stream& stream);
  // Returns the stream with |name|, or null if there is none.
  const c10::Stream* stream(const void* name);

  // Allocates |size| bytes of host memory pinned for the device. Returns null if out of memory.
  void* allocate_host(size_t size);
  void free_host(void* host);

  // Stores |text|, the text of PyTorch's last error.
  void note_failure(std::string text);
  std::string failure();

  EventWatch& watch() { return watch_; }
  Reductions& reductions() { return reductions_; }

 private:
  const c10::Device device_;
  const std::string name_;
  const bool synchronous_;
  std::mutex mutex_;  // guards the members from |memory_| to |failure_|
  std::map<const void*, std::unique_ptr<at::Tensor>> memory_;
  std::map<c10::StreamId, c10::Stream> streams_;
  std::map<void*, c10::DataPtr> host_memory_;
  std::optional<c10::Stream> allocating_;  // stream of the last allocation; it was idle then
  std::string failure_;
  EventWatch watch_;
  Reductions reductions_;
};

}  // namespace hetcomm::torch_backend
