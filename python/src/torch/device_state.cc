#include "python/src/torch/device_state.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <utility>

#include "python/src/torch/streams.h"

namespace hetcomm::torch_backend {

DeviceState::DeviceState(c10::Device device)
    : device_(device), name_("torch " + device.str()), reductions_(device) {}

void* DeviceState::add(at::Tensor bytes) {
  auto memory = std::make_unique<at::Tensor>(std::move(bytes));
  at::Tensor* const name = memory.get();
  const std::scoped_lock lock(mutex_);
  memory_.emplace(name, std::move(memory));
  return name;
}

// Torch gives out memory again that was freed while its stream still had work with it, for more work of
// that stream. The library copies in other streams. Nobody puts work into the stream here, but for users
// whose own it is, too, since streams come from a pool: it is waited for.
void* DeviceState::allocate(size_t size) {
  std::unique_lock lock(mutex_);
  if (!allocating_) allocating_ = make_stream(device_);
  const c10::Stream stream = *allocating_;
  lock.unlock();
  const c10::InferenceMode mode(false);
  const c10::StreamGuard there(stream);
  const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
  at::Tensor bytes = at::empty({static_cast<int64_t>(size)}, options);
  c10::impl::VirtualGuardImpl(device_.type()).synchronizeStream(stream);
  return add(std::move(bytes));
}

void DeviceState::drop(const void* name) {
  std::unique_ptr<at::Tensor> memory;  // goes after the lock
  const std::scoped_lock lock(mutex_);
  const auto found = memory_.find(name);
  if (found == memory_.end()) return;
  memory = std::move(found->second);
  memory_.erase(found);
}

at::Tensor DeviceState::bytes(const void* name) {
  const std::scoped_lock lock(mutex_);
  const auto found = memory_.find(name);
  return found != memory_.end() ? *found->second : at::Tensor();
}

void* DeviceState::name_stream(const c10::Stream& stream) {
  const std::scoped_lock lock(mutex_);
  return &streams_.emplace(stream.id(), stream).first->second;
}

const c10::Stream* DeviceState::stream(const void* name) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [id, stream] : streams_) {
    if (&stream == name) return &stream;
  }
  return nullptr;
}

void* DeviceState::allocate_host(size_t size) {
  const c10::DeviceGuard here(device_);
  c10::DataPtr data = at::globalContext().getPinnedMemoryAllocator(device_.type())->allocate(size);
  void* const host = data.get();
  if (host == nullptr) return nullptr;
  const std::scoped_lock lock(mutex_);
  host_memory_.emplace(host, std::move(data));
  return host;
}

void DeviceState::free_host(void* host) {
  c10::DataPtr data;  // goes after the lock
  const std::scoped_lock lock(mutex_);
  const auto found = host_memory_.find(host);
  if (found == host_memory_.end()) return;
  data = std::move(found->second);
  host_memory_.erase(found);
}

void DeviceState::note_failure(std::string text) {
  const std::scoped_lock lock(mutex_);
  failure_ = std::move(text);
}

std::string DeviceState::failure() {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

}  // namespace hetcomm::torch_backend
