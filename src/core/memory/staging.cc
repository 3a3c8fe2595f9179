#include "src/core/memory/staging.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "src/base/copy.h"

namespace hetcomm {
namespace {

constexpr uint64_t kPage = 4096;

Status copy_failed(const Device& device, hetcomm_status_t status) {
  const auto code = static_cast<Code>(status);
  return Status(code, fmt::format("{}: a copy between host and device failed: {}",
                                  device.table->kind, code_text(code)));
}

// The first piece that lies in memory of a device; null: none does.
const Memory* device_memory(const std::vector<BufferPiece>& pieces) {
  for (const BufferPiece& piece : pieces) {
    if (piece.memory != nullptr && !piece.memory->host_accessible()) return piece.memory;
  }
  return nullptr;
}

// Starts to copy |piece|: row by row where the device does not know rows.
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

}  // namespace

// Every stage but one waits for a chunk at the beginning and for one at the end, so chunks should
// be small. Each chunk costs about kChunkCostS beside its bytes, so chunks should be few. The sum
// of both costs is least at the root below. Measurements from 250 MB/s to 14 GB/s, with 256 KiB to
// 64 MiB, agree with it.
StagingShape choose_staging_shape(const StagingOptions& options, uint64_t length,
                                  double bytes_per_s) {
  constexpr double kChunkCostS = 5e-6;
  constexpr double kUsualRate = 10e9;
  constexpr uint64_t kSmallestChunk = 32u << 10;
  // Bytes under way at once. They suffice for each stage and for the request of the next chunk.
  constexpr uint64_t kDepthBytes = 1u << 20;
  constexpr uint64_t kLeastDepth = 4;
  StagingShape shape;
  shape.chunk_bytes = options.chunk_bytes;
  if (shape.chunk_bytes == 0) {
    const double rate = bytes_per_s > 0 ? bytes_per_s : kUsualRate;
    const double best = std::sqrt(static_cast<double>(length) * rate * kChunkCostS / 2);
    const double within = std::clamp(best, static_cast<double>(kSmallestChunk),
                                     static_cast<double>(Staging::kLargestChunk));
    shape.chunk_bytes = uint64_t{1} << std::lround(std::log2(within));
  }
  shape.depth = static_cast<size_t>(std::clamp<uint64_t>(
      options.depth != 0 ? options.depth : std::max(kDepthBytes / shape.chunk_bytes, kLeastDepth),
      1, Staging::kMaxDepth));
  return shape;
}

Staging::Staging(DeviceSet& devices, const StagingOptions& options)
    : devices_(devices),
      options_(options),
      block_bytes_((std::max(options.chunk_bytes, kLargestChunk) + kPage - 1) / kPage * kPage),
      nodes_{kAnyNumaNode},
      device_places_(devices.size()),
      loads_(devices.size() * 2) {
  for (size_t i = 0; i < std::min(devices.size(), options.device_nodes.size()); ++i) {
    const auto known = std::find(nodes_.begin(), nodes_.end(), options.device_nodes[i]);
    device_places_[i] = static_cast<size_t>(known - nodes_.begin());
    if (known == nodes_.end()) nodes_.push_back(options.device_nodes[i]);
  }
  for (PoolState& pool : pools_) pool.free.resize(nodes_.size());
}

Staging::~Staging() {
  for (const auto& block : blocks_) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      const Device& device = devices_.device(i);
      if (device.table->unpin_host != nullptr) {
        device.table->unpin_host(device.instance, block->bytes.get());
      }
    }
  }
}

Staging::Block* Staging::make_block(size_t place) {
  auto block = std::make_unique<Block>();
  blocks_.reserve(blocks_.size() + 1);
  block->place = place;
  block->bytes = allocate_near(block_bytes_, nodes_[place]);
  if (block->bytes == nullptr) return nullptr;
  // Pinning makes copies faster if the device has it. Copies work without it too.
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Device& device = devices_.device(i);
    if (device.table->pin_host == nullptr) continue;
    if (device.table->pin_host(device.instance, block->bytes.get(), block_bytes_) != HETCOMM_OK) {
      continue;
    }
  }
  return blocks_.emplace_back(std::move(block)).get();
}

Staging::Block* Staging::take_free(PoolState& state, size_t place) {
  Block* const block = state.free[place];
  if (block != nullptr) state.free[place] = std::exchange(block->next, nullptr);
  return block;
}

// Of any place.
Staging::Block* Staging::take_free(PoolState& state) {
  Block* block = nullptr;
  for (size_t place = 0; place < state.free.size() && block == nullptr; ++place) {
    block = take_free(state, place);
  }
  return block;
}

Staging::Block* Staging::acquire(Pool pool, size_t place, bool has_one, bool* exhausted) {
  PoolState& state = pools_[static_cast<size_t>(pool)];
  *exhausted = false;
  if (Block* const block = take_free(state, place)) return block;
  if (state.made >= kMaxBlocks) {
    Block* const other = take_free(state);
    if (other != nullptr || has_one) return other;
  }
  Block* block = make_block(place);
  if (block != nullptr) {
    ++state.made;
  } else {
    block = take_free(state);
    *exhausted = block == nullptr;
  }
  return block;
}

