#include "src/core/memory/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <hetcomm/memory.h>

#include "src/core/memory/registration.h"

namespace hetcomm {

static_assert(DeviceSet::kMostDevices == HETCOMM_MAX_DEVICES);

namespace {

// |what| names the action that ended with |status|.
Status device_status(const Device& device, hetcomm_status_t status, std::string_view what) {
  if (status == HETCOMM_OK) return {};
  return Status(static_cast<Code>(status), fmt::format("{}: {} failed: {}", device.table->kind,
                                                       what, failure_text(device, status)));
}

Status out_of_range(uint64_t offset, uint64_t length, uint64_t size) {
  return Status(
      Code::kOutOfRange,
      fmt::format("offset {} and length {} end past the memory's {} bytes", offset, length, size));
}

}  // namespace

DeviceSet::~DeviceSet() {
  calls_.make_all();
  for (size_t i = 0; i < size(); ++i) {
    Entry& entry = *entries_[i];
    for (void* stream : entry.streams) {
      if (stream != nullptr) entry.device.table->stream_destroy(entry.device.instance, stream);
    }
    entry.device.table->destroy(entry.device.instance);
  }
}

Result<size_t> DeviceSet::add(Device device) {
  Result<DeviceTable> table = complete_table(device.table);
  if (!table.ok()) return table.status();
  const size_t index = size();
  if (index == kMostDevices) {
    return Status(Code::kOutOfResources,
                  fmt::format("a context has at most {} devices", kMostDevices));
  }
  entries_[index].reset(new (std::nothrow) Entry(table.value(), device));
  if (entries_[index] == nullptr) return Status(Code::kOutOfMemory);
  entries_[index]->device.table = &entries_[index]->table;
  if (!kinds_.add(entries_[index]->device, index)) {
    entries_[index].reset();
    return Status(Code::kOutOfMemory);
  }
  size_.store(index + 1, std::memory_order_release);
  return index;
}

Result<void*> DeviceSet::stream(size_t index, StreamDirection direction) {
  Entry& entry = *entries_[index];
  void*& stream = entry.streams[static_cast<size_t>(direction)];
  if (stream == nullptr) {
    const Status status = device_status(
        entry.device, entry.device.table->stream_create(entry.device.instance, &stream),
        "creating a stream");
    if (!status.ok()) return status;
  }
  return stream;
}

void DeviceSet::end_stream(size_t index, StreamDirection direction, const NoHolds& /*none*/) {
  Entry& entry = *entries_[index];
  void*& stream = entry.streams[static_cast<size_t>(direction)];
  if (stream == nullptr) return;
  entry.device.table->stream_destroy(entry.device.instance, std::exchange(stream, nullptr));
}

void DeviceSet::drop_stream(size_t index, StreamDirection direction) {
  Entry& entry = *entries_[index];
  void*& stream = entry.streams[static_cast<size_t>(direction)];
  if (stream == nullptr) return;
  calls_.make_or_put_off({.kind = EndingCall::Kind::kStreamDestroy,
                          .device = &entry.device,
                          .object = std::exchange(stream, nullptr)});
}

bool DeviceSet::ends_sleep(const Device& device, void* event, bool* asked) {
  // Whoever looked at the descriptor since has taken the notice of what was over.
  if (*asked) return device.table->event_query(device.instance, event) == HETCOMM_PENDING;
  if (device.table->event_notify == nullptr) return false;
  const int file = notice_.fd();
  *asked = file >= 0 && device.table->event_notify(device.instance, event, file) == HETCOMM_OK;
  return *asked;
}

void DeviceSet::note_memory(size_t index, const void* address, uint64_t size) {
  if (device(index).table->host_accessible) return;
  const auto first = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address));
  const uint64_t last = size > UINT64_MAX - first ? UINT64_MAX : first + size;
  uint64_t known = highest_forbidden_.load(std::memory_order_relaxed);
  while (known < last && !highest_forbidden_.compare_exchange_weak(known, last)) {
  }
  known = lowest_forbidden_.load(std::memory_order_relaxed);
  while (known > first && !lowest_forbidden_.compare_exchange_weak(known, first)) {
  }
}

