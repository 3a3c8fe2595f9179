#include "devices/opencl/device.h"

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "devices/opencl/objects.h"
#include "devices/opencl/user_queue.h"
#include "devices/registry.h"
#include "src/base/text.h"

namespace hetcomm::opencl {
namespace {

// Defined by the extension cl_khr_pci_bus_info.
constexpr cl_device_info kPciBusInfo = 0x410F;
struct PciBusInfo {
  cl_uint domain;
  cl_uint bus;
  cl_uint device;
  cl_uint function;
};

std::string platform_text(const Api& api, cl_platform_id platform, cl_platform_info what) {
  std::array<char, 256> text{};
  if (api.GetPlatformInfo(platform, what, text.size() - 1, text.data(), nullptr) != CL_SUCCESS) {
    return "";
  }
  return text.data();
}

std::string device_text(const Api& api, cl_device_id device, cl_device_info what) {
  std::array<char, 256> text{};
  if (api.GetDeviceInfo(device, what, text.size() - 1, text.data(), nullptr) != CL_SUCCESS) {
    return "";
  }
  return text.data();
}

Result<std::vector<cl_platform_id>> find_platforms(const Api& api) {
  cl_uint count = 0;
  const cl_int status = api.GetPlatformIDs(0, nullptr, &count);
  if (status != CL_SUCCESS && count == 0) {
    return status_of(status, "OpenCL has no platforms: clGetPlatformIDs");
  }
  std::vector<cl_platform_id> platforms(count);
  HETCOMM_RETURN_IF_ERROR(
      status_of(api.GetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs"));
  for (const cl_platform_id platform : platforms) note_vendor(platform);
  return platforms;
}

// Returns the devices of all platforms that match |options|. options.index is an index into this
// list. A platform without devices is skipped without an error.
Result<std::vector<cl_device_id>> find_devices(const Api& api, const Options& options) {
  Result<std::vector<cl_platform_id>> platforms = find_platforms(api);
  if (!platforms.ok()) return platforms.status();
  std::vector<cl_device_id> found;
  for (const cl_platform_id platform : *platforms) {
    if (!contains_word(platform_text(api, platform, CL_PLATFORM_NAME), options.platform) &&
        !contains_word(platform_text(api, platform, CL_PLATFORM_VERSION), options.platform)) {
      continue;
    }
    cl_uint devices = 0;
    if (api.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &devices) != CL_SUCCESS) {
      continue;
    }
    std::vector<cl_device_id> ids(devices);
    if (api.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, devices, ids.data(), nullptr) !=
        CL_SUCCESS) {
      continue;
    }
    found.insert(found.end(), ids.begin(), ids.end());
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<OpenClDevice>> OpenClDevice::create(const Options& options) {
  Result<const Api*> api = Api::open();
  if (!api.ok()) return api.status();
  Result<std::vector<cl_device_id>> found = find_devices(*api.value(), options);
  if (!found.ok()) return found.status();
  if (options.index >= found->size()) {
    return Status(Code::kNotFound,
                  fmt::format("there is no OpenCL device {}{}{}: {} found (clinfo -l lists them)",
                              options.index, options.platform.empty() ? "" : " of platform ",
                              printable(options.platform), found->size()));
  }
  return std::unique_ptr<OpenClDevice>(new OpenClDevice(*api.value(), (*found)[options.index]));
}

Result<std::unique_ptr<OpenClDevice>> OpenClDevice::create_from(void* native) {
  Result<const Api*> opened = Api::open();
  if (!opened.ok()) return opened.status();
  const Api& api = *opened.value();
  Result<std::vector<cl_platform_id>> platforms = find_platforms(api);
  if (!platforms.ok()) return platforms.status();
  const Status refusal(Code::kInvalidArgument, "this is no cl_context of a vendor that is loaded");
  // OpenCL dereferences any handle without checking it, so |native| must look like an OpenCL
  // object.
  if (std::none_of(platforms->begin(), platforms->end(),
                   [&](cl_platform_id platform) { return are_of_one_vendor(platform, native); })) {
    return refusal;
  }
  const auto context = static_cast<cl_context>(native);
  std::vector<cl_device_id> devices;
  size_t bytes = 0;
  if (api.GetContextInfo(context, CL_CONTEXT_DEVICES, 0, nullptr, &bytes) != CL_SUCCESS) {
    return refusal;
  }
  devices.resize(bytes / sizeof(cl_device_id));
  if (devices.empty() || api.GetContextInfo(context, CL_CONTEXT_DEVICES, bytes, devices.data(),
                                            nullptr) != CL_SUCCESS) {
    return refusal;
  }
  std::unique_ptr<OpenClDevice> device(new OpenClDevice(api, devices.front()));
  HETCOMM_RETURN_IF_ERROR(status_of(api.RetainContext(context), "clRetainContext"));
  ContextReference reference(api, context);
  device->context_ = new Context(api, std::move(reference), devices.front());
  return device;
}

OpenClDevice::OpenClDevice(const Api& api, cl_device_id device) : api_(api), device_(device) {
  cl_platform_id platform = nullptr;
  api_.GetDeviceInfo(device_, CL_DEVICE_PLATFORM, sizeof(platform), &platform, nullptr);
  name_ = fmt::format("{}: {}", platform_text(api_, platform, CL_PLATFORM_NAME),
                      device_text(api_, device_, CL_DEVICE_NAME));
  cl_device_type type = 0;
  is_cpu_ =
      api_.GetDeviceInfo(device_, CL_DEVICE_TYPE, sizeof(type), &type, nullptr) == CL_SUCCESS &&
      (type & CL_DEVICE_TYPE_CPU) != 0;
  PciBusInfo pci{};
  if (api_.GetDeviceInfo(device_, kPciBusInfo, sizeof(pci), &pci, nullptr) == CL_SUCCESS) {
    pci_address_ =
        fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.device, pci.function);
  }
}

OpenClDevice::~OpenClDevice() { delete context(); }

Code OpenClDevice::open(Context** out_context) {
  if (context() == nullptr) {
    const std::lock_guard lock(opening_);
    if (context() == nullptr) {
      std::unique_ptr<Context> made;
      const Code code = Context::make(api_, device_, &made);
      if (code != Code::kOk) return code;
      context_.store(made.release(), std::memory_order_release);
    }
  }
  *out_context = context();
  return Code::kOk;
}

Code OpenClDevice::stream_create(void** out_stream) {
  if (out_stream == nullptr) return Code::kInvalidArgument;
  Context* context = nullptr;
  const Code opened = open(&context);
  if (opened != Code::kOk) return opened;
  std::unique_ptr<Stream> stream(new (std::nothrow) Stream);
  if (stream == nullptr) return Code::kOutOfMemory;
  cl_int status = CL_SUCCESS;
  stream->queue = api_.CreateCommandQueue(context->get(), device_, 0, &status);
  if (stream->queue == nullptr) return code_of(status);
  *out_stream = stream.release();
  return Code::kOk;
}

void OpenClDevice::stream_destroy(void* stream) {
  if (stream == nullptr) return;
  const std::unique_ptr<Stream> own(static_cast<Stream*>(stream));
  api_.Finish(own->queue);
  for (const cl_event copy : own->copies) api_.ReleaseEvent(copy);
  api_.ReleaseCommandQueue(own->queue);
}

namespace {

bool is_one_row(const DeviceRows& rows) { return rows.extents[0] == 1 && rows.extents[1] == 1; }

// Returns whether the rows form consecutive two-dimensional arrays of equal size ("pictures"), as
// OpenCL's rectangle copies require. No row may cross the end of its line, and no line the end of
// its picture.
bool are_pictures(const DeviceRows& rows) {
  const uint64_t pitch = rows.strides[1];
  const uint64_t slice = rows.extents[0] > 1 ? rows.strides[0] : pitch * rows.extents[1];
  if (pitch < rows.row_bytes || slice % pitch != 0 || slice < pitch * rows.extents[1]) return false;
  return rows.offset % pitch + rows.row_bytes <= pitch &&
         (rows.extents[0] == 1 || rows.offset % slice / pitch + rows.extents[1] <= slice / pitch);
}

// Returns the part of |rows| with |extents| that begins at row (i, j).
DeviceRows part_of(const DeviceRows& rows, uint64_t i, uint64_t j,
                   const std::array<uint64_t, 2>& extents) {
  DeviceRows part = rows;
  part.offset += i * rows.strides[0] + j * rows.strides[1];
  part.extents[0] = extents[0];
  part.extents[1] = extents[1];
  return part;
}

// Copies |extents| rows by calling copy(i, j, part), where |part| gives the extents of the part
// that begins at row (i, j), until a call fails. Copies everything in one call if is_plane() allows
// it. Otherwise copies each plane in one call if is_plane() allows it, and the remaining rows one
// by one.
template <typename IsPlane, typename Copy>
Code copy_in_parts(const uint64_t (&extents)[2], IsPlane&& is_plane, Copy&& copy) {
  const std::array<uint64_t, 2> whole = {extents[0], extents[1]};
  const std::array<uint64_t, 2> plane = {1, extents[1]};
  if (is_plane(0, whole)) return copy(0, 0, whole);
  Code code = Code::kOk;
  for (uint64_t i = 0; i < extents[0] && code == Code::kOk; ++i) {
    if (is_plane(i, plane)) {
      code = copy(i, 0, plane);
      continue;
    }
    for (uint64_t j = 0; j < extents[1] && code == Code::kOk; ++j) {
      code = copy(i, j, std::array<uint64_t, 2>{1, 1});
    }
  }
  return code;
}

}  // namespace

Code OpenClDevice::copy_row(Stream& stream, const Location& location, uint64_t size,
                            std::byte* host, bool to_host) {
  const auto& [buffer, offset, pointer] = location;
  stream.copies.push_back(nullptr);
  cl_event* const event = &stream.copies.back();
  cl_int status = CL_SUCCESS;
  if (pointer != nullptr) {
    const Pointers& pointers = context()->pointers();
    status = to_host ? pointers.copy(stream.queue, host, pointer, size, event)
                     : pointers.copy(stream.queue, pointer, host, size, event);
  } else {
    status = to_host ? api_.EnqueueReadBuffer(stream.queue, buffer, CL_FALSE, offset, size, host, 0,
                                              nullptr, event)
                     : api_.EnqueueWriteBuffer(stream.queue, buffer, CL_FALSE, offset, size, host,
                                               0, nullptr, event);
  }
  if (status != CL_SUCCESS) stream.copies.pop_back();
  return code_of(status);
}

namespace {

// The parameters of OpenCL's rectangle copies for rows that form pictures. |pitch| is the distance
// between lines, and |slice| the distance between pictures.
struct Pictures {
  explicit Pictures(const DeviceRows& rows)
      : pitch(rows.strides[1]),
        slice(rows.extents[0] > 1 ? rows.strides[0] : pitch * rows.extents[1]),
        origin{rows.offset % slice % pitch, rows.offset % slice / pitch, rows.offset / slice},
        region{rows.row_bytes, rows.extents[1], rows.extents[0]} {}

  const size_t pitch;
  const size_t slice;
  const std::array<size_t, 3> origin;
  const std::array<size_t, 3> region;
};

}  // namespace

// Copies |rows|, which begin at |location|, to or from |host|. |rows| are a single row, or form
// pictures (see are_pictures()).
Code OpenClDevice::copy_plane(Stream& stream, const Location& location, const DeviceRows& rows,
                              std::byte* host, bool to_host) {
  if (is_one_row(rows)) return copy_row(stream, location, rows.row_bytes, host, to_host);
  stream.copies.push_back(nullptr);
  cl_event* const event = &stream.copies.back();
  const Pictures own(rows);
  const std::array<size_t, 3> zero = {0, 0, 0};
  const cl_int status =
      to_host
          ? api_.EnqueueReadBufferRect(stream.queue, location.buffer, CL_FALSE, own.origin.data(),
                                       zero.data(), own.region.data(), own.pitch, own.slice,
                                       rows.row_bytes, 0, host, 0, nullptr, event)
          : api_.EnqueueWriteBufferRect(stream.queue, location.buffer, CL_FALSE, own.origin.data(),
                                        zero.data(), own.region.data(), own.pitch, own.slice,
                                        rows.row_bytes, 0, host, 0, nullptr, event);
  if (status != CL_SUCCESS) stream.copies.pop_back();
  return code_of(status);
}

// Copies rows between two locations, which are both in buffers or both given by pointers. The rows
// are a single row, or, in buffers only, form pictures (see are_pictures()).
Code OpenClDevice::copy_plane_between(Stream& stream, const Location& from,
                                      const DeviceRows& from_rows, const Location& to,
                                      const DeviceRows& to_rows) {
  stream.copies.push_back(nullptr);
  cl_event* const event = &stream.copies.back();
  const uint64_t size = from_rows.row_bytes;
  cl_int status = CL_SUCCESS;
  if (from.pointer != nullptr) {
    status = context()->pointers().copy(stream.queue, to.pointer, from.pointer, size, event);
  } else if (is_one_row(from_rows)) {
    status = api_.EnqueueCopyBuffer(stream.queue, from.buffer, to.buffer, from.offset, to.offset,
                                    size, 0, nullptr, event);
  } else {
    const Pictures source(from_rows);
    const Pictures target(to_rows);
    status =
        api_.EnqueueCopyBufferRect(stream.queue, from.buffer, to.buffer, source.origin.data(),
                                   target.origin.data(), source.region.data(), source.pitch,
                                   source.slice, target.pitch, target.slice, 0, nullptr, event);
  }
  if (status != CL_SUCCESS) stream.copies.pop_back();
  return code_of(status);
}

Code OpenClDevice::copy_between(void* stream, const void* from, const DeviceRows& from_rows,
                                const OpenClDevice& to_device, void* to,
                                const DeviceRows& to_rows) {
  uint64_t from_span = 0;
  uint64_t to_span = 0;
  if (!have_one_shape(from_rows, to_rows)) return Code::kInvalidArgument;
  if (!span_of(from_rows, &from_span) || !span_of(to_rows, &to_span)) return Code::kOutOfRange;
  if (stream == nullptr && from_span != 0) return Code::kInvalidArgument;
  if (context() == nullptr || to_device.context() == nullptr) return Code::kInvalidArgument;
  Location source;
  Location target;
  Code code = context()->locate(from, from_rows.offset, from_span, &source);
  if (code != Code::kOk) return code;
  code = to_device.context()->locate(to, to_rows.offset, to_span, &target);
  if (code != Code::kOk) return code;
  // OpenCL copies neither between contexts nor between buffers and pointers.
  const bool by_pointers = source.pointer != nullptr;
  if (context()->get() != to_device.context()->get() ||
      by_pointers != (target.pointer != nullptr)) {
    return Code::kUnsupported;
  }
  if (from_span == 0) return Code::kOk;
  const bool in_one_buffer = !by_pointers && source.buffer == target.buffer;
  const auto is_plane = [&](uint64_t i, const std::array<uint64_t, 2>& extents) {
    const DeviceRows some = part_of(from_rows, i, 0, extents);
    const DeviceRows others = part_of(to_rows, i, 0, extents);
    if (is_one_row(some)) return true;
    if (by_pointers || !are_pictures(some) || !are_pictures(others)) return false;
    // Within one buffer, OpenCL requires the same pitch and slice on both sides.
    const Pictures first(some);
    const Pictures second(others);
    return !in_one_buffer || (first.pitch == second.pitch && first.slice == second.slice);
  };
  Stream& own = *static_cast<Stream*>(stream);
  return copy_in_parts(from_rows.extents, is_plane,
                       [&](uint64_t i, uint64_t j, const std::array<uint64_t, 2>& extents) {
                         const DeviceRows some = part_of(from_rows, i, j, extents);
                         const DeviceRows others = part_of(to_rows, i, j, extents);
                         return copy_plane_between(
                             own, source.further(some.offset - from_rows.offset), some,
                             target.further(others.offset - to_rows.offset), others);
                       });
}

Code OpenClDevice::copy(void* stream, const void* address, const DeviceRows& rows, void* host,
                        bool to_host) {
  uint64_t span = 0;
  if (!span_of(rows, &span)) return Code::kOutOfRange;
  if (stream == nullptr || (host == nullptr && span != 0)) return Code::kInvalidArgument;
  if (context() == nullptr) return Code::kInvalidArgument;
  Location first;
  const Code code = context()->locate(address, rows.offset, span, &first);
  if (code != Code::kOk || span == 0) return code;
  const auto is_plane = [&](uint64_t i, const std::array<uint64_t, 2>& extents) {
    const DeviceRows some = part_of(rows, i, 0, extents);
    return is_one_row(some) || (first.buffer != nullptr && are_pictures(some));
  };
  Stream& own = *static_cast<Stream*>(stream);
  auto* next = static_cast<std::byte*>(host);
  return copy_in_parts(rows.extents, is_plane,
                       [&](uint64_t i, uint64_t j, const std::array<uint64_t, 2>& extents) {
                         const DeviceRows some = part_of(rows, i, j, extents);
                         const Location begin = first.further(some.offset - rows.offset);
                         const Code copied = copy_plane(own, begin, some, next, to_host);
                         next += bytes_of(some);
                         return copied;
                       });
}

Code OpenClDevice::reduce(void* stream, const DeviceReduction& what) {
  ReductionSizes sizes;
  Code code = sizes_of(what, &sizes);
  if (code != Code::kOk) return code;
  if ((stream == nullptr && what.elements != 0) || context() == nullptr) {
    return Code::kInvalidArgument;
  }
  Reductions::Locations locations;
  auto& [first, second, out] = locations;
  code = context()->locate(what.first, what.first_offset, sizes.first, &first);
  if (code == Code::kOk) {
    code = context()->locate(what.second, what.second_offset, sizes.second, &second);
  }
  if (code == Code::kOk) code = context()->locate(what.out, what.out_offset, sizes.out, &out);
  if (code == Code::kOk) code = context()->reductions().prepare(what, locations);
  if (code != Code::kOk || what.elements == 0) return code;
  Stream& own = *static_cast<Stream*>(stream);
  own.copies.push_back(nullptr);
  const cl_int status =
      context()->reductions().start(own.queue, what, locations, &own.copies.back());
  if (status != CL_SUCCESS) own.copies.pop_back();
  return code_of(status);
}

// Records an event. Each copy reports its failure through its own event, so the event of a single
// copy is used directly. Otherwise a marker is used, which fails if any of the copies fails.
Code OpenClDevice::event_record(void* stream, void** out_event) {
  if (stream == nullptr || out_event == nullptr) return Code::kInvalidArgument;
  auto& [queue, copies] = *static_cast<Stream*>(stream);
  cl_event event = nullptr;
  cl_int status = CL_SUCCESS;
  if (copies.size() == 1) {
    event = copies.front();
  } else {
    status = api_.EnqueueMarkerWithWaitList(queue, static_cast<cl_uint>(copies.size()),
                                            copies.empty() ? nullptr : copies.data(), &event);
    if (status != CL_SUCCESS) return code_of(status);
  }
  // Without a flush, the queue may never start the commands.
  status = api_.Flush(queue);
  if (status != CL_SUCCESS) {
    if (copies.size() != 1) api_.ReleaseEvent(event);
    return code_of(status);
  }
  if (copies.size() != 1) {
    for (const cl_event copy : copies) api_.ReleaseEvent(copy);
  }
  copies.clear();
  *out_event = event;
  return Code::kOk;
}

Code OpenClDevice::event_query(void* event) {
  if (event == nullptr) return Code::kInvalidArgument;
  const auto own = static_cast<cl_event>(event);
  cl_int state = CL_QUEUED;
  const cl_int status =
      api_.GetEventInfo(own, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, nullptr);
  if (status != CL_SUCCESS) return code_of(status);
  if (state < 0) return code_of(state);
  // Other queues see a copy's result only after a wait for its event.
  return state == CL_COMPLETE ? event_wait(event) : Code::kPending;
}

Code OpenClDevice::event_wait(void* event) {
  if (event == nullptr) return Code::kInvalidArgument;
  const auto own = static_cast<cl_event>(event);
  const cl_int status = api_.WaitForEvents(1, &own);
  if (status != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) return code_of(status);
  // The failed command's status is more specific than the status of the wait.
  cl_int state = status;
  api_.GetEventInfo(own, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, nullptr);
  return code_of(state < 0 ? state : status);
}

void OpenClDevice::event_release(void* event) {
  if (event != nullptr) api_.ReleaseEvent(static_cast<cl_event>(event));
}

Code OpenClDevice::event_notify(void* event, int file) {
  if (event == nullptr || context() == nullptr) return Code::kInvalidArgument;
  return context()->notices().add(static_cast<cl_event>(event), file);
}

namespace {

OpenClDevice& of(void* device) { return *static_cast<OpenClDevice*>(device); }

// Converts |code| to the table's status type. If |code| reports a lost device, or a lack of memory
// or resources, the device stores the vendor's error.
hetcomm_status_t told(void* device, Code code) {
  if (code == Code::kDeviceLost || code == Code::kOutOfMemory || code == Code::kOutOfResources) {
    of(device).note_failure(take_failure());
  }
  return static_cast<hetcomm_status_t>(code);
}

// Calls |call| with the device's context, which is created if there is none yet, and returns its
// result.
template <typename Call>
hetcomm_status_t in_context(void* device, Call&& call) {
  Context* context = nullptr;
  Code code = of(device).open(&context);
  try {
    if (code == Code::kOk) code = call(*context);
  } catch (const std::bad_alloc&) {
    code = Code::kOutOfMemory;
  }
  return told(device, code);
}

hetcomm_status_t allocate(void* device, uint64_t size_bytes, void** out_address) {
  if (out_address == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return in_context(device, [&](Context& context) {
    return context.buffers().allocate(size_bytes, out_address);
  });
}

// Frees memory or releases retained memory. Both use the same reference count.
void release(void* device, void* address) {
  if (Context* const context = of(device).context()) context->buffers().release(address);
}

hetcomm_status_t find(void* device, const void* address, void** out_base, uint64_t* out_size) {
  if (out_base == nullptr || out_size == nullptr) return HETCOMM_INVALID_ARGUMENT;
  Context* const context = of(device).context();
  return context != nullptr ? told(device, context->find(address, out_base, out_size))
                            : HETCOMM_NOT_FOUND;
}

// Finds the device whose memory contains |address|. Queries the context of each device, since an
// OpenCL query covers only one context.
hetcomm_status_t locate(void* const* devices, uint64_t count, const void* address,
                        hetcomm_device_place_t* out_place) {
  const bool may_be_buffer = Buffers::may_be_known(address);
  hetcomm_status_t failure = HETCOMM_NOT_FOUND;
  for (uint64_t i = 0; i < count; ++i) {
    Context* const context = of(devices[i]).context();
    if (context == nullptr || (!may_be_buffer && !context->pointers().exist())) continue;
    void* base = nullptr;
    uint64_t size = 0;
    const Code code = context->find(address, &base, &size);
    if (code == Code::kOk) {
      *out_place = {.device = i, .base = base, .size = size, .allocation_id = 0};
      return HETCOMM_OK;
    }
    if (code != Code::kNotFound) failure = told(devices[i], code);
  }
  return failure;
}

void retain_rule(void* device, void* address, uint64_t size_bytes, char* text, uint64_t size) {
  if (size == 0) return;
  Context* const context = of(device).context();
  const std::string_view rule =
      context != nullptr ? context->rule_against(address, size_bytes) : std::string_view();
  text[rule.copy(text, size - 1)] = '\0';
}

hetcomm_status_t copy(void* device, void* stream, const void* address, const DeviceRows& rows,
                      const void* host, bool to_host) {
  try {
    return told(device, of(device).copy(stream, address, rows, const_cast<void*>(host), to_host));
  } catch (const std::bad_alloc&) {
    return HETCOMM_OUT_OF_MEMORY;
  }
}

hetcomm_status_t copy_to_host(void* device, void* stream, void* host, const void* address,
                              uint64_t offset, uint64_t size_bytes) {
  return copy(device, stream, address, one_row(offset, size_bytes), host, true);
}

hetcomm_status_t copy_from_host(void* device, void* stream, void* address, uint64_t offset,
                                const void* host, uint64_t size_bytes) {
  return copy(device, stream, address, one_row(offset, size_bytes), host, false);
}

hetcomm_status_t copy_rows_to_host(void* device, void* stream, void* host, const void* address,
                                   const DeviceRows* rows) {
  if (rows == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return copy(device, stream, address, *rows, host, true);
}

hetcomm_status_t copy_rows_from_host(void* device, void* stream, void* address,
                                     const DeviceRows* rows, const void* host) {
  if (rows == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return copy(device, stream, address, *rows, host, false);
}

hetcomm_status_t copy_rows_between(void* device, void* stream, const void* from,
                                   const DeviceRows* from_rows, void* to_device, void* to,
                                   const DeviceRows* to_rows) {
  if (from_rows == nullptr || to_device == nullptr || to_rows == nullptr) {
    return HETCOMM_INVALID_ARGUMENT;
  }
  try {
    return told(device,
                of(device).copy_between(stream, from, *from_rows, of(to_device), to, *to_rows));
  } catch (const std::bad_alloc&) {
    return HETCOMM_OUT_OF_MEMORY;
  }
}

hetcomm_status_t reduce(void* device, void* stream, const DeviceReduction* what) {
  if (what == nullptr) return HETCOMM_INVALID_ARGUMENT;
  try {
    return told(device, of(device).reduce(stream, *what));
  } catch (const std::bad_alloc&) {
    return HETCOMM_OUT_OF_MEMORY;
  }
}

hetcomm_status_t retain(void* device, void* address, uint64_t size_bytes) {
  return in_context(device, [&](Context& context) { return context.retain(address, size_bytes); });
}

hetcomm_status_t allocate_host(void* device, uint64_t size_bytes, void** out_host) {
  if (out_host == nullptr || size_bytes == 0) return HETCOMM_INVALID_ARGUMENT;
  return in_context(device, [&](Context& context) {
    return context.host_memory().allocate(size_bytes, out_host);
  });
}

// Returns 1 for a CPU device, which copies from any host memory at the same speed.
int32_t host_memory_suffices(void* device) { return of(device).is_cpu() ? 1 : 0; }

void free_host(void* device, void* host) {
  if (Context* const context = of(device).context()) context->host_memory().free(host);
}

hetcomm_status_t user_stream_open(void* device, void* native, void** out_user_stream) {
  if (native == nullptr || out_user_stream == nullptr) return HETCOMM_INVALID_ARGUMENT;
  Context* const context = of(device).context();
  if (context == nullptr) return HETCOMM_INVALID_ARGUMENT;  // no context, so no queue
  UserQueue* queue = nullptr;
  const Code code = UserQueue::open(of(device).api(), context->get(), native, &queue);
  if (code == Code::kOk) *out_user_stream = queue;
  return told(device, code);
}

hetcomm_status_t user_stream_record(void* device, void* user_stream, void** out_event) {
  if (user_stream == nullptr || out_event == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return told(device,
              static_cast<UserQueue*>(user_stream)->record(reinterpret_cast<cl_event*>(out_event)));
}

hetcomm_status_t user_stream_hold(void* device, void* user_stream, void** out_hold) {
  if (user_stream == nullptr || out_hold == nullptr) return HETCOMM_INVALID_ARGUMENT;
  return told(device,
              static_cast<UserQueue*>(user_stream)->hold(reinterpret_cast<cl_event*>(out_hold)));
}

hetcomm_status_t stream_native(void*, void* stream, void** out_native) {
  if (stream == nullptr || out_native == nullptr) return HETCOMM_INVALID_ARGUMENT;
  *out_native = static_cast<Stream*>(stream)->queue;
  return HETCOMM_OK;
}

constexpr DeviceTable kTable = {
    .struct_size = sizeof(DeviceTable),
    .kind = "opencl",
    .host_accessible = 0,
    .destroy = [](void* device) { delete static_cast<OpenClDevice*>(device); },
    .name = [](void* device) { return of(device).name(); },
    .allocate = allocate,
    .free = release,
    .find = find,
    .stream_create =
        [](void* device, void** out_stream) {
          return told(device, of(device).stream_create(out_stream));
        },
    .stream_destroy = [](void* device, void* stream) { of(device).stream_destroy(stream); },
    .copy_to_host = copy_to_host,
    .copy_from_host = copy_from_host,
    .copy_rows_to_host = copy_rows_to_host,
    .copy_rows_from_host = copy_rows_from_host,
    .event_record =
        [](void* device, void* stream, void** out_event) {
          return told(device, of(device).event_record(stream, out_event));
        },
    .event_query = [](void* device,
                      void* event) { return told(device, of(device).event_query(event)); },
    .event_wait = [](void* device,
                     void* event) { return told(device, of(device).event_wait(event)); },
    .event_release = [](void* device, void* event) { of(device).event_release(event); },
    .pci_address = [](void* device) { return of(device).pci_address(); },
    .retain = retain,
    .release = release,
    .allocate_host = allocate_host,
    .free_host = free_host,
    .event_notify = [](void* device, void* event,
                       int file) { return told(device, of(device).event_notify(event, file)); },
    .user_stream_open = user_stream_open,
    .user_stream_close = [](void*,
                            void* user_stream) { delete static_cast<UserQueue*>(user_stream); },
    .user_stream_record = user_stream_record,
    .user_stream_hold = user_stream_hold,
    .hold_end =
        [](void* device, void* hold) {
          if (hold != nullptr) UserQueue::end_hold(of(device).api(), static_cast<cl_event>(hold));
        },
    .stream_native = stream_native,
    .error_text =
        [](void* device, char* text, uint64_t size) {
          const cl_int failure = of(device).failure();
          const std::string said = failure == CL_SUCCESS ? "" : name_of(failure);
          text[said.copy(text, size - 1)] = '\0';
        },
    .copy_rows_between = copy_rows_between,
    .reduce = reduce,
    .host_memory_suffices = host_memory_suffices,
    .locate = locate,
    .retain_rule = retain_rule,
    .names_object = [](void*, const void* address) { return looks_like_object(address) ? 1 : 0; },
};

}  // namespace
}  // namespace hetcomm::opencl

namespace hetcomm {

Result<Device> create_opencl_device(std::string_view options) {
  const Result<opencl::Options> parsed = opencl::parse_options(options);
  if (!parsed.ok()) return parsed.status().annotate("opencl");
  Result<std::unique_ptr<opencl::OpenClDevice>> device =
      opencl::OpenClDevice::create(parsed.value());
  if (!device.ok()) return device.status().annotate("opencl");
  return Device{.table = &opencl::kTable, .instance = device.value().release()};
}

Result<Device> create_opencl_device_from(void* native) {
  Result<std::unique_ptr<opencl::OpenClDevice>> device = opencl::OpenClDevice::create_from(native);
  if (!device.ok()) return device.status().annotate("opencl");
  return Device{.table = &opencl::kTable, .instance = device.value().release()};
}

}  // namespace hetcomm
