// ConnectionMemory is the memory that the two processes of a connection share: an anonymous sealed
// file, which has no name that could be left behind or guessed.
//
// Each ring is placed near its reader. A writer's stores can wait in the store buffer of its
// processor, but a load stalls the reader until the bytes arrive. The reader requests its node
// during connection setup, before the writer allocates the ring's memory.
#pragma once

#include <cstddef>
#include <span>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/numa_memory.h"
#include "src/system/unique_fd.h"
#include "transports/shm/wire.h"

namespace hetcomm::shm {

// Returns the size of a peer's |file|. Fails unless the file is ordinary memory and has all of
// |seals|. If they include F_SEAL_SHRINK, the peer cannot shrink the file.
Result<uint64_t> sealed_size(const UniqueFd& file, int seals);

class ConnectionMemory {
 public:
  // Returns kOk if this process can create sealed files for |geometry|. Allocates no memory.
  static Status check_support(const Geometry& geometry);
  // Creates the file. Allocates memory for its control part, but not yet for its rings.
  static Result<ConnectionMemory> create(const Geometry& geometry);
  // Maps a peer's file after checking that nobody can shrink it while it is mapped.
  static Result<ConnectionMemory> adopt(UniqueFd file, const Geometry& geometry);

  ConnectionMemory() = default;
  ConnectionMemory(ConnectionMemory&& other) noexcept;
  ConnectionMemory& operator=(ConnectionMemory&& other) noexcept;
  ~ConnectionMemory();

  const Geometry& geometry() const { return geometry_; }
  // Returns the memory's file descriptor, or -1 once this side has closed it.
  int file() const { return file_.get(); }
  uint64_t size_bytes() const { return geometry_.file_bytes(); }
  // Returns the control part that side |side| (0 or 1) writes. ring(|side|) is the ring that the
  // same side fills.
  Side& side(int side) const {
    return reinterpret_cast<Control*>(base_)->sides[static_cast<size_t>(side)];
  }
  std::byte* ring(int side) const {
    return base_ + kControlBytes + static_cast<uint64_t>(side) * geometry_.ring_bytes;
  }
  // Requests that ring |side| be placed near NUMA node |node|. Called before any of it is
  // allocated.
  void place_ring(int side, int node) const {
    (void)prefer_numa_node(ring(side), geometry_.ring_bytes, node);
  }
  // Closes the file to save a descriptor, if the kernel can also allocate memory through the
  // mapping (Linux 5.14). The peer already has the file.
  void let_go_of_file();
  // Allocates memory for bytes |from| to |to| of ring |side|, so that the first access causes no
  // SIGBUS. Returns kOutOfMemory if that fails. Closes the file once the whole ring is allocated.
  Code allocate_ring(int side, uint64_t from, uint64_t to);

 private:
  ConnectionMemory(UniqueFd file, const Geometry& geometry);
  Status map();

  UniqueFd file_;
  Geometry geometry_;
  std::byte* base_ = nullptr;
};

}  // namespace hetcomm::shm
