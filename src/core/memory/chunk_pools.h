// Host memory through which copies of devices go, in chunks.
//
// There are two pools, one for sending and one for receiving, so that one direction cannot starve
// the other. Each pool is bounded, but a transfer without a chunk always gets one. So every
// transfer can go on, and staging cannot deadlock. A pool is made of blocks. A transfer cuts the
// blocks that it holds into chunks of the size that suits it.
//
// A block for sending may be a file that one peer, its reader, can map. The peer reads chunks in
// place (ChunkPlace). Such a block is for messages to that peer alone. A chunk that the peer may
// still read is never used again, whatever happens: its block goes, and the peer keeps the pages. A
// block that a copy of a given-up device may still touch is not used again before that copy has
// ended. All calls are made under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/memory.h"
#include "src/core/memory/pinned_memory.h"
#include "transports/types.h"

namespace hetcomm {

struct StagingOptions {
  uint64_t chunk_bytes = 0;  // 0: chosen for each transfer
  uint64_t depth = 0;        // chunks in flight per transfer and direction; 0: chosen for each
  bool pins = true;          // chunks lie in pinned memory
  // The NUMA node near which chunks for each device lie, by index in the DeviceSet; kAnyNumaNode
  // for devices that are left out.
  std::vector<int> device_nodes{};
};

// The shape of a transfer through the host: the size of its chunks, and how many are in flight.
struct StagingShape {
  uint64_t chunk_bytes = 0;  // 0: not chosen yet
  size_t depth = 0;
};

// Costs of a device's copies. 0: unknown.
struct CopyCosts {
  double bytes_per_s = 0;
  double start_s = 0;  // time of the thread that starts a copy
};

// Chooses the shape for |length| bytes of a device whose copies cost |costs|.
StagingShape choose_staging_shape(const StagingOptions& options, uint64_t length,
                                  const CopyCosts& costs);

// Lets another rank of the job map memory.
class BlockPublisher {
 public:
  // Lets |reader| map |region|, over transport number |transport|. Its members are not set.
  virtual Result<RemoteKey> publish_block(size_t transport, int reader,
                                          Region region) HETCOMM_UNDER_BATON = 0;
  // See RegionPublisher::withdraw().
  virtual bool withdraw_block(size_t transport, const RemoteKey& key) HETCOMM_UNDER_BATON = 0;

 protected:
  ~BlockPublisher() = default;
};

// Where a peer finds a chunk, or a part of one: in a region that it can map.
struct ChunkPlace {
  RemoteKey region;
  uint64_t region_bytes = 0;
  uint64_t offset = 0;
};

class ChunkPools {
 public:
  static constexpr int kNoReader = -1;
  enum class Pool : uint8_t { kSend, kReceive };
  static constexpr size_t kMaxDepth = 16;
  static constexpr uint64_t kLargestChunk = 2u << 20;  // options may ask for larger ones
  // Where blocks come from.
  struct Place {
    int node = kAnyNumaNode;
    const Device* allocator = nullptr;
    bool any_memory = true;  // its devices, if any, copy from all host memory alike
    bool operator==(const Place&) const = default;
  };

 private:
  using Keys = std::vector<std::pair<size_t, RemoteKey>>;  // with the number of the transport
  // Memory in which chunks of one transfer lie.
  struct Block {
    PinnedMemory bytes;
    uint32_t used = 0;  // a bit for each chunk
    uint32_t left = 0;  // those of |used| that a peer may read and nobody gives back
    size_t place = 0;   // index in |places_|
    Pool pool = Pool::kSend;
    bool stands_in = false;  // pageable, since nothing could be pinned
    int reader = kNoReader;
    Keys keys{};  // by which the reader maps it
    Block* next = nullptr;
    size_t index = 0;  // in |blocks_|
  };

 public:
  // A share holds the chunks of one transfer. All are given back before it is destroyed.
  class Share {
   public:
    // |reader|: the rank, if any, that may map chunks for sending; of no use to far ranks.
    Share(ChunkPools& pools, Pool pool, int reader = kNoReader)
        : pools_(pools), pool_(pool), reader_(reader) {}
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
    // Gives back a chunk that a peer may go on reading.
    void leave(std::byte* chunk) HETCOMM_UNDER_BATON;
    // Returns where the reader, which is connected over |transport|, finds |chunk|; nothing where
    // it cannot map that. May throw std::bad_alloc.
    std::optional<ChunkPlace> locate(const std::byte* chunk, size_t transport) HETCOMM_UNDER_BATON;

