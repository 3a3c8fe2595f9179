#include "python/src/device_module.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "python/src/element_types.h"

using nb::literals::operator""_a;

namespace hetcomm_python {

namespace {

// Wraps a stream of a vendor's library, and keeps the stream's context alive.
class Stream {
 public:
  Stream(nb::object context, int32_t device, uint64_t native, bool held)
      : context_(std::move(context)) {
    const uint32_t flags = held ? 0 : HETCOMM_STREAM_NOT_HELD;
    hetcomm_context_t* const handle = nb::cast<Context&>(context_).handle();
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;  // may wait for the device
      status =
          hetcomm_stream_wrap(handle, device, reinterpret_cast<void*>(native), flags, &stream_);
    }
    check(status);
  }
  ~Stream() {
    const nb::gil_scoped_release unlocked;
    // All operations on the stream have ended, but the vendor's library may report slightly later
    // that the stream has passed them. Until then, the call returns BUSY.
    constexpr int kTries = 1000;
    for (int i = 0; i < kTries && hetcomm_stream_destroy(stream_) == HETCOMM_BUSY; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  hetcomm_stream_t* handle() const { return stream_; }

 private:
  const nb::object context_;
  hetcomm_stream_t* stream_ = nullptr;
};

void free_memory(void* memory) noexcept {
  const nb::gil_scoped_release unlocked;
  static_cast<void>(hetcomm_memory_destroy(static_cast<hetcomm_memory_t*>(memory)));
}

DeviceArray wrap(nb::object context, int32_t device, uint64_t address, uint64_t size,
                 const std::string& type, nb::object stream, nb::object owner, uint64_t offset) {
  if (size > UINT64_MAX - offset) throw nb::value_error("offset and size are more than there is");
  if (!stream.is_none() && !nb::isinstance<Stream>(stream)) {
    throw nb::type_error("a stream is one of Context.wrap_stream, or None");
  }
  const nb::dlpack::dtype dtype = type_named(type);
  hetcomm_stream_t* const in_order_of =
      stream.is_none() ? nullptr : nb::cast<Stream&>(stream).handle();
  hetcomm_memory_t* memory = nullptr;
  hetcomm_context_t* const handle = nb::cast<Context&>(context).handle();
  hetcomm_status_t status;
  {
    const nb::gil_scoped_release unlocked;  // calls into the vendor's library
    status = hetcomm_memory_wrap(handle, device, reinterpret_cast<void*>(address), offset + size,
                                 &memory);
  }
  check(status);
  nb::capsule freed(memory, free_memory);
  // A tuple releases its last element first, so the memory is freed first.
  nb::object kept =
      nb::make_tuple(std::move(context), std::move(owner), std::move(stream), std::move(freed));
  return {memory, size, dtype, in_order_of, std::move(kept), offset};
}

}  // namespace

void bind_devices(nb::module_& module, nb::class_<Context>& context) {
  nb::class_<Stream>(module, "Stream", "A stream of a vendor's. Made by Context.wrap_stream.",
                     nb::is_weak_referenceable());
  nb::class_<DeviceArray>(module, "DeviceArray",
                          "Memory of a device, for any call that takes arrays. Made by "
                          "Context.wrap and hetcomm.torch.device_array.")
      .def(
          "__init__",
          [](DeviceArray* self, uint64_t memory, uint64_t size, const std::string& dtype,
             uint64_t stream, nb::object owner) {
            new (self)
                DeviceArray(reinterpret_cast<hetcomm_memory_t*>(memory), size, type_named(dtype),
                            reinterpret_cast<hetcomm_stream_t*>(stream), std::move(owner));
          },
          "memory"_a, "size"_a, "dtype"_a, "stream"_a, "owner"_a,
          "Of handles of the C ABI, which live as long as owner.")
      .def_prop_ro("nbytes", [](const DeviceArray& self) { return self.buffer().length; });

  context
      .def(
          "device_from_native",
          [](const Context& self, const std::string& kind, uint64_t native) {
            int32_t device = 0;
            hetcomm_status_t status;
            {
              const nb::gil_scoped_release unlocked;
              status = hetcomm_device_from_native(self.handle(), kind.c_str(),
                                                  reinterpret_cast<void*>(native), &device);
            }
            check(status);
            return device;
          },
          "kind"_a, "native"_a,
          "The number of the device that a framework works with already: for \"opencl\" the "
          "address of a cl_context.")
      .def(
          "abandon_device",
          [](const Context& self, int32_t device, const std::string& reason) {
            hetcomm_status_t status;
            {
              const nb::gil_scoped_release unlocked;
              status = hetcomm_device_abandon(self.handle(), device, reason.c_str());
            }
            check(status);
          },
          "device"_a, "reason"_a = "by a call",
          "Gives up a device that hangs: what waits for it ends with DEVICE_LOST. Its memory that "
          "these operations name must not be used again.")
      .def(
          "wrap_stream",
          [](nb::object self, int32_t device, uint64_t native, bool held) {
            return std::make_unique<Stream>(std::move(self), device, native, held);
          },
          "device"_a, "native"_a, "held"_a = true,
          "A vendor's stream, such as the address of a cl_command_queue: operations on arrays that "
          "name it start when it has come to them. held: it waits for them. The context has a "
          "thread.")
      .def(
          "wrap", &wrap, "device"_a, "address"_a, "size"_a, "dtype"_a = "uint8",
          "stream"_a = nb::none(), "owner"_a = nb::none(), "offset"_a = 0,
          "An array of size bytes of a device's memory, offset bytes behind a pointer or the first "
          "byte of a handle such as a cl_mem. It keeps owner.");
}

}  // namespace hetcomm_python
