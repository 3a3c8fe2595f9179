// ChunkPools provides chunks of host memory, through which data from and to devices is copied.
//
// There are two pools, one for sending and one for receiving, so that one direction cannot starve
// the other. Each pool is bounded, but a transfer without a chunk always gets one, so every
// transfer makes progress and staging cannot deadlock. A pool consists of blocks. A transfer cuts
// the blocks that it holds into chunks of a suitable size.
//
// A block for sending may be a file that one peer, its reader, can map. The peer then reads chunks
// in place (ChunkLocation). Such a block is used only for messages to that peer. A chunk that the
// peer may still read is never reused: its block is freed, and the peer keeps the pages. A block
// that a copy of an abandoned device may still touch is not reused before that copy has ended. All
// calls are made under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/device/memory.h"
#include "src/core/device/pinned_memory.h"
#include "transports/types.h"

namespace hetcomm {

struct StagingOptions {
  uint64_t chunk_bytes = 0;  // 0: chosen for each transfer
  uint64_t depth = 0;        // chunks in flight per transfer and direction; 0: chosen for each
  bool pins = true;          // use pinned memory for chunks
  // For each device, by index in the DeviceSet: the NUMA node near which its chunks are placed.
  // Devices beyond the end of the list have no preferred node.
  std::vector<int> device_nodes{};
};

// The shape of a transfer through the host: the chunk size and the number of chunks in flight.
struct StagingShape {
  uint64_t chunk_bytes = 0;  // 0: not chosen yet
  size_t depth = 0;
};

// Costs of a device's copies. 0: unknown.
struct CopyCosts {
  double bytes_per_s = 0;
  double start_s = 0;  // time that a thread spends to start a copy
};

// Returns the shape for |length| bytes of a device whose copies cost |costs|.
StagingShape choose_staging_shape(const StagingOptions& options, uint64_t length,
                                  const CopyCosts& costs);

// Makes memory available for mapping by another rank of the job.
class BlockPublisher {
 public:
  // Allows |reader| to map |region| over transport number |transport|. The caller leaves
  // |region.members| unset.
  virtual Result<RemoteKey> publish_block(size_t transport, int reader,
                                          Region region) HETCOMM_UNDER_BATON = 0;
  // See RegionPublisher::withdraw().
  virtual bool withdraw_block(size_t transport, const RemoteKey& key) HETCOMM_UNDER_BATON = 0;

 protected:
  ~BlockPublisher() = default;
};

// The location of a chunk, or of a part of one, in a region that a peer can map.
struct ChunkLocation {
  RemoteKey region;
  uint64_t region_bytes = 0;
  uint64_t offset = 0;
};

class ChunkPools {
 public:
  static constexpr int kNoReader = -1;
  enum class Pool : uint8_t { kSend, kReceive };
  static constexpr size_t kMaxDepth = 16;
  static constexpr uint64_t kLargestChunk = 2u << 20;  // options can set larger ones
  // The memory that blocks are made of.
  struct BlockKind {
    int node = kAnyNumaNode;
    const Device* allocator = nullptr;
    bool any_memory = true;  // its devices, if any, copy equally fast from all host memory
    bool operator==(const BlockKind&) const = default;
  };

 private:
  using Keys = std::vector<std::pair<size_t, RemoteKey>>;  // each with the number of its transport
  // Memory that is cut into the chunks of one transfer.
  struct Block {
    PinnedMemory bytes;
    uint32_t used = 0;  // a bit for each chunk in use
    uint32_t left = 0;  // bits of chunks that a peer may still read; they stay set in |used|
    size_t kind = 0;    // index in |kinds_|
    Pool pool = Pool::kSend;
    bool stands_in = false;  // pageable, because a held stream prevented pinning
    int reader = kNoReader;
    Keys keys{};  // keys with which the reader maps it
    Block* next = nullptr;
    size_t index = 0;  // position in |blocks_|
  };

