#include "devices/sim/device.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include <fmt/core.h>

#include "devices/registry.h"
#include "src/reduce/reduce.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

std::string describe(std::string_view kind, const SimOptions& options) {
  const double gib = 1u << 30;
  const std::string bandwidth =
      options.bandwidth_bytes_per_s == 0
          ? "unlimited"
          : fmt::format("{:.4g} GiB/s", static_cast<double>(options.bandwidth_bytes_per_s) / gib);
  return fmt::format("{}: {}, {:.4g} us, {:.4g} GiB", kind, bandwidth,
                     static_cast<double>(options.latency_ns) / 1e3,
                     static_cast<double>(options.memory_bytes) / gib);
}

}  // namespace

SimDevice::SimDevice(std::string_view kind, const SimOptions& options,
                     std::unique_ptr<SimMemory> memory, bool pins_host)
    : name_(describe(kind, options)),
      pci_address_(options.pci_address),
      numa_node_(options.numa_node == SimOptions::kNoNode ? -1
                                                          : static_cast<int>(options.numa_node)),
      unified_(options.unified != 0),
      reads_early_(pins_host && !unified_),
      latency_ns_(options.latency_ns),
      memory_(std::move(memory)),
      to_device_(options.bandwidth_bytes_per_s),
      to_host_(options.bandwidth_bytes_per_s) {}

Code SimDevice::stream_create(void** out_stream) {
  if (out_stream == nullptr) return Code::kInvalidArgument;
  Result<std::unique_ptr<SimStream>> stream = SimStream::start(latency_ns_);
  if (!stream.ok()) return stream.status().code();
  std::lock_guard lock(mutex_);
  streams_.push_back(std::move(stream).value());
  *out_stream = streams_.back().get();
  return Code::kOk;
}

void SimDevice::stream_destroy(void* stream) {
  std::unique_ptr<SimStream> leaving;  // destroyed (which blocks) after the lock is released
  std::lock_guard lock(mutex_);
  const auto at = std::find_if(streams_.begin(), streams_.end(),
                               [&](const auto& own) { return own.get() == stream; });
  if (at == streams_.end()) return;
  leaving = std::move(*at);
  streams_.erase(at);
  std::erase(user_streams_, leaving.get());
}

Code SimDevice::submit(void* stream, const void* address, const DeviceRows& rows, std::byte* host,
                       bool to_host) {
  uint64_t size = 0;
  if (!span_of(rows, &size)) return Code::kOutOfRange;
  if (stream == nullptr || (host == nullptr && size != 0)) return Code::kInvalidArgument;
  // In host memory the rows are contiguous.
  SimSide packed{.first = host, .strides = {rows.row_bytes * rows.extents[1], rows.row_bytes}};
  SimSide own{.strides = {rows.strides[0], rows.strides[1]}};
  const Code code = memory_->resolve(address, rows.offset, size, &own.first);
  if (code != Code::kOk) return code;
  std::shared_ptr<std::byte[]> early;
  const uint64_t bytes = rows.row_bytes * rows.extents[0] * rows.extents[1];
  if (!to_host && reads_early_ && bytes > 0 && !is_pinned(host, bytes)) {
    early = std::make_shared_for_overwrite<std::byte[]>(bytes);
    std::memcpy(early.get(), host, bytes);
    packed.first = early.get();
  }
  static_cast<SimStream*>(stream)->submit({.from = to_host ? own : packed,
                                           .to = to_host ? packed : own,
                                           .row_bytes = rows.row_bytes,
                                           .extents = {rows.extents[0], rows.extents[1]},
                                           .bus = to_host ? &to_host_ : &to_device_,
                                           .submitted_ns = now_ns(),
                                           .early = std::move(early)});
  return Code::kOk;
}