void Staging::release(Pool pool, Block* block) {
  Block*& free = pools_[static_cast<size_t>(pool)].free[block->place];
  block->next = std::exchange(free, block);
}

std::byte* Staging::Share::take(bool has_one, bool* exhausted) {
  const uint64_t count = std::min<uint64_t>(staging_.block_bytes_ / shape_.chunk_bytes, 32);
  const auto full = static_cast<uint32_t>((uint64_t{1} << count) - 1);
  *exhausted = false;
  Block* block = blocks_;
  while (block != nullptr && block->used == full) block = block->next;
  if (block == nullptr) {
    block = staging_.acquire(pool_, place_, has_one, exhausted);
    if (block == nullptr) return nullptr;
    block->next = std::exchange(blocks_, block);
  }
  const int index = std::countr_one(block->used);
  block->used |= 1u << index;
  return block->bytes.get() + static_cast<uint64_t>(index) * shape_.chunk_bytes;
}

void Staging::Share::give(std::byte* chunk) {
  Block** link = &blocks_;
  const auto holds = [&](const Block& block) {
    return chunk >= block.bytes.get() && chunk < block.bytes.get() + staging_.block_bytes_;
  };
  while (!holds(**link)) link = &(*link)->next;
  Block* block = *link;
  block->used &= ~(1u << (static_cast<uint64_t>(chunk - block->bytes.get()) / shape_.chunk_bytes));
  if (block->used != 0) return;
  *link = block->next;
  staging_.release(pool_, block);
}

double Staging::copy_rate(StreamDirection direction, const std::vector<BufferPiece>& pieces) const {
  const Memory* const memory = device_memory(pieces);
  return memory == nullptr ? 0 : loads_[load_of(memory->device_index(), direction)].rate();
}

size_t Staging::place_of(const std::vector<BufferPiece>& pieces) const {
  const Memory* const memory = device_memory(pieces);
  return memory == nullptr ? 0 : device_places_[memory->device_index()];
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
  return submit(job, direction, *piece.memory, length, [&](const Device& device, void* stream) {
    void* const address = piece.memory->address();
    return direction == StreamDirection::kToHost
               ? device.table->copy_to_host(device.instance, stream, host, address, at, length)
               : device.table->copy_from_host(device.instance, stream, address, at, host, length);
  });
}

// copies(device, stream) starts the copies of |length| bytes between the host and |memory|.
template <typename Submit>
Status Staging::submit(CopyJob& job, StreamDirection direction, const Memory& memory,
                       uint64_t length, Submit&& copies) {
  const Device& device = memory.device();
  job.make_room();
  Result<void*> stream = devices_.stream(memory.device_index(), direction);
  if (!stream.ok()) return stream.status();
  hetcomm_status_t status = copies(device, stream.value());
  void* event = nullptr;
  if (status == HETCOMM_OK) {
    status = device.table->event_record(device.instance, stream.value(), &event);
  }
  if (status != HETCOMM_OK) {
    // Copies may run, and nothing would tell of their end.
    devices_.end_stream(memory.device_index(), direction);
    return copy_failed(device, status);
  }
  const size_t load = load_of(memory.device_index(), direction);
  loads_[load].start(length, now_ns());
  job.push({&device, event, load, length});
  return {};
}

void Staging::enlist(CopyJob& job, CopyHandler& handler) {
  job.next_ = nullptr;
  *running_end_ = &job;
  running_end_ = &job.next_;
  job.handler_ = &handler;
  job.status_ = {};
  job.running_ = true;
}

// One event for all pieces of a device that follow each other.
void Staging::start(CopyJob& job, StreamDirection direction, std::span<const StagedRows> pieces,
                    CopyHandler& handler) {
  enlist(job, handler);
  while (!pieces.empty() && job.status_.ok()) {
    const Memory& memory = *pieces.front().memory;
    size_t count = 0;
    uint64_t bytes = 0;
    while (count < pieces.size() && pieces[count].memory->device_index() == memory.device_index()) {
      bytes += bytes_of(pieces[count++].rows);
    }
    const auto copies = [&](const Device& device, void* stream) {
      hetcomm_status_t status = HETCOMM_OK;
      for (size_t i = 0; i < count && status == HETCOMM_OK; ++i) {
        status = copy_rows(device, stream, direction, pieces[i]);
      }
      return status;
    };
    try {
      job.status_ = submit(job, direction, memory, bytes, copies);
    } catch (const std::bad_alloc&) {
      job.status_ = Status(Code::kOutOfMemory);
    }
    pieces = pieces.subspan(count);
  }
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
}

int Staging::progress() {
  int done = 0;
  const uint64_t now = now_ns();
  // Upcalls may add jobs at the end. Only this function removes one.
  for (CopyJob** link = &running_; *link != nullptr;) {
    CopyJob& job = **link;
    while (job.has_events()) {
      const CopyJob::Event& last = job.last();
      const hetcomm_status_t status =
          last.device->table->event_query(last.device->instance, last.event);
      if (status == HETCOMM_PENDING) break;
      if (status != HETCOMM_OK && job.status_.ok()) {
        job.status_ = copy_failed(*last.device, status);
      }
      last.device->table->event_release(last.device->instance, last.event);
      loads_[last.load].finish(last.bytes, now);
      job.pop();
    }
    if (job.has_events()) {
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

}  // namespace hetcomm
