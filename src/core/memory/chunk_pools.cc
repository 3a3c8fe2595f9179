#include "src/core/memory/chunk_pools.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>
#include <utility>

#include "src/base/room.h"

namespace hetcomm {
namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

// At the beginning and end of a transfer, all stages but one wait for a chunk, so chunks should be
// small. In addition to the time for its bytes, each chunk costs about kChunkCostS and the start of
// its copy, so chunks should be few. The square root below minimizes the sum of both costs.
// Measurements with 256 KiB to 64 MiB, at 250 MB/s to 14 GB/s, agree with it.
StagingShape choose_staging_shape(const StagingOptions& options, uint64_t length,
                                  const CopyCosts& costs) {
  constexpr double kChunkCostS = 5e-6;
  // Threads sleep while a slow device copies, and each wake-up takes processor time. Larger chunks
  // save wake-ups. They are made larger for this purpose only if the transfer still has at least
  // kParts of them.
  constexpr double kSleepCostS = 40e-6;
  constexpr double kParts = 64;
  constexpr double kUsualRate = 10e9;
  constexpr uint64_t kSmallestChunk = 32u << 10;
  // The bytes in flight. They are enough to keep each stage busy while the next chunk is requested.
  constexpr uint64_t kDepthBytes = 1u << 20;
  constexpr uint64_t kMinDepth = 4;
  StagingShape shape;
  shape.chunk_bytes = options.chunk_bytes;
  if (shape.chunk_bytes == 0) {
    const double rate = costs.bytes_per_s > 0 ? costs.bytes_per_s : kUsualRate;
    const double cost_s = kChunkCostS + costs.start_s;
    const auto best = [&](double chunk_cost_s) {
      return std::sqrt(static_cast<double>(length) * rate * chunk_cost_s / 2);
    };
    const double cheap = std::min(best(cost_s + kSleepCostS), static_cast<double>(length) / kParts);
    const double within =
        std::clamp(std::max(best(cost_s), cheap), static_cast<double>(kSmallestChunk),
                   static_cast<double>(ChunkPools::kLargestChunk));
    shape.chunk_bytes = uint64_t{1} << std::lround(std::log2(within));
  }
  shape.depth = static_cast<size_t>(std::clamp<uint64_t>(
      options.depth != 0 ? options.depth : std::max(kDepthBytes / shape.chunk_bytes, kMinDepth), 1,
      ChunkPools::kMaxDepth));
  return shape;
}

ChunkPools::ChunkPools(DeviceSet& devices, const StagingOptions& options)
    : devices_(devices),
      options_(options),
      device_nodes_(options.device_nodes),
      block_bytes_((std::max(options.chunk_bytes, kLargestChunk) + kPage - 1) / kPage * kPage),
      kinds_(1) {
  for (PoolState& pool : pools_) pool.free.resize(kinds_.size());
  meet_devices();
}

void ChunkPools::meet_devices() {
  while (kind_of_device_.size() < devices_.size()) {
    kind_of_device_.push_back(choose_kind(kind_of_device_.size()));
  }
}

size_t ChunkPools::choose_kind(size_t index) {
  BlockKind kind;
  if (index < device_nodes_.size()) kind.node = device_nodes_[index];
  const Device& device = devices_.device(index);
  const DeviceTable& table = *device.table;
  kind.any_memory =
      table.host_accessible != 0 ||
      (table.host_memory_suffices != nullptr && table.host_memory_suffices(device.instance) != 0);
  if (options_.pins && table.allocate_host != nullptr && !kind.any_memory) {
    kind.allocator = &device;
  }
  const auto known = std::find(kinds_.begin(), kinds_.end(), kind);
  const auto number = static_cast<size_t>(known - kinds_.begin());
  if (known == kinds_.end()) kinds_.push_back(kind);
  for (PoolState& pool : pools_) pool.free.resize(kinds_.size());
  return number;
}

void ChunkPools::set_node(size_t index, int node) {
  if (index >= device_nodes_.size()) device_nodes_.resize(index + 1, kAnyNumaNode);
  device_nodes_[index] = node;
  if (index < kind_of_device_.size()) kind_of_device_[index] = choose_kind(index);
}

size_t ChunkPools::kind_of(size_t index) {
  meet_devices();
  return kind_of_device_[index];
}

void ChunkPools::prepare_for_holds(size_t index) {
  const size_t kind = kind_of(index);
  for (const Pool which : {Pool::kSend, Pool::kReceive}) {
    PoolState& pool = pools_[static_cast<size_t>(which)];
    size_t count = 0;
    const FreeBlocks* const known = find_free(pool, kind, kNoReader);
    for (Block* block = known != nullptr ? known->first : nullptr; block != nullptr;
         block = block->next) {
      block->bytes.meet_devices(devices_);
      ++count;
    }
    for (; count < kHeldBlocks && pool.made < kMaxBlocks && !devices_.calls().has_holds();
         ++count) {
      Block* const block = make_block(kind, kNoReader);
      if (block == nullptr) break;
      ++pool.made;
      block->pool = which;
      give_free(pool, block);
    }
  }
}

ChunkPools::Block* ChunkPools::make_block(size_t kind, int reader) {
  free_leaving();
  auto block = std::make_unique<Block>();
  make_room(blocks_);
  // Memory is reserved here, so discard() and give_free() do not allocate.
  make_room(leaving_, blocks_.size() + 1);
  for (PoolState& pool : pools_) {
    for (const int each : {kNoReader, reader}) {
      if (find_free(pool, kind, each) == nullptr) pool.free[kind].push_back({each, nullptr});
    }
  }
  block->kind = kind;
  const auto& [node, allocator, any_memory] = kinds_[kind];
  bool pinned = options_.pins;
  const auto sharing =
      reader == kNoReader ? PinnedMemory::Sharing::kNo : PinnedMemory::Sharing::kYes;
  if (!block->bytes.allocate_unless_held(devices_, allocator, block_bytes_, node, &pinned,
                                         sharing)) {
    return nullptr;
  }
  block->stands_in = options_.pins && !pinned;
  uint64_t offset = 0;
  const bool is_file = block->bytes.file(&offset) >= 0;
  if (is_file && !block->stands_in) block->reader = reader;
  if (!is_file && reader != kNoReader) waits_for_files_ = kFilelessBlocks;
  block->index = blocks_.size();
  return blocks_.emplace_back(std::move(block)).get();
}

// Returns the free blocks of |kind| for |reader|; null if there never was such a block.
ChunkPools::FreeBlocks* ChunkPools::find_free(PoolState& state, size_t kind, int reader) {
  for (FreeBlocks& each : state.free[kind]) {
    if (each.reader == reader) return &each;
  }
  return nullptr;
}

void ChunkPools::give_free(PoolState& state, Block* block) {
  Block*& first = find_free(state, block->kind, block->reader)->first;
  block->next = std::exchange(first, block);
}

ChunkPools::Block* ChunkPools::take_free(PoolState& state, size_t kind, int reader) {
  FreeBlocks* const known = find_free(state, kind, reader);
  if (known == nullptr || known->first == nullptr) return nullptr;
  Block* const block = known->first;
  known->first = std::exchange(block->next, nullptr);
  return block;
}

// Takes a free block of any kind that |reader| can map, or that no rank can map.
ChunkPools::Block* ChunkPools::take_free(PoolState& state, int reader) {
  for (size_t kind = 0; kind < state.free.size(); ++kind) {
    for (const int each : {kNoReader, reader}) {
      if (Block* const block = take_free(state, kind, each)) return block;
    }
  }
  return nullptr;
}

// Frees a block that only ranks other than |reader| can map, if there is one, so that another block
// can be made.
void ChunkPools::drop_unreadable(Pool pool, int reader) {
  PoolState& state = pools_[static_cast<size_t>(pool)];
  for (size_t kind = 0; kind < state.free.size(); ++kind) {
    for (const FreeBlocks& each : state.free[kind]) {
      if (each.reader == kNoReader || each.reader == reader) continue;
      if (Block* const block = take_free(state, kind, each.reader)) {
        discard(block);
        return;
      }
    }
  }
}

ChunkPools::Block* ChunkPools::acquire(Pool pool, size_t kind, int reader, bool has_one,
                                       bool* exhausted) {
  PoolState& state = pools_[static_cast<size_t>(pool)];
  *exhausted = false;
  if (publisher_ == nullptr || pool != Pool::kSend) reader = kNoReader;
  if (Block* const block = take_free(state, kind, reader)) return block;
  // While a stream is held back, or after a failure, no file is made. A block without a reader is
  // used instead.
  if (reader != kNoReader && (devices_.calls().has_holds() || waits_for_files_ > 0)) {
    if (waits_for_files_ > 0) --waits_for_files_;
    reader = kNoReader;
    if (Block* const block = take_free(state, kind, reader)) return block;
  }
  // While a stream is held back, drop_unreadable() would free no memory.
  if (state.made >= kMaxBlocks && !devices_.calls().has_holds()) drop_unreadable(pool, reader);
  if (state.made >= kMaxBlocks) {
    Block* const other = take_free(state, reader);
    if (other != nullptr || has_one) return other;
  }
  Block* block = make_block(kind, reader);
  if (block != nullptr) {
    ++state.made;
    block->pool = pool;
  } else {
    block = take_free(state, reader);
    *exhausted = block == nullptr;
  }
  return block;
}

void ChunkPools::release(Pool pool, Block* block) {
  PoolState& state = pools_[static_cast<size_t>(pool)];
  if (devices_.abandoned().touch(block->bytes.range())) [[unlikely]] {
    --state.made;
    block->pool = pool;
    block->next = std::exchange(stranded_, block);
    return;
  }
  if (block->stands_in || block->left != 0) {
    discard(block);
    return;
  }
  give_free(state, block);
}

// Reclaims stranded blocks that abandoned copies no longer touch.
void ChunkPools::take_back_stranded() {
  for (Block* block = std::exchange(stranded_, nullptr); block != nullptr;) {
    Block* const next = std::exchange(block->next, nullptr);
    ++pools_[static_cast<size_t>(block->pool)].made;
    release(block->pool, block);
    block = next;
  }
}

std::byte* ChunkPools::Share::take(bool has_one, bool* exhausted) {
  const uint64_t count = std::min<uint64_t>(pools_.block_bytes_ / shape_.chunk_bytes, 32);
  const auto full = static_cast<uint32_t>((uint64_t{1} << count) - 1);
  *exhausted = false;
  Block* block = blocks_;
  while (block != nullptr && block->used == full) block = block->next;
  if (block == nullptr) {
    block = pools_.acquire(pool_, kind_, reader_, has_one, exhausted);
    if (block == nullptr) return nullptr;
    block->bytes.meet_devices(pools_.devices_);
    block->next = std::exchange(blocks_, block);
  }
  const int index = std::countr_one(block->used);
  block->used |= 1u << index;
  return block->bytes.get() + static_cast<uint64_t>(index) * shape_.chunk_bytes;
}

// Removes |block|, even if memory has run out. The block counts as made until its memory is freed.
void ChunkPools::discard(Block* block) {
  std::unique_ptr<Block>& gap = blocks_[block->index];
  std::unique_ptr<Block> own = std::move(gap);
  if (own->index + 1 < blocks_.size()) {
    gap = std::move(blocks_.back());
    gap->index = own->index;
  }
  blocks_.pop_back();
  withdraw(own->keys);
  try {
    withdrawn_.insert(withdrawn_.end(), own->keys.begin(), own->keys.end());
  } catch (const std::bad_alloc&) {
    // The transport keeps the region until the end of the job.
  }
  own->keys.clear();
  if (own->stands_in) {
    --pools_[static_cast<size_t>(own->pool)].made;
  } else {
    leaving_.push_back(std::move(own));
  }
  free_leaving();
}

void ChunkPools::tidy() {
  look_at_withdrawn();
  free_leaving();
}

// Frees discarded blocks, unless a stream is held back: unpinning may wait for that stream. Readers
// that have mapped a block keep its pages, and no other rank can map it once its region is
// withdrawn.
void ChunkPools::free_leaving() {
  if (stranded_ != nullptr) [[unlikely]]
    take_back_stranded();
  if (leaving_.empty() || devices_.calls().has_holds()) return;
  for (const auto& block : leaving_) --pools_[static_cast<size_t>(block->pool)].made;
  leaving_.clear();
}

// Checks some of the withdrawn regions, and drops the keys of those that no reader maps any longer.
void ChunkPools::look_at_withdrawn() {
  constexpr size_t kMaxLookedAt = 64;
  for (size_t left = std::min(kMaxLookedAt, withdrawn_.size()); left > 0; --left) {
    if (next_withdrawn_ >= withdrawn_.size()) next_withdrawn_ = 0;
    auto& key = withdrawn_[next_withdrawn_];
    if (is_let_go(key)) {
      key = withdrawn_.back();
      withdrawn_.pop_back();
    } else {
      ++next_withdrawn_;
    }
  }
}

// Withdraws |key|. Returns true once no reader maps its region.
bool ChunkPools::is_let_go(const std::pair<size_t, RemoteKey>& key) {
  try {
    return publisher_ == nullptr || publisher_->withdraw_block(key.first, key.second);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Withdraws |keys| and removes those whose regions no reader maps any longer.
void ChunkPools::withdraw(Keys& keys) {
  std::erase_if(keys, [this](const auto& key) HETCOMM_UNDER_BATON { return is_let_go(key); });
}

// Returns the list pointer that refers to the block of |chunk|.
ChunkPools::Block** ChunkPools::Share::find(const std::byte* chunk) {
  Block** link = &blocks_;
  const auto holds = [&](const Block& block) {
    return chunk >= block.bytes.get() && chunk < block.bytes.get() + pools_.block_bytes_;
  };
  while (!holds(**link)) link = &(*link)->next;
  return link;
}

uint32_t ChunkPools::Share::bit_of(const Block& block, const std::byte* chunk) const {
  return 1u << (static_cast<uint64_t>(chunk - block.bytes.get()) / shape_.chunk_bytes);
}

// Releases the block at |link| if the transfer has given back all of its chunks.
void ChunkPools::Share::put_down(Block** link) {
  Block* const block = *link;
  if (block->used != block->left) return;
  *link = block->next;
  pools_.release(pool_, block);
}

void ChunkPools::Share::give(std::byte* chunk) {
  Block** const link = find(chunk);
  (*link)->used &= ~bit_of(**link, chunk);
  put_down(link);
}

void ChunkPools::Share::leave(std::byte* chunk) {
  Block** const link = find(chunk);
  (*link)->left |= bit_of(**link, chunk);
  put_down(link);
}

std::optional<ChunkLocation> ChunkPools::Share::locate(const std::byte* chunk, size_t transport) {
  Block& block = **find(chunk);
  if (block.reader == kNoReader || pools_.publisher_ == nullptr) return std::nullopt;
  uint64_t file_offset = 0;
  const int file = block.bytes.file(&file_offset);
  const auto at = [&](const RemoteKey& key) {
    return ChunkLocation{.region = key,
                         .region_bytes = pools_.block_bytes_,
                         .offset = static_cast<uint64_t>(chunk - block.bytes.get())};
  };
  for (const auto& [number, key] : block.keys) {
    if (number == transport) return at(key);
  }
  // Memory for the key is reserved before publishing, so that every published block can be
  // withdrawn.
  block.keys.reserve(block.keys.size() + 1);
  const Result<RemoteKey> key = pools_.publisher_->publish_block(transport, block.reader,
                                                                 {.address = block.bytes.get(),
                                                                  .length = pools_.block_bytes_,
                                                                  .writable = true,
                                                                  .readable = true,
                                                                  .atomic = true,
                                                                  .file = file,
                                                                  .file_offset = file_offset,
                                                                  .members = {}});
  if (!key.ok()) return std::nullopt;
  block.keys.emplace_back(transport, key.value());
  return at(key.value());
}

}  // namespace hetcomm