Code SimDevice::copy_rows_between(void* stream, const void* from, const DeviceRows* from_rows,
                                  SimDevice& to_device, void* to, const DeviceRows* to_rows) {
  if (from_rows == nullptr || to_rows == nullptr || !have_one_shape(*from_rows, *to_rows)) {
    return Code::kInvalidArgument;
  }
  uint64_t from_size = 0;
  uint64_t to_size = 0;
  if (!span_of(*from_rows, &from_size) || !span_of(*to_rows, &to_size)) return Code::kOutOfRange;
  if (stream == nullptr && from_size != 0) return Code::kInvalidArgument;
  SimSide source{.strides = {from_rows->strides[0], from_rows->strides[1]}};
  SimSide target{.strides = {to_rows->strides[0], to_rows->strides[1]}};
  Code code = memory_->resolve(from, from_rows->offset, from_size, &source.first);
  if (code == Code::kOk) {
    code = to_device.memory_->resolve(to, to_rows->offset, to_size, &target.first);
  }
  if (code != Code::kOk || from_size == 0) return code;
  static_cast<SimStream*>(stream)->submit(
      {.from = source,
       .to = target,
       .row_bytes = from_rows->row_bytes,
       .extents = {from_rows->extents[0], from_rows->extents[1]},
       .bus = &inside_,
       .submitted_ns = now_ns()});
  return Code::kOk;
}

namespace {

// Reduces on the CPU, with exactly the results of a reduction in host memory.
void run(const DeviceReduction& what, const std::byte* first, const std::byte* second,
         std::byte* out) {
  const auto type = static_cast<reduce::Type>(what.datatype);
  const auto op =
      what.divisor > 1 ? reduce::Operator::kAverage : static_cast<reduce::Operator>(what.reduction);
  const std::byte* const both[] = {first, second};
  if (!reduce::rounds(type, op)) {
    reduce::combine(type, op, out, both, 2, what.elements);
    return;
  }
  const reduce::Reduction reduction{.type = type, .op = op, .ranks = what.divisor};
  const bool continues = what.first_datatype != what.datatype;
  const auto* const before = continues ? reinterpret_cast<const float*>(first) : nullptr;
  const std::byte* const* const inputs = continues ? &both[1] : both;
  const size_t count = continues ? 1 : 2;
  if (what.out_datatype == what.datatype) {
    reduce::reduce(reduction, out, inputs, count, what.elements, before);
  } else {
    reduce::reduce_wide(reduction, reinterpret_cast<float*>(out), inputs, count, what.elements,
                        before);
  }
}

}  // namespace

Code SimDevice::reduce(void* stream, const DeviceReduction* what) {
  if (what == nullptr) return Code::kInvalidArgument;
  ReductionSizes sizes;
  Code code = sizes_of(*what, &sizes);
  if (code != Code::kOk) return code;
  if (!reduce::is_defined(static_cast<reduce::Type>(what->datatype),
                          static_cast<reduce::Operator>(what->reduction))) {
    return Code::kUnsupported;
  }
  if (stream == nullptr && what->elements != 0) return Code::kInvalidArgument;
  std::byte* first = nullptr;
  std::byte* second = nullptr;
  std::byte* out = nullptr;
  code = memory_->resolve(what->first, what->first_offset, sizes.first, &first);
  if (code == Code::kOk) {
    code = memory_->resolve(what->second, what->second_offset, sizes.second, &second);
  }
  if (code == Code::kOk) code = memory_->resolve(what->out, what->out_offset, sizes.out, &out);
  if (code != Code::kOk || what->elements == 0) return code;
  static_cast<SimStream*>(stream)->submit(
      [own = *what, first, second, out] { run(own, first, second, out); });
  return Code::kOk;
}

Code SimDevice::copy_to_host(void* stream, void* host, const void* address, uint64_t offset,
                             uint64_t size) {
  return submit(stream, address, one_row(offset, size), static_cast<std::byte*>(host), true);
}

Code SimDevice::copy_from_host(void* stream, void* address, uint64_t offset, const void* host,
                               uint64_t size) {
  // The copy only reads |host|, so the cast is safe.
  auto* const bytes = const_cast<std::byte*>(static_cast<const std::byte*>(host));
  return submit(stream, address, one_row(offset, size), bytes, false);
}