 public:
  // The chunks of one transfer. All of them must be given back before the Share is destroyed.
  class Share {
   public:
    // |reader|: the rank on this host that may map chunks for sending; kNoReader if there is none.
    Share(ChunkPools& pools, Pool pool, int reader = kNoReader)
        : pools_(pools), pool_(pool), reader_(reader) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    const StagingShape& shape() const HETCOMM_UNDER_BATON { return shape_; }
    // Sets the shape on the first call; later calls change nothing. |kind|: see kind_of().
    void choose_shape(uint64_t length, const CopyCosts& costs,
                      size_t kind = 0) HETCOMM_UNDER_BATON {
      if (shape_.chunk_bytes != 0) return;
      shape_ = choose_staging_shape(pools_.options_, length, costs);
      kind_ = kind;
    }
    // Returns a chunk. Returns null if the pool is used up and the transfer |has_one|, or if out of
    // memory (|*exhausted| is then set).
    std::byte* take(bool has_one, bool* exhausted) HETCOMM_UNDER_BATON;
    void give(std::byte* chunk) HETCOMM_UNDER_BATON;
    // Gives back a chunk that a peer may still read.
    void leave(std::byte* chunk) HETCOMM_UNDER_BATON;
    // Returns the location of |chunk| for the reader, which is connected over |transport|. Returns
    // nothing if the reader cannot map the chunk. May throw std::bad_alloc.
    std::optional<ChunkLocation> locate(const std::byte* chunk,
                                        size_t transport) HETCOMM_UNDER_BATON;

   private:
    Block** find(const std::byte* chunk) HETCOMM_UNDER_BATON;
    uint32_t bit_of(const Block& block, const std::byte* chunk) const HETCOMM_UNDER_BATON;
    void put_down(Block** link) HETCOMM_UNDER_BATON;

    ChunkPools& pools_;
    const Pool pool_;
    const int reader_;
    StagingShape shape_;
    size_t kind_ = 0;
    Block* blocks_ = nullptr;
  };

  // |devices| outlives this object.
  ChunkPools(DeviceSet& devices, const StagingOptions& options);
  ChunkPools(const ChunkPools&) = delete;
  ChunkPools& operator=(const ChunkPools&) = delete;

  const StagingOptions& options() const { return options_; }
  // Sets the publisher that lets peers map blocks; null: none. |publisher| must live until it is
  // replaced.
  void set_publisher(BlockPublisher* publisher) HETCOMM_UNDER_BATON { publisher_ = publisher; }
  // Returns the kind of chunks for device |index|, for Share::choose_shape().
  size_t kind_of(size_t index) HETCOMM_UNDER_BATON;
  // Sets the NUMA node near which chunks for device |index|, which was added, are placed. May throw
  // std::bad_alloc.
  void set_node(size_t index, int node) HETCOMM_UNDER_BATON;
  const BlockKind& kind(size_t number) const HETCOMM_UNDER_BATON { return kinds_[number]; }
  // Frees blocks that could not be freed when their use ended. Each call checks a few of the
  // regions that readers have not released.
  void tidy() HETCOMM_UNDER_BATON;
  // Makes blocks for device |index| before its users' streams are held back, since nothing can be
  // pinned while they are.
  void prepare_for_holds(size_t index) HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kMaxBlocks = 32;          // for each pool, excluding guaranteed blocks
  static constexpr size_t kHeldBlocks = 8;          // for each pool, made before holds
  static constexpr uint32_t kFilelessBlocks = 256;  // blocks taken before a file is tried again
  // Unused blocks of one kind that have the same reader.
  struct FreeBlocks {
    int reader;
    Block* first;
  };
  struct PoolState {
    std::vector<std::vector<FreeBlocks>> free;  // by kind; one list for each reader
    size_t made = 0;
  };
  // Chooses the kinds of blocks for devices that were added since the last call.
  void meet_devices();
  size_t choose_kind(size_t index);
  Block* make_block(size_t kind, int reader) HETCOMM_UNDER_BATON;
  static FreeBlocks* find_free(PoolState& state, size_t kind, int reader) HETCOMM_UNDER_BATON;
  static void give_free(PoolState& state, Block* block) HETCOMM_UNDER_BATON;
  static Block* take_free(PoolState& state, size_t kind, int reader) HETCOMM_UNDER_BATON;
  static Block* take_free(PoolState& state, int reader) HETCOMM_UNDER_BATON;
  void drop_unreadable(Pool pool, int reader) HETCOMM_UNDER_BATON;
  Block* acquire(Pool pool, size_t kind, int reader, bool has_one,
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
  std::vector<int> device_nodes_;  // by device index; no preference beyond the end
  const uint64_t block_bytes_;
  std::vector<BlockKind> kinds_;        // the first is a default BlockKind
  std::vector<size_t> kind_of_device_;  // by device index
  PoolState pools_[2];
  std::vector<std::unique_ptr<Block>> blocks_;
  Block* stranded_ = nullptr;  // blocks that abandoned copies may touch
  BlockPublisher* publisher_ = nullptr;
  uint32_t waits_for_files_ = 0;
  std::vector<std::unique_ptr<Block>> leaving_;  // blocks to free once no stream is held back
  Keys withdrawn_;                               // keys of regions that readers may still map
  size_t next_withdrawn_ = 0;                    // index in |withdrawn_| of the next to check
};

}  // namespace hetcomm
