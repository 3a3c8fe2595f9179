// A Setup turns an authenticated local socket into a connection by an exchange of two messages:
//
//   initiator                                        acceptor
//     offer (geometry, nonce, memory)            -->   maps the memory, tries to read the nonce
//                                                <--   answer (nonce), or reason for a refusal
//
// Both messages have a fixed size. The offer carries one descriptor, and the answer carries none.
// Each side has one Setup per connection. A Setup never blocks. The acceptor's Setup holds only the
// socket until the offer has arrived.
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

// An established connection that has no endpoint yet.
struct Connection {
  int side = 0;     // index in the mapped memory: 0 initiator, 1 acceptor
  UniqueFd socket;  // ends when the peer exits, even if a child of the peer survives
  pid_t pid = 0;    // the peer's process id as this process sees it; 0: not visible
  uid_t user = 0;   // the peer's effective user id
  ConnectionMemory memory;
  bool fence = false;  // this side's producer has to execute a fence (wake.h)
  Status reading;      // kOk: a test has read the peer's memory
};

// The state that all setups of a transport share. It outlives them.
struct SetupContext {
  Poller& poller;
  Geometry geometry;  // largest rings offered and accepted
  bool membarrier;
  Nonce nonce;                     // kept at a fixed address while peers read it
  Status reading;                  // kOk: try to read the peer's memory
  int inside_node = kAnyNumaNode;  // NUMA node for rings that this side reads
};

class Setup;

class SetupHandler {
 public:
  // Reports the outcome once, from the poller. The handler may destroy |setup|.
  virtual void on_setup(Setup& setup, Result<Connection> connection) = 0;

 protected:
  ~SetupHandler() = default;
};

class Setup final : public Watcher {
 public:
  // Sends the offer over |socket| to a peer that accepts rings of |peer_ring_bytes|. Fails
  // immediately if resources are missing.
  static Result<std::unique_ptr<Setup>> offer(UniqueFd socket, const SetupContext& context,
                                              uint64_t peer_ring_bytes, SetupHandler& handler);
  // Waits for a peer's offer on |socket|.
  static Result<std::unique_ptr<Setup>> await_offer(UniqueFd socket, const SetupContext& context,
                                                    SetupHandler& handler);
  ~Setup();

  void on_events(uint32_t events) override;

 private:
  struct Message;
  Setup(UniqueFd socket, int side, const SetupContext& context, SetupHandler& handler);
  Status start();
  Status send(const Status& outcome);
  // Receives the peer's message. kPending: more bytes have yet to arrive.
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