Code SimDevice::copy_rows_to_host(void* stream, void* host, const void* address,
                                  const DeviceRows* rows) {
  if (rows == nullptr) return Code::kInvalidArgument;
  return submit(stream, address, *rows, static_cast<std::byte*>(host), true);
}

Code SimDevice::copy_rows_from_host(void* stream, void* address, const DeviceRows* rows,
                                    const void* host) {
  if (rows == nullptr) return Code::kInvalidArgument;
  auto* const bytes = const_cast<std::byte*>(static_cast<const std::byte*>(host));
  return submit(stream, address, *rows, bytes, false);
}

Code SimDevice::event_record(void* stream, void** out_event) {
  if (stream == nullptr || out_event == nullptr) return Code::kInvalidArgument;
  auto* const source = static_cast<SimStream*>(stream);
  const uint64_t count = source->submitted();
  std::lock_guard lock(mutex_);
  if (free_events_.empty()) {
    SimEvent& fresh = events_.emplace_back();
    free_events_.reserve(events_.size() * 2);
    free_events_.push_back(&fresh);
  }
  SimEvent* const event = free_events_.back();
  free_events_.pop_back();
  event->timeline = source->timeline();
  event->count = count;
  *out_event = event;
  return Code::kOk;
}

Code SimDevice::event_query(void* event) {
  if (event == nullptr) return Code::kInvalidArgument;
  const auto* const own = static_cast<const SimEvent*>(event);
  if (own->timeline == nullptr) return Code::kStaleHandle;
  return own->timeline->reached(own->count) ? Code::kOk : Code::kPending;
}

Code SimDevice::event_wait(void* event) {
  if (event == nullptr) return Code::kInvalidArgument;
  const auto* const own = static_cast<const SimEvent*>(event);
  if (own->timeline == nullptr) return Code::kStaleHandle;
  own->timeline->wait_for(own->count);
  return Code::kOk;
}

Code SimDevice::event_notify(void* event, int file) {
  if (event == nullptr || file < 0) return Code::kInvalidArgument;
  const auto* const own = static_cast<const SimEvent*>(event);
  if (own->timeline == nullptr) return Code::kStaleHandle;
  own->timeline->notify(own->count, file);
  return Code::kOk;
}

void SimDevice::event_release(void* event) {
  if (event == nullptr) return;
  auto* const own = static_cast<SimEvent*>(event);
  std::lock_guard lock(mutex_);
  if (own->timeline == nullptr) return;
  own->timeline.reset();
  free_events_.push_back(own);
}

Code SimDevice::user_stream_open(void* native, void** out_user_stream) {
  if (out_user_stream == nullptr) return Code::kInvalidArgument;
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(streams_.begin(), streams_.end(),
                               [&](const auto& own) { return own.get() == native; });
  if (at == streams_.end()) return Code::kInvalidArgument;
  user_streams_.push_back(at->get());
  *out_user_stream = native;
  return Code::kOk;
}

void SimDevice::user_stream_close(void* user_stream) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find(user_streams_.begin(), user_streams_.end(), user_stream);
  if (at != user_streams_.end()) user_streams_.erase(at);
}

Code SimDevice::user_stream_hold(void* user_stream, void** out_hold) {
  if (user_stream == nullptr || out_hold == nullptr) return Code::kInvalidArgument;
  auto hold = std::make_unique<std::shared_ptr<SimHold>>(std::make_shared<SimHold>());
  static_cast<SimStream*>(user_stream)->submit([own = *hold] { own->wait(); });
  *out_hold = hold.release();
  return Code::kOk;
}

void SimDevice::synchronize() {
  std::vector<std::pair<std::shared_ptr<SimTimeline>, uint64_t>> work;
  {
    const std::lock_guard lock(mutex_);
    for (SimStream* const stream : user_streams_) {
      work.emplace_back(stream->timeline(), stream->submitted());
    }
  }
  for (const auto& [timeline, count] : work) timeline->wait_for(count);
}

Code SimDevice::pin_host(const void* host, uint64_t size) {
  if (host == nullptr || size == 0) return Code::kInvalidArgument;
  synchronize();
  std::lock_guard lock(mutex_);
  Pin& pin = pins_[static_cast<const std::byte*>(host)];
  pin.size = std::max(pin.size, size);
  ++pin.times;
  return Code::kOk;
}

