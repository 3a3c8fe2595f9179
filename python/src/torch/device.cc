#include "python/src/torch/device.h"

#include <ATen/Context.h>
#include <array>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "python/src/torch/event_watch.h"
#include "python/src/torch/reductions.h"

namespace hetcomm::torch_backend {
namespace {

using Guard = c10::impl::VirtualGuardImpl;

class TorchDevice {
 public:
  explicit TorchDevice(c10::Device device)
      : device_(device), name_("torch " + device.str()), reductions_(device) {}

  c10::Device device() const { return device_; }
  const char* name() const { return name_.c_str(); }
  Guard guard() const { return Guard(device_.type()); }

  TensorMemory* add(at::Tensor bytes) {
    auto memory = std::make_unique<TensorMemory>();
    memory->bytes = std::move(bytes);
    const std::scoped_lock lock(mutex_);
    memories_.insert(memory.get());
    return memory.release();
  }
  void drop(TensorMemory* memory) {
    {
      const std::scoped_lock lock(mutex_);
      if (memories_.erase(memory) == 0) return;
    }
    delete memory;
  }
  // The size of what |address| names; none: it names nothing.
  std::optional<uint64_t> size_of(const void* address) {
    const std::scoped_lock lock(mutex_);
    const auto found = memories_.find(static_cast<const TensorMemory*>(address));
    if (found == memories_.end()) return std::nullopt;
    return static_cast<uint64_t>((*found)->bytes.numel());
  }

  void note_failure(std::string text) {
    const std::scoped_lock lock(mutex_);
    failure_ = std::move(text);
  }
  std::string failure() {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }

  EventWatch& watch() { return watch_; }
  Reductions& reductions() { return reductions_; }

  void* allocate_host(size_t size) {
    const c10::DeviceGuard here(device_);
    c10::DataPtr data =
        at::globalContext().getPinnedMemoryAllocator(device_.type())->allocate(size);
    void* const host = data.get();
    const std::scoped_lock lock(mutex_);
    host_memory_.emplace(host, std::move(data));
    return host;
  }
  void free_host(void* host) {
    c10::DataPtr data;  // goes after the lock
    const std::scoped_lock lock(mutex_);
    const auto found = host_memory_.find(host);
    data = std::move(found->second);
    host_memory_.erase(found);
  }

