// PeerReader performs the gets of one connection in the order of BulkQueue. It reads the peer's
// memory (cma.h).
//
// A source may be withdrawn during a get, which then ends with kCancelled. After each get, the
// reader checks that the peer's end of the socket is still open. If it is closed, the peer may have
// exited and another process may have its process id.
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
  // |connection| must outlive the reader.
  explicit PeerReader(const Connection& connection) : connection_(connection) {}

  // Accepts a get. pump() performs it.
  Code push(Bulk& bulk);
  // Reads all the data of a get immediately, without a queue or an upcall.
  Code read_now(Bulk& bulk);
  // Reads a limited amount for the accepted gets. Makes upcalls. Returns the number of actions.
  int pump(EndpointHandler& handler);
  bool empty() const { return gets_.empty(); }
  // Removes |bulk| if it is queued here.
  void remove(Bulk& bulk) { gets_.remove(bulk); }
  void clear() { gets_.clear(); }
  // Returns whether the peer was found to be gone after a get. pump() then no longer reads.
  bool peer_is_gone() const { return peer_is_gone_; }

 private:
  Code begin(Bulk& bulk) const;
  Code outcome_of(const Bulk& bulk, int64_t outcome);

  const Connection& connection_;
  BulkQueue gets_;
  bool peer_is_gone_ = false;
};

}  // namespace hetcomm::shm
