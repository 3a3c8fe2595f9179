#include "src/core/staging.h"

#include <cstdlib>
#include <cstring>

namespace hetcomm {

Staging::~Staging() {
  for (std::byte* chunk : chunks_) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      const Device& device = devices_.device(i);
      if (device.table->unpin_host != nullptr) device.table->unpin_host(device.instance, chunk);
    }
    std::free(chunk);
  }
}

std::byte* Staging::make_chunk() {
  constexpr size_t kPage = 4096;
  const size_t size = (chunk_bytes_ + kPage - 1) / kPage * kPage;
  auto* chunk = static_cast<std::byte*>(std::aligned_alloc(kPage, size));
  if (chunk == nullptr) return nullptr;
  // Pinning makes copies faster where a device has it; they work without.
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Device& device = devices_.device(i);
    if (device.table->pin_host == nullptr) continue;
    if (device.table->pin_host(device.instance, chunk, size) != HETCOMM_OK) continue;
  }
  chunks_.push_back(chunk);
  return chunk;
}

std::byte* Staging::acquire(Pool pool, bool holds_one, bool* exhausted) {
  PoolState& state = pools_[static_cast<size_t>(pool)];
  *exhausted = false;
  if (!state.free.empty()) {
    std::byte* chunk = state.free.back();
    state.free.pop_back();
    return chunk;
  }
  if (holds_one && state.made >= kMaxChunks) return nullptr;
  std::byte* chunk = make_chunk();
  *exhausted = chunk == nullptr;
  if (chunk != nullptr) ++state.made;
  return chunk;
}

void Staging::release(Pool pool, std::byte* chunk) {
  pools_[static_cast<size_t>(pool)].free.push_back(chunk);
}

Status Staging::start_piece(CopyJob& job, StreamDirection direction, const BufferPiece& piece,
                            uint64_t offset, std::byte* host, uint64_t length) {
  const bool on_host = piece.memory == nullptr || piece.memory->host_accessible();
  if (on_host) {
    auto* address = piece.memory == nullptr
                        ? reinterpret_cast<std::byte*>(piece.offset)
                        : static_cast<std::byte*>(piece.memory->address()) + piece.offset;
    if (direction == StreamDirection::kToHost) {
      std::memcpy(host, address + offset, length);
    } else {
      std::memcpy(address + offset, host, length);
    }
    return {};
  }
  const Device& device = piece.memory->device();
  Result<void*> stream = devices_.stream(piece.memory->device_index(), direction);
  if (!stream.ok()) return stream.status();
  const uint64_t at = piece.offset + offset;
  hetcomm_status_t status =
      direction == StreamDirection::kToHost
          ? device.table->copy_to_host(device.instance, stream.value(), host,
                                       piece.memory->address(), at, length)
          : device.table->copy_from_host(device.instance, stream.value(), piece.memory->address(),
                                         at, host, length);
  void* event = nullptr;
  if (status == HETCOMM_OK) {
    status = device.table->event_record(device.instance, stream.value(), &event);
  }
  if (status != HETCOMM_OK) {
    return Status(static_cast<Code>(status), std::string(device.table->kind) + ": copy failed");
  }
  job.push({&device, event});
  return {};
}

void Staging::start(CopyJob& job, StreamDirection direction, const std::vector<BufferPiece>& pieces,
                    uint64_t offset, std::byte* host, uint64_t length, CopyHandler& handler) {
  job.handler_ = &handler;
  job.status_ = {};
  job.running_ = true;
  for (const BufferPiece& piece : pieces) {
    if (length == 0) break;
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const uint64_t part = std::min(piece.length - offset, length);
    job.status_ = start_piece(job, direction, piece, offset, host, part);
    if (!job.status_.ok()) break;
    host += part;
    length -= part;
    offset = 0;
  }
  running_.push_back(&job);
}

int Staging::progress() {
  int done = 0;
  for (size_t i = 0; i < running_.size();) {
    CopyJob& job = *running_[i];
    while (job.has_events()) {
      const CopyJob::Event& last = job.last();
      const hetcomm_status_t status =
          last.device->table->event_query(last.device->instance, last.event);
      if (status == HETCOMM_PENDING) break;
      if (status != HETCOMM_OK && job.status_.ok()) {
        job.status_ = Status(static_cast<Code>(status),
                             std::string(last.device->table->kind) + ": device copy failed");
      }
      last.device->table->event_release(last.device->instance, last.event);
      job.pop();
    }
    if (job.has_events()) {
      ++i;
      continue;
    }
    running_[i] = running_.back();
    running_.pop_back();
    job.running_ = false;
    ++done;
    const Status status = job.status_;
    job.handler_->on_copied(status);
  }
  return done;
}

}  // namespace hetcomm
