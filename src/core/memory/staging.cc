#include "src/core/memory/staging.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include <fmt/core.h>

#include "src/base/copy.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

Status copy_failed(const Device& device, hetcomm_status_t status) {
  return Status(static_cast<Code>(status),
                fmt::format("{}: a copy or a sum of the device failed: {}", device.table->kind,
                            failure_text(device, status)));
}

// Returns |known|, a low estimate of a duration, updated with the |latest| measurement. A longer
// measurement raises the estimate by 5 % at most, because the thread may have been delayed.
double least_lately(double known, double latest) {
  constexpr double kRise = 1.05;
  return known == 0 ? latest : std::min(latest, known * kRise);
}

// Returns the memory of the first piece in device memory; null if there is none.
const Memory* device_memory(const std::vector<BufferPiece>& pieces) {
  for (const BufferPiece& piece : pieces) {
    if (piece.memory != nullptr && !piece.memory->host_accessible()) return piece.memory;
  }
  return nullptr;
}

// Starts to copy |piece|, row by row if the device cannot copy several rows at a time.
hetcomm_status_t copy_rows(const Device& device, void* stream, StreamDirection direction,
                           const StagedRows& piece) {
  const DeviceTable& table = *device.table;
  const bool to_host = direction == StreamDirection::kToHost;
  void* const address = piece.memory->address();
  if (table.copy_rows_to_host != nullptr) {
    return to_host
               ? table.copy_rows_to_host(device.instance, stream, piece.host, address, &piece.rows)
               : table.copy_rows_from_host(device.instance, stream, address, &piece.rows,
                                           piece.host);
  }
  const DeviceRows& rows = piece.rows;
  std::byte* host = piece.host;
  hetcomm_status_t status = HETCOMM_OK;
  for (uint64_t i = 0; i < rows.extents[0]; ++i) {
    for (uint64_t j = 0; j < rows.extents[1] && status == HETCOMM_OK; ++j) {
      const uint64_t at = rows.offset + i * rows.strides[0] + j * rows.strides[1];
      status =
          to_host
              ? table.copy_to_host(device.instance, stream, host, address, at, rows.row_bytes)
              : table.copy_from_host(device.instance, stream, address, at, host, rows.row_bytes);
      host += rows.row_bytes;
    }
  }
  return status;
}

hetcomm_status_t copy_between(const Device& device, void* stream, const Memory& from,
                              const DeviceRows& from_rows, const Memory& to,
                              const DeviceRows& to_rows) {
  return device.table->copy_rows_between(device.instance, stream, from.address(), &from_rows,
                                         to.device().instance, to.address(), &to_rows);
}

}  // namespace

Staging::Staging(DeviceSet& devices, const StagingOptions& options, SpinPolicy* spin)
    : devices_(devices),
      spin_(spin),
      chunks_(devices, options),
      stand_ins_(devices, kKeptStandIns) {
  meet_devices();
}

void Staging::meet_devices() {
  const size_t loads = devices_.size() * kStreamDirections;
  if (found_.size() == loads) return;
  loads_.resize(loads);
  found_.resize(loads);  // last, so the devices count as known only after success
}

CopyCosts Staging::costs(StreamDirection direction, const std::vector<BufferPiece>& pieces) {
  const Memory* const memory = device_memory(pieces);
  if (memory == nullptr) return {};
  meet_devices();
  const Load& load = loads_[load_of(memory->device_index(), direction)];
  return {.bytes_per_s = load.copies.rate(), .start_s = load.start_s};
}

