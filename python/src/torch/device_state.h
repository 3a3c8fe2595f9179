// Holds the library's state for one torch device: names of memory and streams, host memory, and
// torch's last error. Names stand for addresses and streams in the device table.
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

// Any thread may call every function.
class DeviceState {
 public:
  explicit DeviceState(c10::Device device);

  c10::Device device() const { return device_; }
  const char* name() const { return name_.c_str(); }
  // Returns whether the back-end has no events, or no streams to copy in. Work is then complete
  // when finish() returns (streams.h).
  bool is_synchronous() const { return synchronous_; }

  // Registers |bytes|, which has one dimension, and returns its name. Keeps the tensor until
  // drop().
  void* add(at::Tensor bytes);
  // Drops the tensor that |name| names. Ignores an unknown |name|.
  void drop(const void* name);
  // Returns the bytes that |name| names, or an undefined tensor if |name| is unknown.
  at::Tensor bytes(const void* name);

  // Allocates |size| bytes that no stream uses any longer, and returns their name. May block.
  void* allocate(size_t size);

  // Returns a name for |stream|, which is valid as long as the device lives.
  void* name_stream(const c10::Stream& stream);
  // Returns the stream that |name| names, or null if it names none.
  const c10::Stream* stream(const void* name);

  // Allocates |size| bytes of host memory pinned for the device. Returns null if out of memory.
  void* allocate_host(size_t size);
  void free_host(void* host);

  // Stores |text|, the text of torch's last error.
  void note_failure(std::string text);
  std::string failure();

  EventWatch& watch() { return watch_; }
  Reductions& reductions() { return reductions_; }

 private:
  const c10::Device device_;
  const std::string name_;
  const bool synchronous_;
  std::mutex mutex_;  // guards the members below, up to failure_
  std::map<const void*, std::unique_ptr<at::Tensor>> memory_;
  std::map<c10::StreamId, c10::Stream> streams_;
  std::map<void*, c10::DataPtr> host_memory_;
  std::optional<c10::Stream> allocating_;  // stream of the last allocation, which was idle then
  std::string failure_;
  EventWatch watch_;
  Reductions reductions_;
};

}  // namespace hetcomm::torch_backend
