// The library's state of a torch device: names of memory and streams, host memory, and torch's last
// error. Names serve as the addresses and streams in the device table.
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
  // Whether the back-end has no events, or no streams to copy in: work is complete when finish()
  // returns.
  bool is_synchronous() const { return synchronous_; }

  // Names |bytes|, which has one dimension, and keeps the tensor until drop().
  void* add(at::Tensor bytes);
  // Drops the tensor that |name| names. Ignores an unknown |name|.
  void drop(const void* name);
  // Returns the bytes that |name| names, or an undefined tensor if there are none.
  at::Tensor bytes(const void* name);

  // Allocates and names |size| bytes that no stream uses any longer. May block.
  void* allocate(size_t size);

  // Names a stream on the device, for as long as the device lives.
  void* name_stream(const c10::Stream& stream);
  // Returns the stream that |name| names, or null if it names none.
  const c10::Stream* stream(const void* name);

  // Allocates |size| bytes of host memory pinned for the device. Returns null if out of memory.
  void* allocate_host(size_t size);
  void free_host(void* host);

  // Records |text|, torch's error text.
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
  std::optional<c10::Stream> allocating_;  // the idle stream of the last allocation
  std::string failure_;
  EventWatch watch_;
  Reductions reductions_;
};

}  // namespace hetcomm::torch_backend
