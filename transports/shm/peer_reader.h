// The gets of one connection: they read the peer's memory (cma.h), in the order of BulkQueue.
//
// A source may be withdrawn during a get. The get then ends with kCancelled. The process that was
// read must still be the peer at the end: its id may have been given to another.
#pragma once

#include <cstdint>

#include "src/base/status.h"
#include "transports/shm/bulk_queue.h"
#include "transports/shm/setup.h"
#include "transports/shm/wire.h"
#include "transports/transport.h"

namespace hetcomm::shm {

class PeerReader {
 public:
  // |connection| outlives it.
  explicit PeerReader(const Connection& connection) : connection_(connection) {}

  // Accepts a get; pump() reads for it.
  Code push(Bulk& bulk);
  // Reads all of a get at once, without a queue or an upcall.
  Code read_now(Bulk& bulk);
  // Reads a bounded amount for the gets that were accepted. Makes upcalls. Returns the number of
  // things done.
  int pump(EndpointHandler& handler);
  bool empty() const { return gets_.empty(); }
  // Forgets |bulk|, if it is here.
  void remove(Bulk& bulk) { gets_.remove(bulk); }
  void clear() { gets_.clear(); }
  // True: the peer was gone at the end of a get, and pump() no longer reads.
  bool peer_is_gone() const { return peer_is_gone_; }

 private:
  Code begin(Bulk& bulk) const;
  Code outcome_of(const Bulk& bulk, int64_t outcome);

  const Connection& connection_;
  BulkQueue gets_;
  bool peer_is_gone_ = false;
};

}  // namespace hetcomm::shm
