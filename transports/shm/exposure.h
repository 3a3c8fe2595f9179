// TargetTable and SourceTable record the memory that this side has exposed on one connection. A
// RemoteKey identifies each entry.
//
// Only this process writes to targets. It copies the peer's bytes from the ring, and never after
// remove(). The peer can read sources at any time. remove() invalidates the source's word in shared
// memory before it returns. A reader that finds the word changed after it has read its last byte
// discards the bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/extent_cursor.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "transports/shm/wire.h"
#include "transports/transport.h"

namespace hetcomm::shm {

// The words of a key. Target: {generation << 32 | index, total bytes, kPutKey}. Source: {generation
// << 32 | index, address of the memory or of its iovec list, list length << 48 | total bytes}.
inline constexpr uint64_t kPutKey = 1ull << 63;
inline constexpr uint64_t kMaxSourceBytes = (1ull << 48) - 1;
inline constexpr size_t kMaxSourceExtents = (1u << 15) - 1;

struct SourceKey {
  uint32_t index;
  uint32_t generation;
  uint64_t address;
  uint64_t extents;  // 0: |address| is the memory itself
  uint64_t length;

  RemoteKey encode() const;
  // Decodes |key|, which comes from the peer. Returns false if it is not the key of a source.
  static bool decode(const RemoteKey& key, SourceKey& out);
};

struct Target {
  std::vector<iovec> extents;
  ExtentCursor cursor;
  uint64_t total = 0;
  uint64_t cookie = 0;
  uint64_t received = 0;  // bytes written but not yet reported
  uint32_t generation = 0;
  bool live = false;
};

class TargetTable {
 public:
  RemoteKey add(Extents extents, uint64_t cookie);
  void remove(const RemoteKey& key);
  // Returns the target that |token| identifies, or null if it is not currently exposed.
  Target* find(uint64_t token);
  void clear();

 private:
  std::vector<Target> targets_;
  std::vector<uint32_t> free_;
};

class SourceTable {
 public:
  explicit SourceTable(Side& mine) : words_(mine.sources.data()) {}
  // Returns kOutOfResources if all words are in use, and kInvalidArgument if |extents| exceed
  // kMaxSourceBytes or kMaxSourceExtents.
  Result<RemoteKey> add(Extents extents);
  void remove(const RemoteKey& key);
  void clear();

 private:
  struct Source {
    std::vector<iovec> extents;
    uint32_t generation = 0;
    bool live = false;
  };
  std::atomic<uint32_t>* words_;
  std::vector<Source> sources_;
  std::vector<uint32_t> free_;
};

}  // namespace hetcomm::shm
