#include "src/core/device/memory.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include <fmt/core.h>

#include <hetcomm/memory.h>

#include "src/base/copy.h"
#include "src/base/text.h"
#include "src/system/clock.h"

namespace hetcomm {

static_assert(DeviceSet::kMaxDevices == HETCOMM_MAX_DEVICES);

namespace {

// Converts |status|, the result of a vendor call, to a Status. |what| names the action.
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

// An object of a device whose release is deferred until no abandoned copy can block it. The
// destructor of the derived class releases the object.
class KeptByDevice : public AbandonedCopies::Kept {
 public:
  explicit KeptByDevice(const Device& device) : device_(device) {}
  bool is_used(const AbandonedCopies::List& copies) const final { return copies.use(device_); }
  bool needs(const Device& device) const final { return &device == &device_; }
  void forget(const Device& /*device*/) final {}

 protected:
  const Device& device_;
};

class KeptStream final : public KeptByDevice {
 public:
  KeptStream(const Device& device, void* stream) : KeptByDevice(device), stream_(stream) {}
  ~KeptStream() override { device_.table->stream_destroy(device_.instance, stream_); }

 private:
  void* const stream_;
};

class KeptAllocation final : public KeptByDevice {
 public:
  KeptAllocation(const Device& device, void* address) : KeptByDevice(device), address_(address) {}
  ~KeptAllocation() override { device_.table->free(device_.instance, address_); }

 private:
  void* const address_;
};

class KeptUse final : public KeptByDevice {
 public:
  KeptUse(const Device& device, void* address) : KeptByDevice(device), address_(address) {}
  ~KeptUse() override { device_.table->release(device_.instance, address_); }

