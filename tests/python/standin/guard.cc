// The guard and hooks through which torch's device-generic interfaces use the stand-in device.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cstdlib>
#include <cstring>

#include "tests/python/standin/generator.h"
#include "tests/python/standin/memory.h"

namespace standin {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

Stream& stream_of(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == kType, "standin: this is a stream of another device");
  return standin::stream(stream.device_index(), stream.id());
}

c10::Device device_at(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

int index_of(c10::Device device) {
  return device.has_index() ? static_cast<int>(device.index()) : current_device();
}

c10::Stream stream_at(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device), id);
}

// Returns whether HETCOMM_STANDIN_WITHOUT names |what|. If so, the device lacks this feature, and
// torch reports that.
bool lacks(const char* what) {
  const char* const without = std::getenv("HETCOMM_STANDIN_WITHOUT");
  return without != nullptr && std::strstr(without, what) != nullptr;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Base = c10::impl::DeviceGuardImplInterface;
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    if (device.has_index()) set_current_device(device.index());
    return old;
  }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override { set_current_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < kDevices) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_at(index_of(device), current_stream_id(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_at(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high) const override {
    if (lacks("streams")) return Base::getStreamFromGlobalPool(device, is_high);
    return stream_at(index_of(device), next_pool_stream(index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    if (lacks("streams")) return Base::getNewStream(device, priority);
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    stream_of(stream);  // Checks the stream.
    const c10::Stream old = getStream(stream.device());
    set_current_stream_id(stream.device_index(), stream.id());
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &stream_of(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    check_alive();
    return stream_of(stream).done(stream_of(stream).last());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    check_alive();
    ++counts().syncs;
    stream_of(stream).wait(stream_of(stream).last());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    check_alive();
    ++counts().syncs;
    synchronize_device(device < 0 ? current_device() : device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    if (lacks("events")) return Base::record(event, stream, device, flag);
    check_alive();
    TORCH_CHECK(device == -1 || device == stream.device_index(),
                "standin: an event is recorded on a stream of another device");
    if (*event == nullptr) {
      *event = new Event(stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT);
    }
    ++counts().events_recorded;
    static_cast<Event*>(*event)->record(stream.device_index(), stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (lacks("events")) return Base::block(event, stream);
    check_alive();
    if (event != nullptr) static_cast<Event*>(event)->block(stream_of(stream));
  }
  bool queryEvent(void* event) const override {
    if (lacks("events")) return Base::queryEvent(event);
    check_alive();
    return event == nullptr || static_cast<Event*>(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    check_alive();
    ++counts().syncs;
    if (event != nullptr) static_cast<Event*>(event)->synchronize();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* first, void* last, const c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && last != nullptr, "standin: an event was never recorded");
    return static_cast<Event*>(first)->milliseconds_until(*static_cast<Event*>(last));
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return maybeExchangeDevice(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex old = getCurrentDevice();
    if (device >= 0) set_current_device(device);
    return old;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    if (lacks("pins")) return at::PrivateUse1HooksInterface::getPinnedMemoryAllocator();
    return &pinned_allocator();
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Device getDeviceFromPtr(void* data) const override {
    const int device = device_of(data);
    TORCH_CHECK(device >= 0, "standin: this is no memory of the device");
    return device_at(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? current_device() : device);
  }
  // Torch calls this to resize a storage. The old contents are copied.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::StorageImpl& target = *storage.unsafeGetStorageImpl();
    TORCH_CHECK(target.resizable(), "standin: this storage cannot be resized");
    const int old_device = current_device();
    set_current_device(target.device().index());
    c10::DataPtr data = device_allocator().allocate(bytes);
    const size_t kept = std::min(bytes, target.nbytes());
    if (kept > 0) device_allocator().copy_data(data.get(), target.data(), kept);
    set_current_device(old_device);
    target.set_data_ptr_noswap(std::move(data));
    target.set_nbytes(bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

[[maybe_unused]] const bool registered = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

}  // namespace
}  // namespace standin