// The devices must be asked: an address may be a handle, and host memory can lie beside it.
Code DeviceSet::ask_devices(uint64_t address) const {
  if (address > highest_forbidden_.load(std::memory_order_relaxed)) return Code::kOk;
  DeviceKinds::Place place;
  size_t failed = 0;
  const Code code =
      kinds_.find(reinterpret_cast<const void*>(static_cast<uintptr_t>(address)), &place, &failed);
  if (code == Code::kOk) return Code::kInvalidArgument;
  return code == Code::kNotFound || code == Code::kStaleHandle ? Code::kOk : code;
}

Memory::Memory(DeviceSet& devices, size_t device, void* address, uint64_t size, bool owned)
    : devices_(devices),
      device_(device),
      address_(address),
      size_(size),
      owned_(owned),
      releases_(!owned && this->device().table->release != nullptr) {
  devices_.note_memory(device, address, size);
}

Memory::Memory(DeviceSet& devices, size_t device, void* address, uint64_t size, Unowned /*tag*/)
    : devices_(devices),
      device_(device),
      address_(address),
      size_(size),
      owned_(false),
      releases_(false),
      reachable_(false) {
  devices_.note_memory(device, address, size);
}

Memory::~Memory() {
  if (known_placeholder() != nullptr) munmap(known_placeholder(), size_);
  if (owned_) device().table->free(device().instance, address_);
  if (releases_) device().table->release(device().instance, address_);
}

std::byte* Memory::placeholder() {
  std::byte* known = known_placeholder();
  if (known != nullptr || !reachable_ || !devices_.is_reachable(device_)) return known;
  void* const made =
      mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  if (placeholder_.compare_exchange_strong(known, static_cast<std::byte*>(made))) {
    return static_cast<std::byte*>(made);
  }
  munmap(made, size_);
  return known;
}

Status Memory::flush_remote_writes() const {
  const Device& target = device();
  if (target.table->flush_remote_writes == nullptr) return {};
  return device_status(target, target.table->flush_remote_writes(target.instance),
                       "flushing remote writes");
}

Status Memory::write(uint64_t offset, const void* source, uint64_t length) {
  if (!contains(offset, length)) return out_of_range(offset, length, size_);
  if (length == 0) return {};
  if (host_accessible()) {
    std::memcpy(static_cast<std::byte*>(address_) + offset, source, length);
    return {};
  }
  return copy_and_wait(StreamDirection::kFromHost, offset, const_cast<void*>(source), length);
}

Status Memory::read(uint64_t offset, void* destination, uint64_t length) {
  if (!contains(offset, length)) return out_of_range(offset, length, size_);
  if (length == 0) return {};
  if (host_accessible()) {
    std::memcpy(destination, static_cast<std::byte*>(address_) + offset, length);
    return {};
  }
  return copy_and_wait(StreamDirection::kToHost, offset, destination, length);
}

// Piece by piece, since the host's memory is not pinned: NVIDIA's OpenCL (driver 580) may stand still
// for ever in a longer copy to it, while its threads finish commands of another queue.
Status Memory::copy_and_wait(StreamDirection direction, uint64_t offset, void* host,
                             uint64_t length) {
  constexpr uint64_t kPiece = 4u << 20;
  const Device& target = device();
  const DeviceTable& table = *target.table;
  void* stream = nullptr;
  HETCOMM_RETURN_IF_ERROR(
      device_status(target, table.stream_create(target.instance, &stream), "creating a stream"));
  auto* const bytes = static_cast<std::byte*>(host);
  hetcomm_status_t status = HETCOMM_OK;
  for (uint64_t done = 0; done < length && status == HETCOMM_OK; done += kPiece) {
    const uint64_t size = std::min(kPiece, length - done);
    status = direction == StreamDirection::kToHost
                 ? table.copy_to_host(target.instance, stream, bytes + done, address_,
                                      offset + done, size)
                 : table.copy_from_host(target.instance, stream, address_, offset + done,
                                        bytes + done, size);
    void* event = nullptr;
    if (status == HETCOMM_OK) status = table.event_record(target.instance, stream, &event);
    if (status == HETCOMM_OK) {
      status = table.event_wait(target.instance, event);
      table.event_release(target.instance, event);
    }
  }
  table.stream_destroy(target.instance, stream);
  return device_status(target, status, "copying");
}

}  // namespace hetcomm
