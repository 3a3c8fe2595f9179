#include "src/core/device/user_stream.h"

#include <mutex>
#include <new>
#include <utility>

#include <fmt/core.h>

namespace hetcomm {
namespace {

Status without_holds(const Device& device) {
  return Status(Code::kUnsupported,
                fmt::format("{}: nothing holds streams of this device back: pass "
                            "HETCOMM_STREAM_NOT_HELD, and wait for the requests",
                            device.table->kind));
}

Status without_streams(const Device& device) {
  return Status(Code::kUnsupported,
                fmt::format("{}: devices of this kind have no streams that operations could be put "
                            "in order with",
                            device.table->kind));
}

Status unusable(const Device& device, hetcomm_status_t status) {
  return Status(static_cast<Code>(status),
                fmt::format("{}: the stream cannot be used: {}", device.table->kind,
                            failure_text(device, status)));
}

}  // namespace

StreamHold::~StreamHold() {
  const Device& device = stream_.device();
  device.table->hold_end(device.instance, hold_);
  stream_.devices_.calls().drop_hold();
  stream_.drop_use();
}

StreamMark::StreamMark(StreamMark&& other) noexcept
    : stream(other.stream),
      number(other.number),
      event(std::exchange(other.event, nullptr)),
      hold(std::exchange(other.hold, nullptr)) {}

void StreamMark::forget_event() {
  if (event == nullptr) return;
  stream->devices_.calls().release_event(stream->device(), std::exchange(event, nullptr), stream);
  stream->drop_use();
}

void StreamMark::abandon() {
  if (event == nullptr) return;
  stream->devices_.abandoned().add(
      {.device = &stream->device(), .event = std::exchange(event, nullptr), .host = {}});
  stream->drop_use();
}

Result<UserStream::Opened> UserStream::open(const DeviceSet& devices, size_t index, void* native,
                                            bool held) {
  const Device& device = devices.device(index);
  if (device.table->user_stream_open == nullptr) return without_streams(device);
  if (held && device.table->user_stream_hold == nullptr) return without_holds(device);
  if (native == nullptr && (device.table->flags & HETCOMM_DEVICE_NULL_STREAM) == 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("native is null, which names no stream of {}", device.table->kind));
  }
  Opened opened{.native = native, .held = held};
  const hetcomm_status_t status =
      device.table->user_stream_open(device.instance, native, &opened.user_stream);
  if (status == HETCOMM_OK) return opened;
  if (status == HETCOMM_INVALID_ARGUMENT) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: this is no stream of device {}", device.table->kind, index));
  }
  return unusable(device, status);
}

Result<UserStream::Opened> UserStream::create(const DeviceSet& devices, size_t index, bool held) {
  const Device& device = devices.device(index);
  if (device.table->user_stream_open == nullptr) return without_streams(device);
  void* stream = nullptr;
  void* native = nullptr;
  hetcomm_status_t status = device.table->stream_create(device.instance, &stream);
  if (status != HETCOMM_OK) return unusable(device, status);
  status = device.table->stream_native(device.instance, stream, &native);
  Result<Opened> opened =
      status == HETCOMM_OK ? open(devices, index, native, held) : unusable(device, status);
  if (opened.ok()) {
    opened->own = stream;
  } else {
    device.table->stream_destroy(device.instance, stream);
  }
  return opened;
}

void UserStream::close(const Device& device, const Opened& opened) {
  device.table->user_stream_close(device.instance, opened.user_stream);
  if (opened.own != nullptr) device.table->stream_destroy(device.instance, opened.own);
}

// A user's stream whose closing is deferred until no abandoned copy can block it. The destructor
// closes the stream.
class KeptUserStream final : public AbandonedCopies::Kept {
 public:
  KeptUserStream(const Device& device, const UserStream::Opened& opened)
      : device_(device), opened_(opened) {}
  ~KeptUserStream() override { UserStream::close(device_, opened_); }
  bool is_used(const AbandonedCopies::List& copies) const override { return copies.use(device_); }
  bool needs(const Device& device) const override { return &device == &device_; }
  void forget(const Device& /*device*/) override {}

 private:
  const Device& device_;
  const UserStream::Opened opened_;
};

UserStream::~UserStream() {
  devices_.calls().make_all_of(this);
  const auto is_used = [&](const auto& copies) { return copies.use(device()); };
  const auto make = [&] { return new (std::nothrow) KeptUserStream(device(), opened_); };
  if (devices_.abandoned().none() || !devices_.abandoned().keep_if(is_used, make)) {
    close(device(), opened_);
  }
}

Status UserStream::failed(hetcomm_status_t status) const {
  const auto code = static_cast<Code>(status);
  return Status(code,
                fmt::format("{}: an operation cannot be put into the order of the stream: {}",
                            device().table->kind,
                            code == Code::kUnsupported
                                ? std::string("the stream is captured, or nothing can hold it back")
                                : failure_text(device(), status)));
}

Result<StreamMark> UserStream::record() {
  HETCOMM_RETURN_IF_ERROR(devices_.check(index_));
  StreamMark mark;
  mark.stream = this;
  const std::lock_guard lock(recording_);
  const hetcomm_status_t status =
      device().table->user_stream_record(device().instance, opened_.user_stream, &mark.event);
  if (status != HETCOMM_OK) return failed(status);
  mark.number = ++records_;
  add_use();
  return mark;
}

Status UserStream::hold(StreamMark* mark) {
  if (!opened_.held) return {};
  const DeviceTable& table = *device().table;
  void* hold = nullptr;
  {
    const std::lock_guard lock(devices_.calls().holding());
    const hetcomm_status_t status =
        table.user_stream_hold(device().instance, opened_.user_stream, &hold);
    if (status != HETCOMM_OK) return failed(status);
    devices_.calls().add_hold();
  }
  add_use();
  mark->hold = new (std::nothrow) StreamHold(*this, hold);
  if (mark->hold != nullptr) return {};
  StreamHold(*this, hold);  // ends the hold
  return Status(Code::kOutOfMemory);
}

}  // namespace hetcomm