// kMinTimeS comes from measurements with 4 to 64 MiB, from 1 GB/s to 40 GB/s. Shorter copies cost
// more than the overlap gains, and longer ones do not fit in caches.
uint64_t Staging::slice_bytes(StreamDirection direction, const std::vector<BufferPiece>& pieces) {
  constexpr double kMinTimeS = 1e-3;
  constexpr double kUsualRate = 10e9;
  constexpr uint64_t kSmallestSlice = 256u << 10;
  constexpr uint64_t kLargestSlice = 4u << 20;
  if (chunks_.options().chunk_bytes != 0) return chunks_.options().chunk_bytes;
  const CopyCosts known = costs(direction, pieces);
  const double rate = known.bytes_per_s > 0 ? known.bytes_per_s : kUsualRate;
  return std::clamp(static_cast<uint64_t>(rate * kMinTimeS), kSmallestSlice, kLargestSlice);
}

size_t Staging::chunk_kind_of(const std::vector<BufferPiece>& pieces) {
  const Memory* const memory = device_memory(pieces);
  if (memory == nullptr) return 0;
  return chunks_.kind_of(memory->device_index());
}

bool Staging::takes_any_memory(const std::vector<BufferPiece>& pieces) {
  return std::all_of(
      pieces.begin(), pieces.end(), [&](const BufferPiece& piece) HETCOMM_UNDER_BATON {
        return piece.memory == nullptr ||
               chunks_.kind(chunks_.kind_of(piece.memory->device_index())).any_memory;
      });
}

StandIns::Memory Staging::stand_in(uint64_t size, const std::vector<BufferPiece>& pieces) {
  try {
    const Memory* const memory = device_memory(pieces);
    if (memory == nullptr) return stand_ins_.take(size, {});
    const auto& [node, allocator, any_memory] =
        chunks_.kind(chunks_.kind_of(memory->device_index()));
    return stand_ins_.take(size,
                           {.node = node, .allocator = allocator, .pins = chunks_.options().pins});
  } catch (const std::bad_alloc&) {
    return {};
  }
}

void Staging::prepare_for_holds(size_t index) {
  meet_devices();
  // Streams that cannot be created now may be created later.
  static_cast<void>(devices_.stream(index, StreamDirection::kToHost));
  static_cast<void>(devices_.stream(index, StreamDirection::kFromHost));
  const DeviceTable& table = *devices_.device(index).table;
  if (table.copy_rows_between != nullptr || table.reduce != nullptr) {
    static_cast<void>(devices_.stream(index, StreamDirection::kAside));
  }
  chunks_.prepare_for_holds(index);
}

Status Staging::start_piece(CopyJob& job, StreamDirection direction, const BufferPiece& piece,
                            uint64_t offset, std::byte* host, uint64_t length) {
  const bool on_host = piece.memory == nullptr || piece.memory->host_accessible();
  if (on_host) {
    auto* address = piece.memory == nullptr
                        ? reinterpret_cast<std::byte*>(piece.offset)
                        : static_cast<std::byte*>(piece.memory->address()) + piece.offset;
    if (direction == StreamDirection::kToHost) {
      copy_long(host, address + offset, length);
    } else {
      copy_long(address + offset, host, length);
    }
    return {};
  }
  const uint64_t at = piece.offset + offset;
  return submit(job, direction, piece.memory->device_index(), length, HostRange::of(host, length),
                [&](const Device& device, void* stream) {
                  void* const address = piece.memory->address();
                  return direction == StreamDirection::kToHost
                             ? device.table->copy_to_host(device.instance, stream, host, address,
                                                          at, length)
                             : device.table->copy_from_host(device.instance, stream, address, at,
                                                            host, length);
                });
}

