// The exchange that turns a proved local socket into a connection:
//
//   initiator                                        acceptor
//     offer (geometry, nonce, memory)            -->   maps the memory, tries to read the nonce
//                                                <--   answer (nonce), or why not
//
// Both messages have a fixed size. The offer brings one descriptor, the answer none. There is one
// Setup per connection and side. It never blocks, and it holds only the socket until the other side
// has sent its message.
#pragma once

#include <sys/types.h>

#include <memory>

#include "src/base/status.h"
#include "src/net/poller.h"
#include "src/system/unique_fd.h"
#include "transports/shm/cma.h"
#include "transports/shm/connection_memory.h"
#include "transports/shm/file_passing.h"

namespace hetcomm::shm {

// A ready connection, before it is an endpoint.
struct Connection {
  int side = 0;     // of the mapped memory: 0 initiator, 1 acceptor
  UniqueFd socket;  // its end tells that the peer has gone: forked children do not keep it
  pid_t pid = 0;    // as seen from here; 0: not visible
  uid_t user = 0;   // the peer's effective id
  ConnectionMemory memory;
  bool fence = false;  // see Bell
  Status reading;      // kOk: proved
};

// All setups of a transport share this. It outlives them.
struct SetupContext {
  Poller& poller;
  Geometry geometry;  // rings of this size are offered and accepted, and smaller ones
  bool membarrier;
  Nonce nonce;                     // at a fixed address while peers read it
  Status reading;                  // kOk: try
  int inside_node = kAnyNumaNode;  // node of the rings that this side reads
};

class Setup;

class SetupHandler {
 public:
  // Reports the outcome once, from the poller. |setup| may be destroyed here.
  virtual void on_setup(Setup& setup, Result<Connection> connection) = 0;

 protected:
  ~SetupHandler() = default;
};

class Setup final : public Watcher {
 public:
  // Sends the offer over |socket|, to a peer that accepts rings of |peer_ring_bytes|. Fails at once
  // when resources for it are missing.
  static Result<std::unique_ptr<Setup>> offer(UniqueFd socket, const SetupContext& context,
                                              uint64_t peer_ring_bytes, SetupHandler& handler);
  // Waits for an offer.
  static Result<std::unique_ptr<Setup>> await_offer(UniqueFd socket, const SetupContext& context,
                                                    SetupHandler& handler);
  ~Setup();

  void on_events(uint32_t events) override;

 private:
  struct Message;
  Setup(UniqueFd socket, int side, const SetupContext& context, SetupHandler& handler);
  Status start();
  Status send(const Status& outcome);
  // kPending: the rest has yet to come.
  Status receive();
  Status accept_message();
  Status accept_offer(const Message& message);
  void report(const Status& outcome);

  const SetupContext& context_;
  SetupHandler& handler_;
  Connection connection_;
  Incoming incoming_;
};

}  // namespace hetcomm::shm
