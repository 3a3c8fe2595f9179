// Host memory through which copies of devices go, in chunks.
//
// There are two pools, one for sending and one for receiving, so that one direction cannot starve
// the other. Each pool is bounded, but a transfer without a chunk always gets one. So every
// transfer can go on, and staging cannot deadlock. A pool is made of blocks. A transfer cuts the
// blocks that it holds into chunks of the size that suits it. All calls are made under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/memory/memory.h"
#include "src/core/memory/pinned_memory.h"

namespace hetcomm {

struct StagingOptions {
  uint64_t chunk_bytes = 0;  // 0: chosen for each transfer
  uint64_t depth = 0;        // chunks of a transfer under way in one direction; 0: chosen for it
  bool pins = true;          // chunks lie in pinned memory
  // The NUMA node near which chunks for each device lie, by index in the DeviceSet. kAnyNumaNode
  // for those that are left out.
  std::vector<int> device_nodes{};
};

// The shape of a transfer through the host: the size of its chunks, and how many are under way.
struct StagingShape {
  uint64_t chunk_bytes = 0;  // 0: not chosen yet
  size_t depth = 0;
};

// What copies of a device cost; 0: unknown.
struct CopyCosts {
  double bytes_per_s = 0;
  double start_s = 0;  // time of the thread that starts a copy
};

// Chooses the shape for |length| bytes of a device whose copies cost |costs|.
StagingShape choose_staging_shape(const StagingOptions& options, uint64_t length,
                                  const CopyCosts& costs);

class ChunkPools {
 public:
  enum class Pool : uint8_t { kSend, kReceive };
  static constexpr size_t kMaxDepth = 16;
  static constexpr uint64_t kLargestChunk = 2u << 20;  // options may ask for larger ones
  // Where blocks come from.
  struct Place {
    int node = kAnyNumaNode;
    const Device* allocator = nullptr;
    bool operator==(const Place&) const = default;
  };

 private:
  // Memory in which chunks of one transfer lie.
  struct Block {
    PinnedMemory bytes;
    uint32_t used = 0;       // a bit for each chunk
    size_t place = 0;        // index in |places_|
    bool stands_in = false;  // pageable, since nothing could be pinned
    Block* next = nullptr;
  };

 public:
  // A share has the chunks of one transfer. All are given back before it is destroyed.
  class Share {
   public:
    Share(ChunkPools& pools, Pool pool) : pools_(pools), pool_(pool) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    const StagingShape& shape() const HETCOMM_UNDER_BATON { return shape_; }
    // The first call decides; later ones change nothing. |place|: see place_of().
    void choose_shape(uint64_t length, const CopyCosts& costs,
                      size_t place = 0) HETCOMM_UNDER_BATON {
      if (shape_.chunk_bytes != 0) return;
      shape_ = choose_staging_shape(pools_.options_, length, costs);
      place_ = place;
    }
    // Returns a pinned chunk. Null if the pool is used up and the transfer |has_one|, or if memory
    // is exhausted (|*exhausted|).
    std::byte* take(bool has_one, bool* exhausted) HETCOMM_UNDER_BATON;
    void give(std::byte* chunk) HETCOMM_UNDER_BATON;

   private:
    ChunkPools& pools_;
    const Pool pool_;
    StagingShape shape_;
    size_t place_ = 0;
    Block* blocks_ = nullptr;
  };

  // |devices| outlive this.
  ChunkPools(DeviceSet& devices, const StagingOptions& options);
  ChunkPools(const ChunkPools&) = delete;
  ChunkPools& operator=(const ChunkPools&) = delete;

  const StagingOptions& options() const { return options_; }
  // Returns where chunks for device |index| lie, for Share::choose_shape().
  size_t place_of(size_t index) HETCOMM_UNDER_BATON;
  const Place& place(size_t number) const HETCOMM_UNDER_BATON { return places_[number]; }
  // Makes blocks for device |index|, whose user's streams will be held back. Nothing can be pinned
  // then.
  void prepare_for_holds(size_t index) HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kMaxBlocks = 32;  // for each pool, without the guaranteed ones
  static constexpr size_t kHeldBlocks = 8;  // for each pool, made before a stream is held back
  struct PoolState {
    std::vector<Block*> free;  // by place
    size_t made = 0;
  };
  // Makes room for devices that were added.
  void meet_devices();
  Block* make_block(size_t place) HETCOMM_UNDER_BATON;
  static Block* take_free(PoolState& state, size_t place) HETCOMM_UNDER_BATON;
  static Block* take_free(PoolState& state) HETCOMM_UNDER_BATON;
  Block* acquire(Pool pool, size_t place, bool has_one, bool* exhausted) HETCOMM_UNDER_BATON;
  void release(Pool pool, Block* block) HETCOMM_UNDER_BATON;

  DeviceSet& devices_;
  const StagingOptions options_;
  const uint64_t block_bytes_;
  std::vector<Place> places_;          // the first one is any, and without an allocator
  std::vector<size_t> device_places_;  // by index of the device
  PoolState pools_[2];
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace hetcomm