// Starts copies of |length| bytes on device |number| by calling copies(device, stream).
template <typename Submit>
Status Staging::submit(CopyJob& job, StreamDirection direction, size_t number, uint64_t length,
                       const HostRange& host, Submit&& copies) {
  const Device& device = devices_.device(number);
  if (devices_.is_abandoned(number)) [[unlikely]]
    return devices_.check(number);
  job.make_room();
  meet_devices();
  Result<void*> stream = devices_.stream(number, direction);
  if (!stream.ok()) return stream.status();
  const bool is_near = spin_ != nullptr && chunks_.kind(chunks_.kind_of(number)).any_memory;
  const uint64_t begin_ns = now_ns();
  hetcomm_status_t status = copies(device, stream.value());
  void* event = nullptr;
  if (status == HETCOMM_OK) {
    status = device.table->event_record(device.instance, stream.value(), &event);
  }
  if (status != HETCOMM_OK) {
    // Copies may be running without an event that would signal their end.
    job.unended_ = CopyJob::Unended{number, direction, host};
    end_copies(job);
    return copy_failed(device, status);
  }
  const uint32_t index = load_of(number, direction);
  Load& load = loads_[index];
  const uint64_t end_ns = now_ns();
  load.copies.start(length, end_ns);
  load.start_s = least_lately(load.start_s, static_cast<double>(end_ns - begin_ns) * 1e-9);
  if (is_near) spin_->begin_near_work();
  devices_.copy_started(number, end_ns);
  add_event(job, {.device = &device,
                  .event = event,
                  .bytes = length,
                  .host = host,
                  .started_ns = end_ns,
                  .load = index,
                  .is_near = is_near,
                  .ends_sleep = false});
  return {};
}

// Waits for the end of copies of |job| that were started without an event to signal their end.
// While a user's stream is held back, tries again to record such an event instead, because
// destroying the stream might wait for the user's stream. A lost device no longer runs any copies.
void Staging::end_copies(CopyJob& job) {
  const auto [number, direction, host] = *job.unended_;
  const NoHolds none(devices_.calls());
  // If the device has abandoned copies, end_stream() would not wait, because it defers the
  // destruction of the stream.
  if (none && !devices_.abandoned().use(devices_.device(number))) {
    devices_.end_stream(number, direction, none);
    job.unended_.reset();
    return;
  }
  const Device& device = devices_.device(number);
  const Result<void*> stream = devices_.stream(number, direction);
  if (!stream.ok()) return;
  void* event = nullptr;
  const hetcomm_status_t status =
      device.table->event_record(device.instance, stream.value(), &event);
  if (status == HETCOMM_DEVICE_LOST) devices_.drop_stream(number, direction);
  if (status != HETCOMM_OK && status != HETCOMM_DEVICE_LOST) return;
  job.unended_.reset();
  if (status != HETCOMM_OK) return;
  const uint32_t index = load_of(number, direction);
  const uint64_t now = now_ns();
  loads_[index].copies.start(0, now);
  devices_.copy_started(number, now);
  add_event(job, {.device = &device,
                  .event = event,
                  .bytes = 0,
                  .host = host,
                  .started_ns = now,
                  .load = index,
                  .is_near = false,
                  .ends_sleep = false});
}

void Staging::add_event(CopyJob& job, const CopyJob::Event& event) {
  job.push(event);
  if (loads_[event.load].events++ == 0) ++busy_loads_;
}

void Staging::enlist(CopyJob& job, CopyHandler& handler) {
  job.next_ = nullptr;
  *running_end_ = &job;
  running_end_ = &job.next_;
  job.handler_ = &handler;
  job.status_ = {};
  job.running_ = true;
}

// Submits all leading pieces that the same device copies. copy(device, stream, piece) starts each
// of them. They share one event.
template <typename Piece, typename Copy>
Status Staging::submit_alike(CopyJob& job, StreamDirection direction,
                             std::span<const Piece>& pieces, Memory* Piece::*memory,
                             DeviceRows Piece::*rows, Copy&& copy) {
  const Memory& first = *(pieces.front().*memory);
  size_t count = 0;
  uint64_t bytes = 0;
  HostRange host;
  while (count < pieces.size() && (pieces[count].*memory)->device_index() == first.device_index()) {
    const uint64_t length = bytes_of(pieces[count].*rows);
    if constexpr (std::is_same_v<Piece, StagedRows>) {
      host.extend(HostRange::of(pieces[count].host, length));
    }
    bytes += length;
    ++count;
  }
  const std::span<const Piece> alike = pieces.first(count);
  pieces = pieces.subspan(count);
  const auto copies = [&](const Device& device, void* stream) {
    hetcomm_status_t status = HETCOMM_OK;
    for (size_t i = 0; i < count && status == HETCOMM_OK; ++i) {
      status = copy(device, stream, alike[i]);
    }
    return status;
  };
  try {
    return submit(job, direction, first.device_index(), bytes, host, copies);
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory);
  }
}

