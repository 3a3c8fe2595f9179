#include "python/src/torch/device.h"

#include <array>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "python/src/torch/device_state.h"
#include "python/src/torch/streams.h"
#include "python/src/torch/tensor_rows.h"

namespace hetcomm::torch_backend {
namespace {

constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();

DeviceState& of(void* device) { return *static_cast<DeviceState*>(device); }
const c10::Stream& stream_of(void* stream) { return *static_cast<const c10::Stream*>(stream); }
// An event that can be shared with the EventWatch.
using Event = std::shared_ptr<const c10::Event>;

// A stream in which the library copies. A user may get the same PyTorch stream and enqueue work
// there that waits for the library. stream_destroy() therefore does not wait for the stream, unless
// copies followed the latest event.
struct CopyStream {
  c10::Stream stream;
  Event latest;         // the latest recorded event
  bool copies = false;  // true if copies followed |latest|
};
CopyStream& copies_of(void* stream) { return *static_cast<CopyStream*>(stream); }

const Event& event_of(void* event) { return *static_cast<const Event*>(event); }

// Returns the status that |call| returns. If |call| throws, stores the text of the exception in
// |device| and returns OUT_OF_MEMORY or DEVICE_LOST.
template <typename Call>
hetcomm_status_t guarded(void* device, Call&& call) noexcept {
  hetcomm_status_t status = HETCOMM_DEVICE_LOST;
  std::string why;  // empty if only the status is known
  try {
    try {
      return call();
    } catch (const c10::OutOfMemoryError& error) {
      status = HETCOMM_OUT_OF_MEMORY;
      why = error.what_without_backtrace();
    } catch (const c10::Error& error) {
      why = error.what_without_backtrace();
    }
  } catch (const std::bad_alloc&) {
    status = HETCOMM_OUT_OF_MEMORY;
  } catch (...) {
    status = HETCOMM_DEVICE_LOST;
  }
  of(device).note_failure(std::move(why));
  return status;
}

hetcomm_status_t no_room_for(void* device, uint64_t size) {
  return guarded(device, [&]() -> hetcomm_status_t {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "nothing has room for ", size, " bytes");
  });
}

const char* name(void* device) { return of(device).name(); }
void destroy(void* device) { delete &of(device); }

hetcomm_status_t allocate(void* device, uint64_t size, void** out_address) {
  if (out_address == nullptr) return HETCOMM_INVALID_ARGUMENT;
  if (size > kMaxBytes) return no_room_for(device, size);
  return guarded(device, [&] {
    *out_address = of(device).allocate(size);
    return HETCOMM_OK;
  });
}

void release(void* device, void* address) { of(device).drop(address); }

hetcomm_status_t find(void* device, const void* address, void** out_base, uint64_t* out_size) {
  if (out_base == nullptr || out_size == nullptr) return HETCOMM_INVALID_ARGUMENT;
  const at::Tensor bytes = of(device).bytes(address);
  if (!bytes.defined()) return HETCOMM_NOT_FOUND;
  *out_base = const_cast<void*>(address);
  *out_size = static_cast<uint64_t>(bytes.numel());
  return HETCOMM_OK;
}

hetcomm_status_t retain(void* device, void* address, uint64_t size) {
  const at::Tensor bytes = of(device).bytes(address);
  if (!bytes.defined()) return HETCOMM_INVALID_ARGUMENT;
  return static_cast<uint64_t>(bytes.numel()) == size ? HETCOMM_OK : HETCOMM_OUT_OF_RANGE;
}

hetcomm_status_t stream_create(void* device, void** out_stream) {
  if (out_stream == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return guarded(device, [&] {
    *out_stream = new CopyStream{.stream = make_stream(of(device).device()), .latest = nullptr};
    return HETCOMM_OK;
  });
}

void stream_destroy(void* device, void* stream) {
  if (stream == nullptr) return;
  static_cast<void>(guarded(device, [&] {
    const CopyStream& own = copies_of(stream);
    if (own.copies) {
      c10::impl::VirtualGuardImpl(own.stream.device_type()).synchronizeStream(own.stream);
    } else if (own.latest != nullptr) {
      own.latest->synchronize();
    }
    return HETCOMM_OK;
  }));
  delete &copies_of(stream);
}

// Calls |call| with |stream| as the current stream, in inference mode. On a synchronous device,
// calls it in the caller's current stream and waits for the work.
template <typename Call>
hetcomm_status_t in_stream(void* device, void* stream, Call&& call) {
  return guarded(device, [&] {
    // Inference tensors can be written only in inference mode. Other tensors can be written there,
    // too.
    const c10::InferenceMode mode;
    if (of(device).is_synchronous()) {
      call();
      finish(current_stream(of(device).device()));
      return HETCOMM_OK;
    }
    const c10::StreamGuard there(copies_of(stream).stream);
    call();
    // Not set after a failed copy, since stream_destroy() must not wait for a user's work then.
    copies_of(stream).copies = true;
    return HETCOMM_OK;
  });
}

// Copies a range by calling copy(part, host) with tensors of the range and of |host|.
template <typename Copy>
hetcomm_status_t copy_range(void* device, void* stream, void* host, const void* address,
                            uint64_t offset, uint64_t size, Copy&& copy) {
  const at::Tensor bytes = of(device).bytes(address);
  if (!bytes.defined() || stream == nullptr || (host == nullptr && size != 0)) {
    return HETCOMM_INVALID_ARGUMENT;
  }
  if (!fits(bytes, offset, size)) return HETCOMM_OUT_OF_RANGE;
  if (size == 0) return HETCOMM_OK;
  return in_stream(device, stream, [&] {
    const auto length = static_cast<int64_t>(size);
    copy(bytes.narrow(0, static_cast<int64_t>(offset), length),
         at::from_blob(host, {length}, at::TensorOptions().dtype(at::kByte)));
  });
}

hetcomm_status_t copy_to_host(void* device, void* stream, void* host, const void* address,
                              uint64_t offset, uint64_t size) {
  return copy_range(device, stream, host, address, offset, size,
                    [](const at::Tensor& part, const at::Tensor& there) {
                      there.copy_(part, /*non_blocking=*/true);
                    });
}

hetcomm_status_t copy_from_host(void* device, void* stream, void* address, uint64_t offset,
                                const void* host, uint64_t size) {
  return copy_range(device, stream, const_cast<void*>(host), address, offset, size,
                    [](const at::Tensor& part, const at::Tensor& there) {
                      part.copy_(there, /*non_blocking=*/true);
                    });
}

// Copies rows by calling copy(rows, host) with tensors of the rows and of |host|.
template <typename Copy>
hetcomm_status_t copy_rows(void* device, void* stream, void* host, const void* address,
                           const Rows* rows, Copy&& copy) {
  const at::Tensor bytes = of(device).bytes(address);
  if (!bytes.defined() || rows == nullptr || stream == nullptr) return HETCOMM_INVALID_ARGUMENT;
  if (!fits(bytes, *rows)) return HETCOMM_OUT_OF_RANGE;
  if (rows->row_bytes == 0 || rows->extents[0] == 0 || rows->extents[1] == 0) return HETCOMM_OK;
  if (host == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return in_stream(device, stream, [&] {
    Width width;
    width.divide(*rows);
    width.divide(bytes);
    width.divide(reinterpret_cast<uintptr_t>(host));
    copy(width.rows_of(bytes, *rows),
         at::from_blob(host, width.sizes_of(*rows), at::TensorOptions().dtype(width.type())));
  });
}

// Calls copy(offset, host) for each row in turn, until a call fails.
template <typename Copy>
hetcomm_status_t for_each_row(const Rows& rows, std::byte* host, Copy&& copy) {
  hetcomm_status_t status = HETCOMM_OK;
  for (uint64_t i = 0; i < rows.extents[0] && status == HETCOMM_OK; ++i) {
    for (uint64_t j = 0; j < rows.extents[1] && status == HETCOMM_OK; ++j) {
      status = copy(rows.offset + i * rows.strides[0] + j * rows.strides[1], host);
      host += rows.row_bytes;
    }
  }
  return status;
}

// Copies rows to the host. PyTorch gathers the rows on the device first. If there is not enough
// memory for that, copies row by row.
hetcomm_status_t copy_rows_to_host(void* device, void* stream, void* host, const void* address,
                                   const Rows* rows) {
  const hetcomm_status_t status = copy_rows(device, stream, host, address, rows,
                                            [](const at::Tensor& there, const at::Tensor& packed) {
                                              packed.copy_(there, /*non_blocking=*/true);
                                            });
  if (status != HETCOMM_OUT_OF_MEMORY) return status;
  return for_each_row(*rows, static_cast<std::byte*>(host), [&](uint64_t offset, std::byte* to) {
    return copy_to_host(device, stream, to, address, offset, rows->row_bytes);
  });
}

hetcomm_status_t copy_rows_from_host(void* device, void* stream, void* address, const Rows* rows,
                                     const void* host) {
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(host));
  const hetcomm_status_t status = copy_rows(device, stream, bytes, address, rows,
                                            [](const at::Tensor& there, const at::Tensor& packed) {
                                              there.copy_(packed, /*non_blocking=*/true);
                                            });
  if (status != HETCOMM_OUT_OF_MEMORY) return status;
  return for_each_row(*rows, bytes, [&](uint64_t offset, const std::byte* from) {
    return copy_from_host(device, stream, address, offset, from, rows->row_bytes);
  });
}

// Copies rows within a device. Returns UNSUPPORTED for two devices, because PyTorch's copy would
// also wait for the other device's current stream.
hetcomm_status_t copy_rows_between(void* device, void* stream, const void* from,
                                   const Rows* from_rows, void* to_device, void* to,
                                   const Rows* to_rows) {
  if (to_device == nullptr || from_rows == nullptr || to_rows == nullptr ||
      !have_one_shape(*from_rows, *to_rows)) {
    return HETCOMM_INVALID_ARGUMENT;
  }
  if (to_device != device) return HETCOMM_UNSUPPORTED;
  const at::Tensor source = of(device).bytes(from);
  const at::Tensor target = of(device).bytes(to);
  if (!source.defined() || !target.defined()) return HETCOMM_INVALID_ARGUMENT;
  if (!fits(source, *from_rows) || !fits(target, *to_rows)) return HETCOMM_OUT_OF_RANGE;
  if (from_rows->row_bytes == 0 || from_rows->extents[0] == 0 || from_rows->extents[1] == 0) {
    return HETCOMM_OK;
  }
  if (stream == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return in_stream(device, stream, [&] {
    Width width;
    for (const Rows* rows : {from_rows, to_rows}) width.divide(*rows);
    for (const at::Tensor* bytes : {&source, &target}) width.divide(*bytes);
    width.rows_of(target, *to_rows).copy_(width.rows_of(source, *from_rows), /*non_blocking=*/true);
  });
}

hetcomm_status_t reduce(void* device, void* stream, const hetcomm_device_reduction_t* what) {
  if (what == nullptr || !is_well_formed(*what) || (stream == nullptr && what->elements != 0)) {
    return HETCOMM_INVALID_ARGUMENT;
  }
  struct Side {
    const void* address;
    uint64_t offset;
    int32_t datatype;
  };
  const std::array<Side, 3> sides = {Side{what->first, what->first_offset, what->first_datatype},
                                     Side{what->second, what->second_offset, what->datatype},
                                     Side{what->out, what->out_offset, what->out_datatype}};
  return guarded(device, [&]() -> hetcomm_status_t {
    const c10::InferenceMode mode;
    std::array<at::Tensor, 3> tensors;
    for (size_t i = 0; i < sides.size(); ++i) {
      const auto& [address, offset, datatype] = sides[i];
      const at::Tensor bytes = of(device).bytes(address);
      if (!bytes.defined()) return HETCOMM_INVALID_ARGUMENT;
      const at::ScalarType type = scalar_type_of(datatype);
      if (type == at::ScalarType::Undefined) return HETCOMM_UNSUPPORTED;
      uint64_t size = 0;
      if (__builtin_mul_overflow(what->elements, c10::elementSize(type), &size) ||
          !fits(bytes, offset, size)) {
        return HETCOMM_OUT_OF_RANGE;
      }
      const std::optional<at::Tensor> own = elements_of(bytes, offset, what->elements, type);
      if (!own) return HETCOMM_UNSUPPORTED;
      tensors[i] = *own;
    }
    if (!of(device).reductions().are_exact(*what)) return HETCOMM_UNSUPPORTED;
    if (what->elements == 0) return HETCOMM_OK;
    return in_stream(device, stream,
                     [&] { Reductions::reduce(*what, tensors[0], tensors[1], tensors[2]); });
  });
}

Event record(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

hetcomm_status_t event_record(void* device, void* stream, void** out_event) {
  if (stream == nullptr || out_event == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return guarded(device, [&] {
    CopyStream& own = copies_of(stream);
    auto event = std::make_unique<Event>(record(own.stream));
    own.latest = *event;
    own.copies = false;
    *out_event = event.release();
    return HETCOMM_OK;
  });
}

hetcomm_status_t event_query(void* device, void* event) {
  if (event == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return guarded(device, [&] { return event_of(event)->query() ? HETCOMM_OK : HETCOMM_PENDING; });
}

hetcomm_status_t event_wait(void* device, void* event) {
  if (event == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return guarded(device, [&] {
    event_of(event)->synchronize();
    return HETCOMM_OK;
  });
}

void event_release(void*, void* event) {
  if (event != nullptr) delete &event_of(event);
}

hetcomm_status_t event_notify(void* device, void* event, int file) {
  if (event == nullptr || file < 0) return HETCOMM_INVALID_ARGUMENT;
  return guarded(device, [&] {
    of(device).watch().add(event_of(event), file);
    return HETCOMM_OK;
  });
}

hetcomm_status_t allocate_host(void* device, uint64_t size, void** out_host) {
  if (size == 0 || out_host == nullptr) return HETCOMM_INVALID_ARGUMENT;
  if (size > kMaxBytes) return no_room_for(device, size);
  return guarded(device, [&] {
    void* const host = of(device).allocate_host(size);
    TORCH_CHECK_WITH(OutOfMemoryError, host != nullptr, "no pinned memory of ", size, " bytes");
    *out_host = host;
    return HETCOMM_OK;
  });
}

void free_host(void* device, void* host) { of(device).free_host(host); }

hetcomm_status_t user_stream_open(void* device, void* native, void** out_user_stream) {
  const c10::Stream* const stream = of(device).stream(native);
  if (stream == nullptr || out_user_stream == nullptr) return HETCOMM_INVALID_ARGUMENT;
  // The device keeps the stream as long as it exists, so there is nothing to open.
  *out_user_stream = const_cast<c10::Stream*>(stream);
  return HETCOMM_OK;
}

void user_stream_close(void*, void*) {}

hetcomm_status_t user_stream_record(void* device, void* user_stream, void** out_event) {
  if (user_stream == nullptr || out_event == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return guarded(device, [&]() -> hetcomm_status_t {
    if (is_captured(stream_of(user_stream))) return HETCOMM_UNSUPPORTED;
    *out_event = new Event(record(stream_of(user_stream)));
    return HETCOMM_OK;
  });
}

hetcomm_status_t stream_native(void* device, void* stream, void** out_native) {
  if (stream == nullptr || out_native == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return guarded(device, [&] {
    *out_native = of(device).name_stream(copies_of(stream).stream);
    return HETCOMM_OK;
  });
}

void error_text(void* device, char* text, uint64_t size) {
  if (text == nullptr || size == 0) return;
  try {
    text[of(device).failure().copy(text, size - 1)] = '\0';
  } catch (const std::exception&) {
    text[0] = '\0';  // no memory for the text
  }
}

// Returns a table without streams, for synchronous devices. Their copies are complete when the call
// returns, and the host performs the reductions.
hetcomm_device_table_t without_streams(hetcomm_device_table_t all) {
  all.stream_create = nullptr;
  all.stream_destroy = nullptr;
  all.event_record = nullptr;
  all.event_query = nullptr;
  all.event_wait = nullptr;
  all.event_release = nullptr;
  all.event_notify = nullptr;
  all.user_stream_open = nullptr;
  all.user_stream_close = nullptr;
  all.user_stream_record = nullptr;
  all.stream_native = nullptr;
  all.reduce = nullptr;
  return all;
}

const hetcomm_device_table_t& table(bool synchronous) {
  static const hetcomm_device_table_t entries = [] {
    hetcomm_device_table_t all{};
    all.struct_size = sizeof(all);
    all.kind = "torch";
    all.destroy = destroy;
    all.name = name;
    all.allocate = allocate;
    all.free = release;
    all.find = find;
    all.stream_create = stream_create;
    all.stream_destroy = stream_destroy;
    all.copy_to_host = copy_to_host;
    all.copy_from_host = copy_from_host;
    all.copy_rows_to_host = copy_rows_to_host;
    all.copy_rows_from_host = copy_rows_from_host;
    all.copy_rows_between = copy_rows_between;
    all.event_record = event_record;
    all.event_query = event_query;
    all.event_wait = event_wait;
    all.event_release = event_release;
    all.retain = retain;
    all.release = release;
    all.allocate_host = allocate_host;
    all.free_host = free_host;
    all.event_notify = event_notify;
    all.user_stream_open = user_stream_open;
    all.user_stream_close = user_stream_close;
    all.user_stream_record = user_stream_record;
    all.stream_native = stream_native;
    all.error_text = error_text;
    all.reduce = reduce;
    return all;
  }();
  static const hetcomm_device_table_t entries_of_synchronous = without_streams(entries);
  return synchronous ? entries_of_synchronous : entries;
}

}  // namespace

bool is_movable(c10::Device device) {
  return !device.is_cpu() && !device.is_meta() && c10::impl::hasDeviceGuardImpl(device.type());
}

hetcomm_device_t make_device(c10::Device device) {
  auto state = std::make_unique<DeviceState>(device);
  const hetcomm_device_table_t& entries = table(state->is_synchronous());
  return {&entries, state.release()};
}

bool is_synchronous(void* instance) { return of(instance).is_synchronous(); }

void* name_memory(void* instance, const at::Tensor& packed) {
  // Writes through variable_data() leave the version counter of |packed| unchanged.
  return of(instance).add(packed.variable_data().view({-1}).view(at::kByte));
}

void drop_memory(void* instance, void* memory) { of(instance).drop(memory); }

at::Tensor named_memory(void* instance, const void* name) {
  const at::Tensor bytes = of(instance).bytes(name);
  // The result has a separate version counter, because autograd would regard writes to one part as
  // writes to all others.
  return bytes.defined() ? bytes.variable_data() : bytes;
}

void* name_stream(void* instance, const c10::Stream& stream) {
  return of(instance).name_stream(stream);
}

}  // namespace hetcomm::torch_backend
