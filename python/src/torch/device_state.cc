#include "python/src/torch/device_state.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <chrono>
#include <thread>
#include <utility>

#include "python/src/torch/streams.h"

namespace hetcomm::torch_backend {
namespace {

bool ends_soon(const c10::Event& event) {
  constexpr std::chrono::milliseconds kSoon(1);
  const auto end = std::chrono::steady_clock::now() + kSoon;
  while (!event.query()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

DeviceState::DeviceState(c10::Device device)
    : device_(device),
      name_("torch " + device.str()),
      synchronous_(torch_backend::is_synchronous(device)),
      reductions_(device) {}

void* DeviceState::add(at::Tensor bytes) {
  auto memory = std::make_unique<at::Tensor>(std::move(bytes));
  at::Tensor* const name = memory.get();
  const std::scoped_lock lock(mutex_);
  memory_.emplace(name, std::move(memory));
  return name;
}

// Allocates in an idle stream. PyTorch may return memory that earlier work in the same stream still
// uses, which is safe only for later work in that stream. The library copies in other streams.
// Streams come from a pool that users and the library's copies share. If one is busy, the next one
// is tried. After kTries streams, waits for the last one.
void* DeviceState::allocate(size_t size) {
  constexpr int kTries = 32;  // back-ends have pools of about this size
  const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
  if (synchronous_) {
    const c10::InferenceMode mode(false);
    at::Tensor bytes = at::empty({static_cast<int64_t>(size)}, options);
    finish(current_stream(device_));
    return add(std::move(bytes));
  }
  std::unique_lock lock(mutex_);
  std::optional<c10::Stream> stream = allocating_;
  lock.unlock();
  for (int tries = 1;; ++tries) {
    if (!stream) stream = make_stream(device_);
    const c10::InferenceMode mode(false);
    const c10::StreamGuard there(*stream);
    at::Tensor bytes = at::empty({static_cast<int64_t>(size)}, options);
    c10::Event reached(device_.type());
    reached.record(*stream);
    if (tries == kTries) reached.synchronize();
    if (!ends_soon(reached)) {
      stream.reset();
      continue;
    }
    lock.lock();
    allocating_ = stream;
    lock.unlock();
    return add(std::move(bytes));
  }
}

void DeviceState::drop(const void* name) {
  std::unique_ptr<at::Tensor> memory;  // destroyed after the lock is released
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
  c10::DataPtr data;  // destroyed after the lock is released
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