 private:
  const c10::Device device_;
  const std::string name_;
  std::mutex mutex_;  // of what follows
  std::set<const TensorMemory*> memories_;
  std::map<void*, c10::DataPtr> host_memory_;
  std::string failure_;  // what torch said of the last one
  EventWatch watch_;
  Reductions reductions_;
};

TorchDevice& of(void* device) { return *static_cast<TorchDevice*>(device); }
const c10::Stream& stream_of(void* stream) { return *static_cast<const c10::Stream*>(stream); }
// An event is shared with who watches it.
using Event = std::shared_ptr<const c10::Event>;

// A stream of the library's. Users may have the same stream of torch's, and put into it what waits for
// the library: only copies are waited for.
struct CopyStream {
  c10::Stream stream;
  Event latest;         // recorded last
  bool copies = false;  // since then
};
CopyStream& copies_of(void* stream) { return *static_cast<CopyStream*>(stream); }

const Event& event_of(void* event) { return *static_cast<const Event*>(event); }

// Returns what |call| returns, a function without arguments. Exceptions of torch mean that |device| has
// failed.
template <typename Call>
hetcomm_status_t guarded(void* device, Call&& call) noexcept {
  hetcomm_status_t status = HETCOMM_DEVICE_LOST;
  std::string why;  // "": nothing is known beside the status
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
  } catch (const std::exception&) {
    status = HETCOMM_DEVICE_LOST;
  }
  of(device).note_failure(std::move(why));
  return status;
}

const char* name(void* device) { return of(device).name(); }
void destroy(void* device) { delete &of(device); }

hetcomm_status_t allocate(void* device, uint64_t size, void** out_address) {
  return guarded(device, [&] {
    const c10::InferenceMode mode(false);
    const auto options = at::TensorOptions().dtype(at::kByte).device(of(device).device());
    *out_address = of(device).add(at::empty({static_cast<int64_t>(size)}, options));
    return HETCOMM_OK;
  });
}

void release(void* device, void* address) { of(device).drop(static_cast<TensorMemory*>(address)); }

hetcomm_status_t find(void* device, const void* address, void** out_base, uint64_t* out_size) {
  const std::optional<uint64_t> size = of(device).size_of(address);
  if (!size) return HETCOMM_NOT_FOUND;
  *out_base = const_cast<void*>(address);
  *out_size = *size;
  return HETCOMM_OK;
}

hetcomm_status_t retain(void* device, void* address, uint64_t size) {
  const std::optional<uint64_t> known = of(device).size_of(address);
  if (!known) return HETCOMM_INVALID_ARGUMENT;
  return *known == size ? HETCOMM_OK : HETCOMM_OUT_OF_RANGE;
}

hetcomm_status_t stream_create(void* device, void** out_stream) {
  return guarded(device, [&] {
    *out_stream = new CopyStream{.stream = make_stream(of(device).device()), .latest = nullptr};
    return HETCOMM_OK;
  });
}

void stream_destroy(void* device, void* stream) {
  static_cast<void>(guarded(device, [&] {
    const CopyStream& own = copies_of(stream);
    if (own.copies) {
      of(device).guard().synchronizeStream(own.stream);
    } else if (own.latest != nullptr) {
      own.latest->synchronize();
    }
    return HETCOMM_OK;
  }));
  delete &copies_of(stream);
}

// Copies in |stream| by |copy(part, host)|, which are tensors of the two ranges.
template <typename Copy>
hetcomm_status_t copy_range(void* device, void* stream, void* host, const void* address,
                            uint64_t offset, uint64_t size, Copy&& copy) {
  return guarded(device, [&] {
    // Tensors of that mode are written in it alone, and others in it as well.
    const c10::InferenceMode mode;
    const c10::StreamGuard there(copies_of(stream).stream);
    const at::Tensor& bytes = static_cast<const TensorMemory*>(address)->bytes;
    const auto length = static_cast<int64_t>(size);
    copy(bytes.narrow(0, static_cast<int64_t>(offset), length),
         at::from_blob(host, {length}, at::TensorOptions().dtype(at::kByte)));
    copies_of(stream).copies = true;
    return HETCOMM_OK;
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

using Rows = hetcomm_device_rows_t;

// The largest element, up to 8 bytes, of which everything is a multiple: kernels copy elements.
class Width {
 public:
  void divide(uint64_t number) {
    while (number % width_ != 0) width_ /= 2;
  }
  void divide(const Rows& rows) {
    divide(rows.offset);
    divide(rows.row_bytes);
    for (size_t d = 0; d < 2; ++d) {
      if (rows.extents[d] > 1) divide(rows.strides[d]);
    }
  }
  // Its elements are aligned, in its storage and in memory.
  void divide(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return divide(uint64_t{1});
    divide(static_cast<uint64_t>(tensor.storage_offset()));
    divide(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()));
  }
  int64_t bytes() const { return static_cast<int64_t>(width_); }
  at::ScalarType type() const {
    return width_ == 8 ? at::kLong : width_ == 4 ? at::kInt : width_ == 2 ? at::kShort : at::kByte;
  }

 private:
  uint64_t width_ = 8;
};

std::array<int64_t, 3> sizes_of(const Rows& rows, int64_t width) {
  return {static_cast<int64_t>(rows.extents[0]), static_cast<int64_t>(rows.extents[1]),
          static_cast<int64_t>(rows.row_bytes) / width};
}

// The rows of |bytes| as a tensor.
at::Tensor rows_of(const at::Tensor& bytes, const Rows& rows, const Width& width) {
  const int64_t size = width.bytes();
  const at::Tensor all = bytes.narrow(0, 0, bytes.numel() / size * size).view(width.type());
  const std::array<int64_t, 3> strides = {static_cast<int64_t>(rows.strides[0]) / size,
                                          static_cast<int64_t>(rows.strides[1]) / size, 1};
  return all.as_strided(sizes_of(rows, size), strides,
                        all.storage_offset() + static_cast<int64_t>(rows.offset) / size);
}

const at::Tensor& bytes_of(const void* address) {
  return static_cast<const TensorMemory*>(address)->bytes;
}

// Whether all rows lie in |bytes|.
bool fits(const at::Tensor& bytes, const Rows& rows) {
  if (rows.row_bytes == 0 || rows.extents[0] == 0 || rows.extents[1] == 0) return true;
  uint64_t end = 0;
  if (__builtin_add_overflow(rows.offset, rows.row_bytes, &end)) return false;
  for (size_t d = 0; d < 2; ++d) {
    uint64_t distance = 0;
    if (__builtin_mul_overflow(rows.extents[d] - 1, rows.strides[d], &distance) ||
        __builtin_add_overflow(end, distance, &end)) {
      return false;
    }
  }
  return end <= static_cast<uint64_t>(bytes.numel());
}

// Copies in |stream| by |copy(rows, host)|, which are tensors of both sides.
template <typename Copy>
hetcomm_status_t copy_rows(void* device, void* stream, void* host, const void* address,
                           const Rows& rows, Copy&& copy) {
  if (!fits(bytes_of(address), rows)) return HETCOMM_OUT_OF_RANGE;
  return guarded(device, [&] {
    const c10::InferenceMode mode;
    const c10::StreamGuard there(copies_of(stream).stream);
    Width width;
    width.divide(rows);
    width.divide(bytes_of(address));
    width.divide(reinterpret_cast<uintptr_t>(host));
    copy(rows_of(bytes_of(address), rows, width),
         at::from_blob(host, sizes_of(rows, width.bytes()),
                       at::TensorOptions().dtype(width.type())));
    copies_of(stream).copies = true;
    return HETCOMM_OK;
  });
}

// Copies row by row by |copy(offset, host)|, until one fails.
template <typename Copy>
hetcomm_status_t for_each_row(const Rows& rows, std::byte* host, Copy&& copy) {
  hetcomm_status_t status = HETCOMM_OK;
  for (uint64_t i = 0; i < rows.extents[0]; ++i) {
    for (uint64_t j = 0; j < rows.extents[1] && status == HETCOMM_OK; ++j) {
      status = copy(rows.offset + i * rows.strides[0] + j * rows.strides[1], host);
      host += rows.row_bytes;
    }
  }
  return status;
}

// Torch gathers the rows on the device first, where there is room for them.
hetcomm_status_t copy_rows_to_host(void* device, void* stream, void* host, const void* address,
                                   const Rows* rows) {
  const hetcomm_status_t status = copy_rows(device, stream, host, address, *rows,
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
  const hetcomm_status_t status = copy_rows(device, stream, bytes, address, *rows,
                                            [](const at::Tensor& there, const at::Tensor& packed) {
                                              there.copy_(packed, /*non_blocking=*/true);
                                            });
  if (status != HETCOMM_OUT_OF_MEMORY) return status;
  return for_each_row(*rows, bytes, [&](uint64_t offset, const std::byte* from) {
    return copy_from_host(device, stream, address, offset, from, rows->row_bytes);
  });
}

// Copies to another device would also wait for what that one's current stream holds.
hetcomm_status_t copy_rows_between(void* device, void* stream, const void* from,
                                   const Rows* from_rows, void* to_device, void* to,
                                   const Rows* to_rows) {
  if (to_device != device) return HETCOMM_UNSUPPORTED;
  if (from_rows->row_bytes != to_rows->row_bytes || from_rows->extents[0] != to_rows->extents[0] ||
      from_rows->extents[1] != to_rows->extents[1]) {
    return HETCOMM_INVALID_ARGUMENT;
  }
  if (!fits(bytes_of(from), *from_rows) || !fits(bytes_of(to), *to_rows)) {
    return HETCOMM_OUT_OF_RANGE;
  }
  if (stream == nullptr) return HETCOMM_OK;  // rows of no bytes
  return guarded(device, [&] {
    const c10::InferenceMode mode;
    const c10::StreamGuard there(copies_of(stream).stream);
    Width width;
    for (const Rows* rows : {from_rows, to_rows}) width.divide(*rows);
    for (const void* address : {from, static_cast<const void*>(to)}) {
      width.divide(bytes_of(address));
    }
    rows_of(bytes_of(to), *to_rows, width)
        .copy_(rows_of(bytes_of(from), *from_rows, width), /*non_blocking=*/true);
    copies_of(stream).copies = true;
    return HETCOMM_OK;
  });
}

// |elements| of |bytes| from |offset| on; none: they are not aligned for their type, which has |size|.
std::optional<at::Tensor> elements_of(const at::Tensor& bytes, uint64_t offset, uint64_t elements,
                                      at::ScalarType type) {
  const uint64_t size = c10::elementSize(type);
  if (!bytes.has_storage()) return std::nullopt;
  const auto before = static_cast<uint64_t>(bytes.storage_offset());
  if ((before + offset) % size != 0 ||
      (reinterpret_cast<uintptr_t>(bytes.const_data_ptr()) + offset) % size != 0) {
    return std::nullopt;
  }
  return bytes.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(elements * size))
      .view(type);
}

// Whether |elements| of |type| from |offset| on lie in |bytes|.
bool fits(const at::Tensor& bytes, uint64_t offset, uint64_t elements, at::ScalarType type) {
  uint64_t end = 0;
  return !__builtin_mul_overflow(elements, c10::elementSize(type), &end) &&
         !__builtin_add_overflow(end, offset, &end) && end <= static_cast<uint64_t>(bytes.numel());
}

hetcomm_status_t reduce(void* device, void* stream, const hetcomm_device_reduction_t* what) {
  const std::array<at::ScalarType, 3> types = {scalar_type_of(what->first_datatype),
                                               scalar_type_of(what->datatype),
                                               scalar_type_of(what->out_datatype)};
  const std::array<const void*, 3> addresses = {what->first, what->second, what->out};
  const std::array<uint64_t, 3> offsets = {what->first_offset, what->second_offset,
                                           what->out_offset};
  for (const at::ScalarType type : types) {
    if (type == at::ScalarType::Undefined) return HETCOMM_UNSUPPORTED;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (!fits(bytes_of(addresses[i]), offsets[i], what->elements, types[i])) {
      return HETCOMM_OUT_OF_RANGE;
    }
  }
  return guarded(device, [&]() -> hetcomm_status_t {
    const c10::InferenceMode mode;
    std::array<at::Tensor, 3> tensors;
    for (size_t i = 0; i < types.size(); ++i) {
      const std::optional<at::Tensor> own =
          elements_of(bytes_of(addresses[i]), offsets[i], what->elements, types[i]);
      if (!own) return HETCOMM_UNSUPPORTED;
      tensors[i] = *own;
    }
    if (!of(device).reductions().are_exact(*what)) return HETCOMM_UNSUPPORTED;
    if (what->elements == 0) return HETCOMM_OK;
    const c10::StreamGuard there(copies_of(stream).stream);
    Reductions::reduce(*what, tensors[0], tensors[1], tensors[2]);
    copies_of(stream).copies = true;
    return HETCOMM_OK;
  });
}

Event record(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

hetcomm_status_t event_record(void* device, void* stream, void** out_event) {
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
  return guarded(device, [&] { return event_of(event)->query() ? HETCOMM_OK : HETCOMM_PENDING; });
}

hetcomm_status_t event_wait(void* device, void* event) {
  return guarded(device, [&] {
    event_of(event)->synchronize();
    return HETCOMM_OK;
  });
}

void event_release(void*, void* event) { delete &event_of(event); }

hetcomm_status_t event_notify(void* device, void* event, int file) {
  return guarded(device, [&] {
    of(device).watch().add(event_of(event), file);
    return HETCOMM_OK;
  });
}

hetcomm_status_t allocate_host(void* device, uint64_t size, void** out_host) {
  return guarded(device, [&] {
    void* const host = of(device).allocate_host(size);
    TORCH_CHECK_WITH(OutOfMemoryError, host != nullptr, "no pinned memory of ", size, " bytes");
    *out_host = host;
    return HETCOMM_OK;
  });
}

void free_host(void* device, void* host) { of(device).free_host(host); }

hetcomm_status_t user_stream_open(void* device, void* native, void** out_user_stream) {
  return guarded(device, [&] {
    if (stream_of(native).device() != of(device).device()) {
      return hetcomm_status_t{HETCOMM_INVALID_ARGUMENT};
    }
    *out_user_stream = new c10::Stream(stream_of(native));
    return hetcomm_status_t{HETCOMM_OK};
  });
}

void user_stream_close(void*, void* user_stream) { delete &stream_of(user_stream); }

hetcomm_status_t user_stream_record(void* device, void* user_stream, void** out_event) {
  return guarded(device, [&] {
    if (is_captured(stream_of(user_stream))) {
      return hetcomm_status_t{HETCOMM_UNSUPPORTED};
    }
    *out_event = new Event(record(stream_of(user_stream)));
    return hetcomm_status_t{HETCOMM_OK};
  });
}

hetcomm_status_t stream_native(void*, void* stream, void** out_native) {
  *out_native = &copies_of(stream).stream;
  return HETCOMM_OK;
}

void error_text(void* device, char* text, uint64_t size) {
  try {
    text[of(device).failure().copy(text, size - 1)] = '\0';
  } catch (const std::exception&) {
    text[0] = '\0';  // no memory for the text
  }
}

// From torch 2.13 on a guard tells whether a stream is captured into a graph.
template <typename AnyGuard>
bool guard_knows_captured(const AnyGuard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

const hetcomm_device_table_t& table() {
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
  return entries;
}

}  // namespace

bool is_movable(c10::Device device) {
  return !device.is_cpu() && !device.is_meta() && c10::impl::hasDeviceGuardImpl(device.type());
}

hetcomm_device_t make_device(c10::Device device) { return {&table(), new TorchDevice(device)}; }

TensorMemory* name_memory(void* instance, const at::Tensor& packed) {
  // The version counter of the tensor itself stays as it is.
  return of(instance).add(packed.variable_data().view({-1}).view(at::kByte));
}

void drop_memory(void* instance, TensorMemory* memory) { of(instance).drop(memory); }

c10::Stream make_stream(c10::Device device) {
  constexpr int kHighPriority = -1;
  const Guard guard(device.type());
  try {
    return guard.getNewStream(device, kHighPriority);
  } catch (const c10::Error&) {
    return guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
}

bool is_captured(const c10::Stream& stream) {
  return guard_knows_captured(Guard(stream.device_type()), stream);
}

}  // namespace hetcomm::torch_backend