void Staging::start(CopyJob& job, StreamDirection direction, std::span<const StagedRows> pieces,
                    CopyHandler& handler) {
  enlist(job, handler);
  const auto copy = [direction](const Device& device, void* stream, const StagedRows& piece) {
    return copy_rows(device, stream, direction, piece);
  };
  while (!pieces.empty() && job.status_.ok()) {
    job.status_ =
        submit_alike(job, direction, pieces, &StagedRows::memory, &StagedRows::rows, copy);
  }
  note_started(job);
}

bool can_copy_between(const Memory& from, const Memory& to) {
  const DeviceTable& table = *from.device().table;
  if (table.copy_rows_between == nullptr ||
      table.copy_rows_between != to.device().table->copy_rows_between) {
    return false;
  }
  return copy_between(from.device(), nullptr, from, one_row(0, 0), to, one_row(0, 0)) == HETCOMM_OK;
}

void Staging::start(CopyJob& job, std::span<const RowsBetween> pieces, CopyHandler& handler) {
  enlist(job, handler);
  const auto copy = [](const Device& device, void* stream, const RowsBetween& piece) {
    return copy_between(device, stream, *piece.from, piece.from_rows, *piece.to, piece.to_rows);
  };
  while (!pieces.empty() && job.status_.ok()) {
    job.status_ = submit_alike(job, StreamDirection::kAside, pieces, &RowsBetween::from,
                               &RowsBetween::from_rows, copy);
  }
  note_started(job);
}

bool Staging::try_start(CopyJob& job, size_t device, uint64_t bytes, DeviceWork& work,
                        CopyHandler& handler) {
  Status status;
  try {
    status = submit(job, StreamDirection::kAside, device, bytes, work.host(),
                    [&](const Device& own, void* stream) { return work.start(own, stream); });
  } catch (const std::bad_alloc&) {
    status = Status(Code::kOutOfMemory);
  }
  if (!status.ok() && !work.has_begun_to_write() && !job.has_events() && !job.unended_) {
    return false;
  }
  enlist(job, handler);
  job.status_ = status;
  note_started(job);
  return true;
}

void Staging::start(CopyJob& job, StreamDirection direction, const std::vector<BufferPiece>& pieces,
                    uint64_t offset, std::byte* host, uint64_t length, CopyHandler& handler) {
  enlist(job, handler);
  for (const BufferPiece& piece : pieces) {
    if (length == 0) break;
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const uint64_t part = std::min(piece.length - offset, length);
    try {
      job.status_ = start_piece(job, direction, piece, offset, host, part);
    } catch (const std::bad_alloc&) {
      job.status_ = Status(Code::kOutOfMemory);
    }
    if (!job.status_.ok()) break;
    host += part;
    length -= part;
    offset = 0;
  }
  note_started(job);
}

// Returns whether check(event) is true for the first event that progress() waits for in each
// stream. Returns false if a job waits for no event.
template <typename Check>
bool Staging::check_first_events(Check&& check) const {
  bool all = true;
  for (CopyJob* job = running_; job != nullptr && all; job = job->next_) {
    all = job->has_events() && !job->unended_;
    if (!all) break;
    CopyJob::Event& event = job->last();
    if (found_[event.load]) continue;
    found_[event.load] = true;
    all = check(event);
  }
  std::fill(found_.begin(), found_.end(), false);
  return all;
}

