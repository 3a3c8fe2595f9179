#include "src/core/memory/chunk_pools.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace hetcomm {
namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

// Every stage but one waits for a chunk at the beginning and for one at the end, so chunks should
// be small. Each chunk costs about kChunkCostS and the start of its copy beside its bytes, so chunks
// should be few. The sum of both costs is least at the root below. Measurements from 250 MB/s to
// 14 GB/s, with 256 KiB to 64 MiB, agree with it.
StagingShape choose_staging_shape(const StagingOptions& options, uint64_t length,
                                  const CopyCosts& costs) {
  constexpr double kChunkCostS = 5e-6;
  // Threads sleep while copies of a slow device run, and waking up for each chunk takes their
  // processors' time. Chunks are larger for that as long as there are many.
  constexpr double kSleepCostS = 40e-6;
  constexpr double kParts = 64;
  constexpr double kUsualRate = 10e9;
  constexpr uint64_t kSmallestChunk = 32u << 10;
  // Bytes under way at once. They suffice for each stage and for the request of the next chunk.
  constexpr uint64_t kDepthBytes = 1u << 20;
  constexpr uint64_t kLeastDepth = 4;
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
      options.depth != 0 ? options.depth : std::max(kDepthBytes / shape.chunk_bytes, kLeastDepth),
      1, ChunkPools::kMaxDepth));
  return shape;
}

ChunkPools::ChunkPools(DeviceSet& devices, const StagingOptions& options)
    : devices_(devices),
      options_(options),
      block_bytes_((std::max(options.chunk_bytes, kLargestChunk) + kPage - 1) / kPage * kPage),
      places_(1) {
  for (PoolState& pool : pools_) pool.free.resize(places_.size());
  meet_devices();
}

void ChunkPools::meet_devices() {
  for (size_t i = device_places_.size(); i < devices_.size(); ++i) {
    Place place;
    if (i < options_.device_nodes.size()) place.node = options_.device_nodes[i];
    const Device& device = devices_.device(i);
    if (options_.pins && device.table->allocate_host != nullptr) place.allocator = &device;
    const auto known = std::find(places_.begin(), places_.end(), place);
    const auto index = static_cast<size_t>(known - places_.begin());
    if (known == places_.end()) places_.push_back(place);
    for (PoolState& pool : pools_) pool.free.resize(places_.size());
    device_places_.push_back(index);  // last: then it is met
  }
}

size_t ChunkPools::place_of(size_t index) {
  meet_devices();
  return device_places_[index];
}

void ChunkPools::prepare_for_holds(size_t index) {
  const size_t place = place_of(index);
  for (PoolState& pool : pools_) {
    size_t count = 0;
    for (const Block* block = pool.free[place]; block != nullptr; block = block->next) ++count;
    for (; count < kHeldBlocks && pool.made < kMaxBlocks && !devices_.has_holds(); ++count) {
      Block* const block = make_block(place);
      if (block == nullptr) break;
      ++pool.made;
      block->next = std::exchange(pool.free[place], block);
    }
  }
}

ChunkPools::Block* ChunkPools::make_block(size_t place) {
  auto block = std::make_unique<Block>();
  blocks_.reserve(blocks_.size() + 1);
  block->place = place;
  const auto& [node, allocator] = places_[place];
  bool pinned = options_.pins;
  if (!block->bytes.allocate_unless_held(devices_, allocator, block_bytes_, node, &pinned)) {
    return nullptr;
  }
  block->stands_in = options_.pins && !pinned;
  return blocks_.emplace_back(std::move(block)).get();
}

ChunkPools::Block* ChunkPools::take_free(PoolState& state, size_t place) {
  Block* const block = state.free[place];
  if (block != nullptr) state.free[place] = std::exchange(block->next, nullptr);
  return block;
}

// Of any place.
ChunkPools::Block* ChunkPools::take_free(PoolState& state) {
  Block* block = nullptr;
  for (size_t place = 0; place < state.free.size() && block == nullptr; ++place) {
    block = take_free(state, place);
  }
  return block;
}

ChunkPools::Block* ChunkPools::acquire(Pool pool, size_t place, bool has_one, bool* exhausted) {
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

void ChunkPools::release(Pool pool, Block* block) {
  PoolState& state = pools_[static_cast<size_t>(pool)];
  if (block->stands_in) {
    --state.made;
    std::erase_if(blocks_, [block](const auto& each) { return each.get() == block; });
    return;
  }
  Block*& free = state.free[block->place];
  block->next = std::exchange(free, block);
}

std::byte* ChunkPools::Share::take(bool has_one, bool* exhausted) {
  const uint64_t count = std::min<uint64_t>(pools_.block_bytes_ / shape_.chunk_bytes, 32);
  const auto full = static_cast<uint32_t>((uint64_t{1} << count) - 1);
  *exhausted = false;
  Block* block = blocks_;
  while (block != nullptr && block->used == full) block = block->next;
  if (block == nullptr) {
    block = pools_.acquire(pool_, place_, has_one, exhausted);
    if (block == nullptr) return nullptr;
    block->next = std::exchange(blocks_, block);
  }
  const int index = std::countr_one(block->used);
  block->used |= 1u << index;
  return block->bytes.get() + static_cast<uint64_t>(index) * shape_.chunk_bytes;
}

void ChunkPools::Share::give(std::byte* chunk) {
  Block** link = &blocks_;
  const auto holds = [&](const Block& block) {
    return chunk >= block.bytes.get() && chunk < block.bytes.get() + pools_.block_bytes_;
  };
  while (!holds(**link)) link = &(*link)->next;
  Block* block = *link;
  block->used &= ~(1u << (static_cast<uint64_t>(chunk - block->bytes.get()) / shape_.chunk_bytes));
  if (block->used != 0) return;
  *link = block->next;
  pools_.release(pool_, block);
}

}  // namespace hetcomm