   private:
    Block** find(const std::byte* chunk) HETCOMM_UNDER_BATON;
    uint32_t bit_of(const Block& block, const std::byte* chunk) const HETCOMM_UNDER_BATON;
    void put_down(Block** link) HETCOMM_UNDER_BATON;

    ChunkPools& pools_;
    const Pool pool_;
    const int reader_;
    StagingShape shape_;
    size_t place_ = 0;
    Block* blocks_ = nullptr;
  };

  // |devices| outlive this.
  ChunkPools(DeviceSet& devices, const StagingOptions& options);
  ChunkPools(const ChunkPools&) = delete;
  ChunkPools& operator=(const ChunkPools&) = delete;

  const StagingOptions& options() const { return options_; }
  // Lets peers map blocks from now on; null: no longer. |publisher| stays until then.
  void set_publisher(BlockPublisher* publisher) HETCOMM_UNDER_BATON { publisher_ = publisher; }
  // Returns where chunks for device |index| lie, for Share::choose_shape().
  size_t place_of(size_t index) HETCOMM_UNDER_BATON;
  // Chunks for device |index|, which was added, lie near NUMA node |node|. May throw
  // std::bad_alloc.
  void set_node(size_t index, int node) HETCOMM_UNDER_BATON;
  const Place& place(size_t number) const HETCOMM_UNDER_BATON { return places_[number]; }
  // Frees what could not be freed when its use ended. Each call looks at a few of the regions that
  // readers have not released.
  void tidy() HETCOMM_UNDER_BATON;
  // Makes blocks for device |index| before its users' streams are held back: nothing can be pinned
  // while they are.
  void prepare_for_holds(size_t index) HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kMaxBlocks = 32;  // for each pool, without the guaranteed ones
  static constexpr size_t kHeldBlocks = 8;  // for each pool, made before a stream is held back
  static constexpr uint32_t kFilelessBlocks = 256;  // taken before a file is tried again
  // Unused blocks of one place and for one reader.
  struct FreeBlocks {
    int reader;
    Block* first;
  };
  struct PoolState {
    std::vector<std::vector<FreeBlocks>> free;  // by place; a list for each reader of its blocks
    size_t made = 0;
  };
  // Makes room for devices that were added.
  void meet_devices();
  size_t choose_place(size_t index);
  Block* make_block(size_t place, int reader) HETCOMM_UNDER_BATON;
  static FreeBlocks* find_free(PoolState& state, size_t place, int reader) HETCOMM_UNDER_BATON;
  static void give_free(PoolState& state, Block* block) HETCOMM_UNDER_BATON;
  static Block* take_free(PoolState& state, size_t place, int reader) HETCOMM_UNDER_BATON;
  static Block* take_free(PoolState& state, int reader) HETCOMM_UNDER_BATON;
  void drop_unreadable(Pool pool, int reader) HETCOMM_UNDER_BATON;
  Block* acquire(Pool pool, size_t place, int reader, bool has_one,
                 bool* exhausted) HETCOMM_UNDER_BATON;
  void release(Pool pool, Block* block) HETCOMM_UNDER_BATON;
  void discard(Block* block) HETCOMM_UNDER_BATON;
  void free_leaving() HETCOMM_UNDER_BATON;
  bool is_let_go(const std::pair<size_t, RemoteKey>& key) HETCOMM_UNDER_BATON;
  void withdraw(Keys& keys) HETCOMM_UNDER_BATON;
  void look_at_withdrawn() HETCOMM_UNDER_BATON;
  void take_back_stranded() HETCOMM_UNDER_BATON;

  DeviceSet& devices_;
  const StagingOptions options_;
  std::vector<int> device_nodes_;  // by index of the device; kAnyNumaNode for those left out
  const uint64_t block_bytes_;
  std::vector<Place> places_;          // the first one is any, and without an allocator
  std::vector<size_t> device_places_;  // by index of the device
  PoolState pools_[2];
  std::vector<std::unique_ptr<Block>> blocks_;
  Block* stranded_ = nullptr;  // abandoned copies may touch them
  BlockPublisher* publisher_ = nullptr;
  uint32_t waits_for_files_ = 0;
  std::vector<std::unique_ptr<Block>> leaving_;  // to be freed when nothing is held back
  Keys withdrawn_;                               // keys that readers have been asked to release
  size_t next_withdrawn_ = 0;                    // the next of these to look at
};

}  // namespace hetcomm
