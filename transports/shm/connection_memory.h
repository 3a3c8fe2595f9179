// The memory that two processes share: an anonymous sealed file, without a name that could be left
// behind or guessed.
//
// Each ring lies near its reader. A store of the writer waits in a buffer of its processor, but a
// load stalls the reader until the bytes arrive. The reader asks for its node when the connection
// is set up, before the writer gives the ring its memory.
#pragma once

#include <cstddef>
#include <span>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/numa_memory.h"
#include "src/system/unique_fd.h"
#include "transports/shm/wire.h"

namespace hetcomm::shm {

// Returns the size of a peer's |file| after checking that touching it up to there cannot fault: it
// is plain memory, which the peer has sealed with |seals| and so cannot shrink.
Result<uint64_t> sealed_size(const UniqueFd& file, int seals);

class ConnectionMemory {
 public:
  // kOk if this process can make sealed files for |geometry|. It costs little.
  static Status check_support(const Geometry& geometry);
  // Makes the file; its control part has memory, its rings do not yet.
  static Result<ConnectionMemory> create(const Geometry& geometry);
  // Maps a peer's file after checking that no one can shrink it under us.
  static Result<ConnectionMemory> adopt(UniqueFd file, const Geometry& geometry);

  ConnectionMemory() = default;
  ConnectionMemory(ConnectionMemory&& other) noexcept;
  ConnectionMemory& operator=(ConnectionMemory&& other) noexcept;
  ~ConnectionMemory();

  const Geometry& geometry() const { return geometry_; }
  // The memory's descriptor; -1 after let_go_of_file().
  int file() const { return file_.get(); }
  uint64_t size_bytes() const { return geometry_.file_bytes(); }
  // The memory that side |side| (0 or 1) writes, and the ring that it fills.
  Side& side(int side) const {
    return reinterpret_cast<Control*>(base_)->sides[static_cast<size_t>(side)];
  }
  std::byte* ring(int side) const {
    return base_ + kControlBytes + static_cast<uint64_t>(side) * geometry_.ring_bytes;
  }
  // Asks for memory near NUMA node |node| for ring |side|, before any of it is allocated.
  void place_ring(int side, int node) const {
    (void)prefer_numa_node(ring(side), geometry_.ring_bytes, node);
  }
  // Closes the file, to save a descriptor, where the kernel can also allocate memory through the
  // mapping (Linux 5.14). The peer has the file by now.
  void let_go_of_file();
  // Allocates memory for the bytes |from| to |to| of ring |side|, so that the first touch causes no
  // SIGBUS. kOutOfMemory if there is none.
  Code allocate_ring(int side, uint64_t from, uint64_t to);

 private:
  ConnectionMemory(UniqueFd file, const Geometry& geometry);
  Status map();

  UniqueFd file_;
  Geometry geometry_;
  std::byte* base_ = nullptr;
};

}  // namespace hetcomm::shm