bool Staging::prepare_sleep() {
  return check_first_events([this](CopyJob::Event& event) HETCOMM_UNDER_BATON {
    return devices_.ends_sleep(*event.device, event.event, &event.ends_sleep);
  });
}

bool Staging::may_sleep_on() const {
  return check_first_events([](const CopyJob::Event& event) { return event.ends_sleep; });
}

int Staging::progress() {
  int done = 0;
  const uint64_t now = now_ns();
  const bool all = std::exchange(look_at_all_, false);
  size_t pending = 0;  // loads whose first event, and so every event, is still incomplete
  ++pass_;
  // Upcalls may append jobs. Only this function removes jobs.
  for (CopyJob** link = &running_; *link != nullptr && (all || pending < busy_loads_);) {
    CopyJob& job = **link;
    if (job.unended_) [[unlikely]] {
      end_copies(job);
      look_at_all_ = true;
    }
    while (job.has_events()) {
      const CopyJob::Event& last = job.last();
      uint64_t& pending_in = loads_[last.load].pending_in;
      if (pending_in == pass_) break;
      const hetcomm_status_t status =
          last.device->table->event_query(last.device->instance, last.event);
      if (status == HETCOMM_PENDING) {
        pending_in = pass_;
        ++pending;
        break;
      }
      if (status != HETCOMM_OK && job.status_.ok()) {
        job.status_ = copy_failed(*last.device, status);
      }
      devices_.calls().release_event(*last.device, last.event);
      loads_[last.load].copies.finish(last.bytes, now);
      if (last.is_near) spin_->end_near_work();
      devices_.copy_ended(device_of(last), now);
      drop_event(last.load);
      job.pop();
    }
    if (job.has_events() || job.unended_) {
      link = &job.next_;
      continue;
    }
    *link = job.next_;
    if (running_end_ == &job.next_) running_end_ = link;
    job.running_ = false;
    ++done;
    const Status status = job.status_;
    job.handler_->on_copied(status);
  }
  return done;
}

void Staging::on_abandoned(size_t index) {
  const uint64_t now = now_ns();
  look_at_all_ = true;
  for (CopyJob* job = running_; job != nullptr; job = job->next_) {
    bool is_used = false;
    job->take_events([&](const CopyJob::Event& event) HETCOMM_UNDER_BATON {
      if (device_of(event) != index) return false;
      const bool is_aside = event.load == load_of(index, StreamDirection::kAside);
      devices_.abandoned().add(
          {.device = event.device, .event = event.event, .host = event.host, .is_aside = is_aside});
      loads_[event.load].copies.finish(event.bytes, now);
      if (event.is_near) spin_->end_near_work();
      devices_.copy_ended(index, now);
      drop_event(event.load);
      is_used = true;
      return true;
    });
    if (job->unended_ && job->unended_->device == index) {
      devices_.abandoned().add({.device = &devices_.device(index),
                                .event = nullptr,
                                .host = job->unended_->host,
                                .is_aside = job->unended_->direction == StreamDirection::kAside});
      job->unended_.reset();
    }
    if (is_used && job->status_.ok()) job->status_ = devices_.check(index);
  }
}

void Staging::describe_oldest_copy(size_t index, uint64_t now_ns, uint64_t* started_ns,
                                   std::string* text) {
  constexpr const char* kWays[] = {"to the host", "from the host", "inside of devices"};
  for (CopyJob* job = running_; job != nullptr; job = job->next_) {
    const auto look = [&](const CopyJob::Event& event) HETCOMM_UNDER_BATON {
      if (device_of(event) != index || event.started_ns >= *started_ns) return false;
      *started_ns = event.started_ns;
      *text = fmt::format("{} bytes {} for {}, under way for {:.1f} s", event.bytes,
                          kWays[event.load % kStreamDirections], job->handler_->copy_purpose(),
                          static_cast<double>(now_ns - event.started_ns) / 1e9);
      return false;
    };
    job->take_events(look);
  }
}

}  // namespace hetcomm
