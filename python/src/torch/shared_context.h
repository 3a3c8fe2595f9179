// One context for all process groups of a process that have the same settings, with a background
// thread that makes progress. Devices and streams of torch are known to it from their first use on.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/lookout.h"

namespace hetcomm::torch_backend {

class SharedContext {
 public:
  // The one with these settings ("NAME=value;..."), made on first use. A forked child gets its own.
  static std::shared_ptr<SharedContext> get(const std::string& settings);

  explicit SharedContext(const std::string& settings);
  ~SharedContext();
  SharedContext(const SharedContext&) = delete;
  SharedContext& operator=(const SharedContext&) = delete;

  hetcomm_context_t* handle() const { return context_; }
  // False in a forked child.
  bool alive() const;

  // Whether |device| has streams that operations wait for. Where it has none the two below wait for
  // what the current stream holds, and give null. [any-thread]
  bool has_streams(c10::Device device);
  // Gives what the library calls the stream |torchs|. It stays the context's. [any-thread]
  hetcomm_stream_t* stream(const c10::Stream& torchs);
  // Gives a stream that waits for what the current streams of |device|, and of others of its type,
  // held at this and earlier calls. Operations on several devices go in its order. [any-thread]
  hetcomm_stream_t* joint_stream(c10::Device device);
  // A stream for copies within |device|, the same one for all. [any-thread]
  c10::Stream copy_stream(c10::Device device);
  // Makes a memory of the contents of |packed|, which is contiguous and lies on a device. It keeps
  // the tensor. [any-thread]
  hetcomm_memory_t* wrap(const at::Tensor& packed);
  // Frees what wrap() gave. No operation uses it. [any-thread]
  static void unwrap(hetcomm_memory_t* memory);
  // Looks after the works of all groups. [any-thread]
  Lookout& lookout() { return lookout_; }

 private:
  struct DeviceEntry {
    int32_t index = 0;
    void* instance = nullptr;
    bool synchronous = false;
    c10::Stream copy_stream;
  };
  using DeviceKey = std::pair<c10::DeviceType, c10::DeviceIndex>;
  DeviceEntry& entry_of(c10::Device device);

  const int process_;
  hetcomm_context_t* context_ = nullptr;
  std::mutex mutex_;  // of what follows
  std::map<DeviceKey, DeviceEntry> devices_;
  std::map<std::pair<int32_t, c10::StreamId>, hetcomm_stream_t*> streams_;  // by device
  std::map<c10::DeviceType, c10::Stream> joint_streams_;
  Lookout lookout_;
};

}  // namespace hetcomm::torch_backend
