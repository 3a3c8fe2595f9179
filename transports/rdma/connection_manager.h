// Connections by rdma_cm (HETCOMM_RDMA_CONNECT=cm), in terms that need no header of librdmacm.
//
//   connects                                    listens
//     address, route
//     asks: token, its queue pair's
//     number                           -->        CmListener::on_request
//                                                 path(); connects its queue pair
//     CmHandler::on_answer             <--        accept()
//     path(); connects its queue pair
//     confirm()                        -->
//
// rdma_cm finds the path and nothing else. On the TCP connection (connect_attempt.h) both sides
// have proved their identity, and exchanged their queue pairs and the token. A request without an
// open token is refused. A path to another queue pair or address than those exchanged is not used.
//
// Queue pairs are made outside of librdmacm, which opens the device for itself. They belong to our
// own context, with everything else.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "src/base/status.h"
#include "src/net/address.h"
#include "src/net/poller.h"
#include "src/system/log.h"
#include "transports/rdma/device.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/wire.h"

namespace hetcomm::rdma {

struct Cm;

// Upcalls come from the poller. They may destroy the connection.
class CmHandler {
 public:
  // Tells the connecting side that the peer has accepted.
  virtual void on_answer() = 0;
  // The connection could not be made, or has ended. Nothing follows.
  virtual void on_ended(const Status& why) = 0;

 protected:
  ~CmHandler() = default;
};

// A connection, whichever side asked for it. Destroying it ends it for the peer too. No call
// blocks.
class CmConnection {
 public:
  virtual ~CmConnection() = default;
  virtual void set_handler(CmHandler& handler) = 0;
  // Returns the path to the peer. It is known from the request, or the answer, on.
  virtual Result<Path> path() = 0;
  // For the side that was asked, when |pair| is connected.
  virtual Status accept(const QueuePair& pair) = 0;
  virtual void refuse(std::string_view why) = 0;
  // For the side that asked, when its queue pair is connected.
  virtual Status confirm() = 0;
};

class CmListener {
 public:
  // A peer asks, with bytes that may be a token. Called from the poller.
  virtual void on_request(const CmToken& token, std::unique_ptr<CmConnection> connection) = 0;
  // No peer can ask any longer.
  virtual void on_listener_lost(const Status& why) = 0;

 protected:
  ~CmListener() = default;
};

class ConnectionManager {
 public:
  // Uses the installed library, or |cm|. Listens on the addresses of the device's port.
  static Result<std::unique_ptr<ConnectionManager>> create(const Cm* cm, const Device& device,
                                                           const Config& config, Poller& poller,
                                                           Log& log, CmListener& listener);
  // kOk if the library is available.
  static Status probe();

  // All connections have been destroyed before.
  virtual ~ConnectionManager() = default;
  // The address at which it listens for connections to |gid|, if it does.
  virtual std::optional<Address> address_of(const Gid& gid) const = 0;
  // Asks at |to| from the address of |gid|, which is listened on.
  virtual Result<std::unique_ptr<CmConnection>> connect(const Gid& gid, const Address& to,
                                                        const CmToken& token, const QueuePair& pair,
                                                        CmHandler& handler) = 0;
};

}  // namespace hetcomm::rdma