bool SimDevice::is_pinned(const std::byte* host, uint64_t size) {
  std::lock_guard lock(mutex_);
  const auto after = pins_.upper_bound(host);
  if (after == pins_.begin()) return false;
  const auto& [start, pin] = *std::prev(after);
  const auto offset = static_cast<uint64_t>(host - start);
  return offset <= pin.size && size <= pin.size - offset;
}

void SimDevice::unpin_host(const void* host) {
  synchronize();
  std::lock_guard lock(mutex_);
  const auto pin = pins_.find(static_cast<const std::byte*>(host));
  if (pin != pins_.end() && --pin->second.times == 0) pins_.erase(pin);
}

size_t SimDevice::pinned_regions() {
  std::lock_guard lock(mutex_);
  return pins_.size();
}

namespace {

SimDevice& of(void* device) { return *static_cast<SimDevice*>(device); }

// Calls |call| and converts a failed allocation to a status, since exceptions must not leave the
// table's functions.
template <typename Call>
hetcomm_status_t guarded(Call&& call) {
  try {
    return static_cast<hetcomm_status_t>(call());
  } catch (const std::bad_alloc&) {
    return HETCOMM_OUT_OF_MEMORY;
  }
}

hetcomm_status_t allocate(void* device, uint64_t size_bytes, void** out_address) {
  if (out_address == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return guarded([&] { return of(device).memory().allocate(size_bytes, out_address); });
}

hetcomm_status_t find(void* device, const void* address, void** out_base, uint64_t* out_size) {
  if (out_base == nullptr || out_size == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return static_cast<hetcomm_status_t>(of(device).memory().find(address, out_base, out_size));
}

hetcomm_status_t locate(void* const* devices, uint64_t count, const void* address,
                        hetcomm_device_place_t* out_place) {
  if (devices == nullptr || out_place == nullptr) return HETCOMM_INVALID_ARGUMENT;
  for (uint64_t i = 0; i < count; ++i) {
    if (!of(devices[i]).memory().may_name(address)) continue;
    void* base = nullptr;
    uint64_t size = 0;
    const Code code = of(devices[i]).memory().find(address, &base, &size);
    // A handle identifies its allocation, since it recurs only after 2^20 frees of its slot, or in
    // a later device with the same instance. An address can recur immediately.
    const uint64_t id = HandleMemory::is_handle(base) ? reinterpret_cast<uintptr_t>(base) : 0;
    if (code == Code::kOk) {
      *out_place = {.device = i, .base = base, .size = size, .allocation_id = id};
    }
    return static_cast<hetcomm_status_t>(code);
  }
  return HETCOMM_NOT_FOUND;
}

hetcomm_status_t stream_create(void* device, void** out_stream) {
  return guarded([&] { return of(device).stream_create(out_stream); });
}

hetcomm_status_t copy_to_host(void* device, void* stream, void* host, const void* address,
                              uint64_t offset, uint64_t size_bytes) {
  return guarded(
      [&] { return of(device).copy_to_host(stream, host, address, offset, size_bytes); });
}

hetcomm_status_t copy_from_host(void* device, void* stream, void* address, uint64_t offset,
                                const void* host, uint64_t size_bytes) {
  return guarded(
      [&] { return of(device).copy_from_host(stream, address, offset, host, size_bytes); });
}

hetcomm_status_t copy_rows_to_host(void* device, void* stream, void* host, const void* address,
                                   const DeviceRows* rows) {
  return guarded([&] { return of(device).copy_rows_to_host(stream, host, address, rows); });
}

hetcomm_status_t copy_rows_from_host(void* device, void* stream, void* address,
                                     const DeviceRows* rows, const void* host) {
  return guarded([&] { return of(device).copy_rows_from_host(stream, address, rows, host); });
}

hetcomm_status_t copy_rows_between(void* device, void* stream, const void* from,
                                   const DeviceRows* from_rows, void* to_device, void* to,
                                   const DeviceRows* to_rows) {
  if (to_device == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return guarded([&] {
    return of(device).copy_rows_between(stream, from, from_rows, of(to_device), to, to_rows);
  });
}

hetcomm_status_t reduce_elements(void* device, void* stream, const DeviceReduction* what) {
  return guarded([&] { return of(device).reduce(stream, what); });
}

hetcomm_status_t event_record(void* device, void* stream, void** out_event) {
  return guarded([&] { return of(device).event_record(stream, out_event); });
}

hetcomm_status_t event_query(void*, void* event) {
  return static_cast<hetcomm_status_t>(SimDevice::event_query(event));
}

hetcomm_status_t event_wait(void*, void* event) {
  return static_cast<hetcomm_status_t>(SimDevice::event_wait(event));
}

hetcomm_status_t pin_host(void* device, void* host, uint64_t size_bytes) {
  return guarded([&] { return of(device).pin_host(host, size_bytes); });
}

void unpin_host(void* device, void* host) { of(device).unpin_host(host); }

hetcomm_status_t export_dmabuf(void* device, const void* address, uint64_t offset,
                               uint64_t size_bytes, int* out_file, uint64_t* out_offset) {
  if (out_file == nullptr || out_offset == nullptr) return HETCOMM_INVALID_ARGUMENT;
  std::byte* bytes = nullptr;
  const Code code = of(device).memory().resolve(address, offset, size_bytes, &bytes);
  if (code != Code::kOk) return static_cast<hetcomm_status_t>(code);
  uint64_t file_offset = 0;
  const int file = of(device).memory().file_of(bytes, &file_offset);
  if (file < 0) return HETCOMM_UNSUPPORTED;
  const int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return HETCOMM_OUT_OF_RESOURCES;
  *out_file = copy;
  *out_offset = file_offset;
  return HETCOMM_OK;
}

hetcomm_status_t registrable_address(void* device, const void* address, uint64_t offset,
                                     uint64_t size_bytes, void** out_address) {
  if (out_address == nullptr) return HETCOMM_INVALID_ARGUMENT;
  std::byte* bytes = nullptr;
  const Code code = of(device).memory().resolve(address, offset, size_bytes, &bytes);
  if (code == Code::kOk) *out_address = bytes;
  return static_cast<hetcomm_status_t>(code);
}

hetcomm_status_t event_notify(void*, void* event, int file) {
  return guarded([&] { return SimDevice::event_notify(event, file); });
}

hetcomm_status_t allocate_host(void* device, uint64_t size_bytes, void** out_host) {
  constexpr uint64_t kPage = 4096;
  if (out_host == nullptr || size_bytes == 0) return HETCOMM_INVALID_ARGUMENT;
  if (size_bytes > PTRDIFF_MAX - kPage) return HETCOMM_OUT_OF_MEMORY;
  of(device).synchronize();
  void* const host = std::aligned_alloc(kPage, (size_bytes + kPage - 1) / kPage * kPage);
  if (host == nullptr) return HETCOMM_OUT_OF_MEMORY;
  *out_host = host;
  return HETCOMM_OK;
}

void free_host(void* device, void* host) {
  of(device).synchronize();
  std::free(host);
}

hetcomm_status_t user_stream_open(void* device, void* native, void** out_user_stream) {
  return guarded([&] { return of(device).user_stream_open(native, out_user_stream); });
}

hetcomm_status_t user_stream_hold(void*, void* user_stream, void** out_hold) {
  return guarded([&] { return SimDevice::user_stream_hold(user_stream, out_hold); });
}

void hold_end(void*, void* hold) {
  const std::unique_ptr<std::shared_ptr<SimHold>> own(static_cast<std::shared_ptr<SimHold>*>(hold));
  if (own != nullptr) (*own)->end();
}

hetcomm_status_t stream_native(void*, void* stream, void** out_native) {
  if (stream == nullptr || out_native == nullptr) return HETCOMM_INVALID_ARGUMENT;
  *out_native = stream;
  return HETCOMM_OK;
}

int32_t names_handle(void*, const void* address) {
  return HandleMemory::is_handle(address) ? 1 : 0;
}

struct SimTraits {
  bool by_handle;
  bool reachable;    // network interfaces can access the memory
  bool copies_rows;  // its copy engines copy rows
  bool reduces;
  bool allocates_host;  // allocates host memory instead of pinning it
};

constexpr DeviceTable make_table(const char* kind, const SimTraits& traits) {
  return {
      .struct_size = sizeof(DeviceTable),
      .kind = kind,
      .host_accessible = 0,
      .destroy = [](void* device) { delete static_cast<SimDevice*>(device); },
      .name = [](void* device) { return of(device).name(); },
      .allocate = allocate,
      .free =
          [](void* device, void* address) {
            of(device).synchronize();
            of(device).memory().free(address);
          },
      .find = find,
      .stream_create = stream_create,
      .stream_destroy = [](void* device, void* stream) { of(device).stream_destroy(stream); },
      .copy_to_host = copy_to_host,
      .copy_from_host = copy_from_host,
      .copy_rows_to_host = traits.copies_rows ? copy_rows_to_host : nullptr,
      .copy_rows_from_host = traits.copies_rows ? copy_rows_from_host : nullptr,
      .event_record = event_record,
      .event_query = event_query,
      .event_wait = event_wait,
      .event_release = [](void* device, void* event) { of(device).event_release(event); },
      .pin_host = traits.allocates_host ? nullptr : pin_host,
      .unpin_host = traits.allocates_host ? nullptr : unpin_host,
      .export_dmabuf = traits.reachable ? export_dmabuf : nullptr,
      .registrable_address = traits.reachable ? registrable_address : nullptr,
      .pci_address = [](void* device) { return of(device).pci_address(); },
      .allocate_host = traits.allocates_host ? allocate_host : nullptr,
      .free_host = traits.allocates_host ? free_host : nullptr,
      .event_notify = event_notify,
      .user_stream_open = user_stream_open,
      .user_stream_close = [](void* device,
                              void* user_stream) { of(device).user_stream_close(user_stream); },
      .user_stream_record = event_record,
      .user_stream_hold = user_stream_hold,
      .hold_end = hold_end,
      .stream_native = stream_native,
      .copy_rows_between = traits.copies_rows ? copy_rows_between : nullptr,
      .reduce = traits.reduces ? reduce_elements : nullptr,
      .numa_node = [](void* device) { return int32_t{of(device).numa_node()}; },
      .host_memory_suffices = [](void* device) { return int32_t{of(device).unified()}; },
      .locate = locate,
      .names_object = traits.by_handle ? names_handle : nullptr,
  };
}

constexpr DeviceTable kHandleTable = make_table("sim-handle", {.by_handle = true,
                                                               .reachable = false,
                                                               .copies_rows = false,
                                                               .reduces = false,
                                                               .allocates_host = false});
constexpr DeviceTable kAddressTable = make_table("sim-address", {.by_handle = false,
                                                                 .reachable = true,
                                                                 .copies_rows = true,
                                                                 .reduces = true,
                                                                 .allocates_host = true});

}  // namespace

Result<Device> create_sim_device(std::string_view kind, std::string_view options) {
  const bool by_handle = kind == kHandleTable.kind;
  if (!by_handle && kind != kAddressTable.kind) {
    return Status(Code::kInvalidArgument,
                  fmt::format("'{}' is no simulated device (sim-handle, sim-address)", kind));
  }
  const Result<SimOptions> parsed = parse_sim_options(options);
  if (!parsed.ok()) return parsed.status().annotate(kind);
  const uint64_t capacity = parsed.value().memory_bytes;
  Result<std::unique_ptr<SimMemory>> memory =
      by_handle ? HandleMemory::create(capacity) : AddressMemory::create(capacity);
  if (!memory.ok()) return memory.status().annotate(kind);
  auto device =
      std::make_unique<SimDevice>(kind, parsed.value(), std::move(memory).value(), by_handle);
  return Device{.table = by_handle ? &kHandleTable : &kAddressTable, .instance = device.release()};
}

}  // namespace hetcomm
