// A judge reaches other ranks through its Network.
#pragma once

#include <cstdint>
#include <string>

#include "src/liveness/frame.h"

namespace hetcomm::liveness {

// Identifies a connection after the handshake. Ids are never reused.
using ConnectionId = uint64_t;

enum class ConnectFailure : uint8_t {
  kOther,             // the failure says nothing about the peer
  kRefused,           // an address that accepted the peer's connections before now refuses
  kOtherIncarnation,  // another process proved itself at an address that was the peer's before
};

// Makes the control connections of one rank. Its functions never call the judge.
class Network {
 public:
  // Connects to |rank|. The judge's on_connection_up() or on_connect_failed() reports the result.
  virtual void connect(int rank) = 0;
  // Sends |frame| after all earlier frames. Returns false if its queue is full; on_writable()
  // follows.
  virtual bool send(ConnectionId connection, const Frame& frame) = 0;
  // Closes |connection|. Frames that are already queued are still sent, and no further upcall
  // concerns the connection.
  virtual void close(ConnectionId connection) = 0;
  // Returns when the peer's kernel last acknowledged data on |connection|, or when its process was
  // last known to exist. Returns 0 if neither is known.
  virtual uint64_t last_acknowledged_ns(ConnectionId connection) = 0;
  // Returns the addresses of |rank| in the form that learn_addresses() reads. Returns an empty text
  // if this rank knows no more of them than all ranks do.
  virtual std::string addresses_of(int rank) = 0;
  virtual void learn_addresses(int rank, const std::string& addresses) = 0;

 protected:
  ~Network() = default;
};

}  // namespace hetcomm::liveness
