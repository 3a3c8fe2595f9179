#include "python/src/torch/shared_context.h"

#include <unistd.h>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cstdlib>

#include "python/src/torch/device.h"
#include "python/src/torch/log.h"
#include "python/src/torch/status.h"
#include "python/src/torch/streams.h"

namespace hetcomm::torch_backend {
namespace {

// Adds GLOO_SOCKET_IFNAME, with which torchrun users select Gloo's interface, to the settings. The
// library's own variable has priority.
void add_gloo_interface(std::string& settings) {
  const char* gloo = std::getenv("GLOO_SOCKET_IFNAME");
  if (gloo == nullptr || gloo[0] == '\0' || std::getenv("HETCOMM_INTERFACE") != nullptr ||
      settings.find("INTERFACE=") != std::string::npos) {
    return;
  }
  if (!settings.empty()) settings += ';';
  settings += std::string("INTERFACE=") + gloo;
}

}  // namespace

std::shared_ptr<SharedContext> SharedContext::get(const std::string& settings) {
  using Key = std::pair<int, std::string>;
  // Never destroyed, because process groups can outlive static objects.
  static auto& mutex = *new std::mutex;
  static auto& contexts = *new std::map<Key, std::weak_ptr<SharedContext>>;
  const std::scoped_lock lock(mutex);
  std::weak_ptr<SharedContext>& slot = contexts[Key(getpid(), settings)];
  std::shared_ptr<SharedContext> context = slot.lock();
  if (!context) {
    context = std::make_shared<SharedContext>(settings);
    slot = context;
  }
  return context;
}

SharedContext::SharedContext(const std::string& settings) : process_(getpid()) {
  std::string all = settings;
  add_gloo_interface(all);
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.progress = HETCOMM_PROGRESS_THREAD;
  options.settings = all.empty() ? nullptr : all.c_str();
  check("creating a context", hetcomm_context_create(&options, &context_));
}

SharedContext::~SharedContext() {
  if (!alive()) return;
  for (const auto& [key, stream] : streams_) static_cast<void>(hetcomm_stream_destroy(stream));
  // The call returns BUSY if a group could not be closed. The context is then leaked.
  static_cast<void>(hetcomm_context_destroy(context_));
}

// Returns the entry of the device, which is created on first use. Called with mutex_ held. Creates
// the entry before it adds the device to the context, because the context cannot remove a device.
SharedContext::DeviceEntry& SharedContext::entry_of(c10::Device device) {
  const auto key = std::make_pair(device.type(), device.index());
  if (const auto found = devices_.find(key); found != devices_.end()) return found->second;
  hetcomm_device_t made = make_device(device);
  const auto destroy = [table = made.table](void* instance) { table->destroy(instance); };
  std::unique_ptr<void, decltype(destroy)> instance(made.instance, destroy);
  const bool synchronous = is_synchronous(made.instance);
  std::map<DeviceKey, DeviceEntry> entry;
  DeviceEntry& fresh =
      entry
          .emplace(key, DeviceEntry{.instance = made.instance,
                                    .synchronous = synchronous,
                                    .copy_stream =
                                        synchronous ? current_stream(device) : make_stream(device)})
          .first->second;
  const hetcomm_status_t status = hetcomm_device_add(context_, &made, &fresh.index);
  if (status != HETCOMM_OK) fail("using " + device.str(), status);
  static_cast<void>(instance.release());
  devices_.merge(entry);
  return devices_.at(key);
}

hetcomm_stream_t* SharedContext::stream(const c10::Stream& torchs) {
  std::unique_lock lock(mutex_);
  const DeviceEntry& entry = entry_of(torchs.device());
  if (entry.synchronous) {
    lock.unlock();
    finish(torchs);
    return nullptr;
  }
  hetcomm_stream_t*& stream = streams_[{entry.index, torchs.id()}];
  if (stream == nullptr) {
    check("using a stream",
          hetcomm_stream_wrap(context_, entry.index, name_stream(entry.instance, torchs),
                              HETCOMM_STREAM_NOT_HELD, &stream));
  }
  return stream;
}

int32_t SharedContext::index(c10::Device device) {
  const std::scoped_lock lock(mutex_);
  return entry_of(device).index;
}

at::Tensor SharedContext::bytes(c10::Device device, const hetcomm_memory_t* memory) {
  void* name = nullptr;
  check("asking for memory's address", hetcomm_memory_address(memory, &name));
  std::unique_lock lock(mutex_);
  const DeviceEntry& entry = entry_of(device);
  lock.unlock();  // an entry is never removed
  at::Tensor found = named_memory(entry.instance, name);
  TORCH_CHECK(found.defined(), "the memory lies on another device than ", device.str());
  return found;
}

bool SharedContext::has_streams(c10::Device device) {
  const std::scoped_lock lock(mutex_);
  return !entry_of(device).synchronous;
}

hetcomm_stream_t* SharedContext::joint_stream(c10::Device device) {
  if (!has_streams(device)) return stream(current_stream(device));
  c10::Event reached(device.type());
  reached.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  std::unique_lock lock(mutex_);
  auto found = joint_streams_.find(device.type());
  if (found == joint_streams_.end()) {
    found = joint_streams_.emplace(device.type(), make_stream(device)).first;
  }
  reached.block(found->second);
  lock.unlock();  // an entry is never removed
  return stream(found->second);
}

c10::Stream SharedContext::copy_stream(c10::Device device) {
  const std::scoped_lock lock(mutex_);
  return entry_of(device).copy_stream;
}

hetcomm_memory_t* SharedContext::wrap(const at::Tensor& packed) {
  std::unique_lock lock(mutex_);
  const DeviceEntry& entry = entry_of(packed.device());
  lock.unlock();  // an entry is never removed
  void* const named = name_memory(entry.instance, packed);
  hetcomm_memory_t* memory = nullptr;
  const hetcomm_status_t status =
      hetcomm_memory_wrap(context_, entry.index, named, packed.nbytes(), &memory);
  if (status == HETCOMM_OK) return memory;
  drop_memory(entry.instance, named);
  fail("using a tensor on " + packed.device().str(), status);
}

void SharedContext::unwrap(hetcomm_memory_t* memory) {
  if (hetcomm_memory_destroy(memory) != HETCOMM_OK) {
    log_warning("a tensor cannot be let go: ", hetcomm_last_error());
  }
}

bool SharedContext::alive() const { return getpid() == process_; }

}  // namespace hetcomm::torch_backend
