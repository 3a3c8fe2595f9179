// The library's side of a device of torch's holds names of memory and of streams, host memory, and
// what torch said when it failed last. Names are the addresses and streams of the table.
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
  // The back-end has no events, or no streams to copy in: work is over when finish() returns.
  bool is_synchronous() const { return synchronous_; }

  // Names |bytes|, of one dimension, and keeps them until drop().
  void* add(at::Tensor bytes);
  // Does nothing where |name| names nothing.
  void drop(const void* name);
  // Returns what |name| names. It is undefined where that is nothing.
  at::Tensor bytes(const void* name);

  // Allocates and names |size| bytes, with which no stream has anything to do any more. May block.
  void* allocate(size_t size);

  // Names a stream of the device, for as long as the device lives.
  void* name_stream(const c10::Stream& stream);
  // Returns the stream that |name| names, or null where it names none.
  const c10::Stream* stream(const void* name);

  // Allocates |size| bytes of host memory that is pinned for the device; null: there is no room.
  void* allocate_host(size_t size);
  void free_host(void* host);

  // |text| is what torch said.
  void note_failure(std::string text);
  std::string failure();

  EventWatch& watch() { return watch_; }
  Reductions& reductions() { return reductions_; }

 private:
  const c10::Device device_;
  const std::string name_;
  const bool synchronous_;
  std::mutex mutex_;  // of what follows, up to failure_
  std::map<const void*, std::unique_ptr<at::Tensor>> memory_;
  std::map<c10::StreamId, c10::Stream> streams_;
  std::map<void*, c10::DataPtr> host_memory_;
  std::optional<c10::Stream> allocating_;  // the one that was idle at the last allocation
  std::string failure_;
  EventWatch watch_;
  Reductions reductions_;
};

}  // namespace hetcomm::torch_backend
