// A judge reaches other ranks through its Network.
#pragma once

#include <cstdint>
#include <string>

#include "src/liveness/frame.h"

namespace hetcomm::liveness {

// Names a proved connection; never used twice.
using ConnectionId = uint64_t;

enum class ConnectFailure : uint8_t {
  kOther,             // the failure says nothing about the peer
  kRefused,           // an address at which the peer once took a connection refuses now
  kOtherIncarnation,  // another process proved itself at an address that once was the peer's
};

// The network makes the control connections of one rank. Its functions never call the judge.
class Network {
 public:
  // Connects to |rank|. The judge's on_connection_up() or on_connect_failed() reports the result.
  virtual void connect(int rank) = 0;
  // Sends |frame| after all earlier frames. Returns false if there is no room; on_writable()
  // follows.
  virtual bool send(ConnectionId connection, const Frame& frame) = 0;
  // Closes |connection|. Frames already sent still leave, and no further upcall reports on it.
  virtual void close(ConnectionId connection) = 0;
  // Returns the time at which the peer's kernel last acknowledged something on |connection|, or was
  // last seen to run its process.
  virtual uint64_t last_acknowledged_ns(ConnectionId connection) = 0;
  // Returns where |rank| listens, in the form that learn_addresses() reads; empty if this rank
  // knows no more than all ranks do.
  virtual std::string addresses_of(int rank) = 0;
  virtual void learn_addresses(int rank, const std::string& addresses) = 0;

 protected:
  ~Network() = default;
};

}  // namespace hetcomm::liveness
