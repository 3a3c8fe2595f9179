#include "src/core/memory/user_stream.h"

#include <mutex>
#include <new>
#include <utility>

#include <fmt/format.h>

namespace hetcomm {

StreamHold::~StreamHold() {
  const Device& device = stream_.device();
  device.table->hold_end(device.instance, hold_);
  stream_.devices_.drop_hold();
  stream_.drop_use();
}

StreamPlace::StreamPlace(StreamPlace&& other) noexcept
    : stream(other.stream),
      event(std::exchange(other.event, nullptr)),
      hold(std::exchange(other.hold, nullptr)) {}

void StreamPlace::forget_event() {
  if (event == nullptr) return;
  const Device& device = stream->device();
  device.table->event_release(device.instance, std::exchange(event, nullptr));
  stream->drop_use();
}

Result<void*> UserStream::open(DeviceSet& devices, size_t index, void* native) {
  const Device& device = devices.device(index);
  if (device.table->user_stream_open == nullptr) {
    return Status(Code::kUnsupported,
                  fmt::format("{}: devices of this kind have no streams that operations could be "
                              "put in order with",
                              device.table->kind));
  }
  void* opened = nullptr;
  const hetcomm_status_t status = device.table->user_stream_open(device.instance, native, &opened);
  if (status == HETCOMM_OK) return opened;
  if (status == HETCOMM_INVALID_ARGUMENT) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: this is no stream of device {}", device.table->kind, index));
  }
  const auto code = static_cast<Code>(status);
  return Status(
      code, fmt::format("{}: the stream cannot be used: {}", device.table->kind, code_text(code)));
}

UserStream::UserStream(DeviceSet& devices, size_t index, void* opened)
    : devices_(devices), index_(index), opened_(opened) {}

UserStream::~UserStream() { device().table->user_stream_close(device().instance, opened_); }

Status UserStream::failed(hetcomm_status_t status) const {
  const auto code = static_cast<Code>(status);
  return Status(code, fmt::format("{}: an operation cannot be put into the order of the stream: {}",
                                  device().table->kind,
                                  code == Code::kUnsupported
                                      ? "the stream is captured, or nothing can hold it back"
                                      : code_text(code)));
}

Result<StreamPlace> UserStream::order() {
  const DeviceTable& table = *device().table;
  void* const instance = device().instance;
  StreamPlace place;
  place.stream = this;
  hetcomm_status_t status = table.user_stream_record(instance, opened_, &place.event);
  if (status != HETCOMM_OK) return failed(status);
  add_use();
  void* hold = nullptr;
  {
    const std::lock_guard lock(devices_.holding());
    status = table.user_stream_hold(instance, opened_, &hold);
    if (status != HETCOMM_OK) return failed(status);
    devices_.add_hold();
  }
  add_use();
  place.hold = new (std::nothrow) StreamHold(*this, hold);
  if (place.hold == nullptr) {
    StreamHold(*this, hold);  // ends it
    return Status(Code::kOutOfMemory);
  }
  return place;
}

}  // namespace hetcomm