 private:
  void* const address_;
};

}  // namespace

DeviceSet::~DeviceSet() {
  abandoned_.look();
  calls_.make_all();
  for (size_t i = 0; i < size(); ++i) {
    Entry& entry = *entries_[i];
    if (abandoned_.must_stay(entry.device)) {
      notice_.leave_open();
      static_cast<void>(entries_[i].release());  // kept objects still refer to the device
      continue;
    }
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
  if (index == kMaxDevices) {
    return Status(Code::kOutOfResources,
                  fmt::format("a context has at most {} devices", kMaxDevices));
  }
  entries_[index].reset(new (std::nothrow) Entry(table.value(), device));
  if (entries_[index] == nullptr) return Status(Code::kOutOfMemory);
  entries_[index]->device.table = &entries_[index]->table;
  if (!kinds_.make_room()) {
    entries_[index].reset();
    return Status(Code::kOutOfMemory);
  }
  // size() includes the device before kinds() can find its memory.
  size_.store(index + 1, std::memory_order_release);
  kinds_.add(entries_[index]->device, index);
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
  if (stream != nullptr) destroy_stream(index, std::exchange(stream, nullptr));
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
  // Another thread may already have consumed the notice, so the event itself is queried.
  if (*asked) return device.table->event_query(device.instance, event) == HETCOMM_PENDING;
  if (device.table->event_notify == nullptr) return false;
  const int file = notice_.fd();
  *asked = file >= 0 && device.table->event_notify(device.instance, event, file) == HETCOMM_OK;
  return *asked;
}

bool DeviceSet::some_hang(const void* devices) {
  const auto& own = *static_cast<const DeviceSet*>(devices);
  for (size_t i = 1; i < own.size(); ++i) {
    if (own.entries_[i]->watch.seems_to_hang()) return true;
  }
  return false;
}

void DeviceSet::arrange_look(uint64_t now_ns) {
  if (warden_ == nullptr || next_look_ns_ > now_ns) return;
  next_look_ns_ = deadline_after(now_ns, copy_limit_ns_);
  warden_->look_at_copies(next_look_ns_);
}

bool DeviceSet::abandon(size_t index, std::string_view why) {
  Entry& entry = *entries_[index];
  if (entry.abandoned.load(std::memory_order_relaxed)) return false;
  try {
    entry.reason = fmt::format("device {} ({}) was given up: {}", index, entry.table.kind, why);
  } catch (const std::bad_alloc&) {
    entry.reason.clear();
  }
  entry.abandoned.store(true, std::memory_order_release);
  has_abandoned_.store(true, std::memory_order_release);
  return true;
}

Status DeviceSet::check(size_t index) const {
  if (!is_abandoned(index)) return {};
  return status_or_code(Code::kDeviceLost, [&] { return entries_[index]->reason; });
}

void DeviceSet::look_at_abandoned() {
  if (abandoned_.none()) return;
  if (const NoHolds none(calls_); none) abandoned_.look();
}

// Releases |thing|, an object of device |index|, in the destructor of Kept. Defers the release if
// it could wait for an abandoned copy.
template <typename Kept>
void DeviceSet::end(size_t index, void* thing) {
  const Device& owner = device(index);
  if (!abandoned_.none() &&
      abandoned_.keep_if([&](const auto& copies) { return copies.use(owner); },
                         [&] { return new (std::nothrow) Kept(owner, thing); })) {
    return;
  }
  const Kept ended(owner, thing);
}

void DeviceSet::free(size_t index, void* address) { end<KeptAllocation>(index, address); }

void DeviceSet::release(size_t index, void* address) { end<KeptUse>(index, address); }

void DeviceSet::destroy_stream(size_t index, void* stream) { end<KeptStream>(index, stream); }

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

// Queries the devices for |address|. The bounds alone cannot decide: the addresses of a device may
// be handles, and host memory can be located between them.
Code DeviceSet::ask_devices(uint64_t address) const {
  if (address > highest_forbidden_.load(std::memory_order_relaxed)) return Code::kOk;
  DeviceKinds::Found found;
  size_t failed = 0;
  const Code code =
      kinds_.find(reinterpret_cast<const void*>(static_cast<uintptr_t>(address)), &found, &failed);
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
  if (owned_) devices_.free(device_, address_);
  if (releases_) devices_.release(device_, address_);
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
  HETCOMM_RETURN_IF_ERROR(devices_.check(device_));
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

// A blocking copy, in pieces through two chunks of host memory: while the device copies one chunk,
// the other is filled or emptied.
class Memory::BlockingCopy {
 public:
  BlockingCopy(DeviceSet& devices, size_t index, StreamDirection direction, const void* address)
      : devices_(devices),
        index_(index),
        device_(devices.device(index)),
        to_host_(direction == StreamDirection::kToHost),
        address_(const_cast<void*>(address)) {}
  BlockingCopy(const BlockingCopy&) = delete;
  BlockingCopy& operator=(const BlockingCopy&) = delete;
  ~BlockingCopy() {
    for (Piece& piece : pieces_) {
      if (piece.event != nullptr) static_cast<void>(wait(piece));
      if (piece.event != nullptr) abandon(piece);
      if (piece.chunk != nullptr) devices_.blocking_chunks().give(std::move(piece.chunk), most_);
    }
    if (stream_ != nullptr) devices_.destroy_stream(index_, stream_);
  }

  Status run(uint64_t offset, std::byte* host, uint64_t length) {
    HETCOMM_RETURN_IF_ERROR(device_status(
        device_, device_.table->stream_create(device_.instance, &stream_), "creating a stream"));
    most_ = std::min(length, BlockingChunks::kBytes);
    for (uint64_t done = 0; done < length; done += most_) {
      Piece& piece = pieces_[done / most_ % pieces_.size()];
      HETCOMM_RETURN_IF_ERROR(finish(piece));
      piece.host = host + done;
      piece.bytes = std::min(most_, length - done);
      if (piece.chunk == nullptr) piece.chunk = devices_.blocking_chunks().take(most_);
      HETCOMM_RETURN_IF_ERROR(start(piece, offset + done));
    }
    Piece& last = pieces_[(length - 1) / most_ % pieces_.size()];
    for (Piece& piece : pieces_) {
      if (&piece != &last) HETCOMM_RETURN_IF_ERROR(finish(piece));
    }
    return finish(last);
  }

 private:
  struct Piece {
    BlockingChunks::Memory chunk;
    std::byte* host = nullptr;  // caller's memory
    uint64_t bytes = 0;
    void* event = nullptr;  // null: no copy is running
  };

  Status start(Piece& piece, uint64_t at) {
    HETCOMM_RETURN_IF_ERROR(devices_.check(index_));
    const DeviceTable& table = *device_.table;
    std::byte* const chunk = piece.chunk.get();
    if (!to_host_) copy_long(chunk, piece.host, piece.bytes);
    hetcomm_status_t status =
        to_host_
            ? table.copy_to_host(device_.instance, stream_, chunk, address_, at, piece.bytes)
            : table.copy_from_host(device_.instance, stream_, address_, at, chunk, piece.bytes);
    void* event = nullptr;
    if (status == HETCOMM_OK) status = table.event_record(device_.instance, stream_, &event);
    if (status == HETCOMM_OK) {
      piece.event = event;
      return {};
    }
    // The copy may be running without an event that would signal its end. Destroying the stream
    // waits for the copy.
    table.stream_destroy(device_.instance, std::exchange(stream_, nullptr));
    return device_status(device_, status, "copying");
  }

  // Finishes the running copy of |piece|, if there is one, and returns its result.
  Status finish(Piece& piece) {
    if (piece.event == nullptr) return {};
    HETCOMM_RETURN_IF_ERROR(wait(piece));
    if (to_host_) copy_long(piece.host, piece.chunk.get(), piece.bytes);
    return {};
  }

  // Waits for the copy of |piece|. Afterwards the event is null, unless the device was abandoned.
  Status wait(Piece& piece) {
    constexpr uint64_t kSpinNs = 50'000;
    constexpr uint64_t kLongestNapNs = 500'000;
    const uint64_t begin = now_ns();
    bool has_told = false;
    for (uint64_t nap_ns = 5'000;;) {
      const hetcomm_status_t status = device_.table->event_query(device_.instance, piece.event);
      if (status != HETCOMM_PENDING) {
        device_.table->event_release(device_.instance, std::exchange(piece.event, nullptr));
        return device_status(device_, status, "copying");
      }
      HETCOMM_RETURN_IF_ERROR(devices_.check(index_));
      const uint64_t waited_ns = now_ns() - begin;
      if (waited_ns < kSpinNs) {
        sched_yield();
        continue;
      }
      if (waited_ns >= devices_.copy_limit_ns() && !std::exchange(has_told, true)) {
        devices_.on_hang(index_,
                         fmt::format("{} bytes {} for a call that waits for them", piece.bytes,
                                     to_host_ ? "to the host" : "from the host"),
                         begin);
      }
      std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
      nap_ns = std::min(nap_ns * 2, kLongestNapNs);
    }
  }

  // Hands the piece's copy, which may still be running, to AbandonedCopies.
  void abandon(Piece& piece) {
    const HostRange host = HostRange::of(piece.chunk.get(), piece.bytes);
    devices_.abandoned().add({.device = &device_, .event = piece.event, .host = host});
    devices_.abandoned().keep_if_touched(host, piece.chunk);
    piece.event = nullptr;
  }

  DeviceSet& devices_;
  const size_t index_;
  const Device& device_;
  const bool to_host_;
  void* const address_;
  uint64_t most_ = 0;  // size of a full piece
  void* stream_ = nullptr;
  std::array<Piece, 2> pieces_;
};

Status Memory::copy_and_wait(StreamDirection direction, uint64_t offset, void* host,
                             uint64_t length) {
  HETCOMM_RETURN_IF_ERROR(devices_.check(device_));
  return BlockingCopy(devices_, device_, direction, address_)
      .run(offset, static_cast<std::byte*>(host), length);
}

}  // namespace hetcomm
