// Shares one context among all process groups of a process with the same settings. A background
// thread makes progress. PyTorch's devices and streams are registered with the context on first
// use.
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
  // Returns the context with these settings ("NAME=value;..."). It is created on first use. A
  // forked child gets a context of its own.
  static std::shared_ptr<SharedContext> get(const std::string& settings);

  explicit SharedContext(const std::string& settings);
  ~SharedContext();
  SharedContext(const SharedContext&) = delete;
  SharedContext& operator=(const SharedContext&) = delete;

  hetcomm_context_t* handle() const { return context_; }
  // Returns whether this is the process that created the context. Returns false in a forked child.
  bool alive() const;

  // Returns the library's number of |device|, which pipeline plans use. [any-thread]
  int32_t index(c10::Device device);
  // Returns the bytes of |memory|, which is on |device|. The tensor keeps them alive. [any-thread]
  at::Tensor bytes(c10::Device device, const hetcomm_memory_t* memory);
  // Returns whether |device| has streams that operations can wait for. If not, stream() and
  // joint_stream() wait for the work in the stream themselves, and return null. [any-thread]
  bool has_streams(c10::Device device);
  // Returns the library's handle of a PyTorch stream. The context owns it. [any-thread]
  hetcomm_stream_t* stream(const c10::Stream& torchs);
  // Returns a stream that all devices of |device|'s type share, so that it can order operations on
  // several devices. It waits for the work that is now in |device|'s current stream, and for that
  // of earlier calls. [any-thread]
  hetcomm_stream_t* joint_stream(c10::Device device);
  // Returns a stream for copies within |device|. All callers get the same one. [any-thread]
  c10::Stream copy_stream(c10::Device device);
  // Makes a memory handle for |packed|, a contiguous tensor on a device. The handle keeps the
  // tensor alive. [any-thread]
  hetcomm_memory_t* wrap(const at::Tensor& packed);
  // Frees a handle from wrap() that no operation uses. [any-thread]
  static void unwrap(hetcomm_memory_t* memory);
  // Returns the lookout thread that examines the works of all groups. [any-thread]
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
  std::mutex mutex_;  // guards the members below
  std::map<DeviceKey, DeviceEntry> devices_;
  std::map<std::pair<int32_t, c10::StreamId>, hetcomm_stream_t*> streams_;  // by device and id
  std::map<c10::DeviceType, c10::Stream> joint_streams_;
  Lookout lookout_;
};

}  // namespace hetcomm::torch_backend
