// ConnectionManager establishes connections with rdma_cm (HETCOMM_RDMA_CONNECT=cm). Its interface
// does not depend on the librdmacm headers.
//
//   connects                                    listens
//     address, route
//     request: token, its queue
//     pair's number                    -->        CmListener::on_request
//                                                 path(); connects its queue pair
//     CmHandler::on_answer             <--        accept()
//     path(); connects its queue pair
//     confirm()                        -->
//
// rdma_cm is used only to find the path. Over the TCP connection (connect_attempt.h) both sides
// have already proved their identity, exchanged the parameters of their queue pairs and agreed on
// the token. A request without a pending token is refused. A path to a queue pair or address other
// than those exchanged is not used.
//
// Queue pairs are created outside of librdmacm, which opens the device separately. They belong to
// this transport's own context, like all other objects.
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

// Receives the upcalls of one connection. The poller makes the upcalls. An upcall may destroy the
// connection.
class CmHandler {
 public:
  // Reports to the connecting side that the peer has accepted.
  virtual void on_answer() = 0;
  // Reports that the connection could not be established or has ended. No upcall follows.
  virtual void on_ended(const Status& why) = 0;

 protected:
  ~CmHandler() = default;
};

// A connection that either side has initiated. Destroying it also ends the connection at the peer.
// No call blocks.
class CmConnection {
 public:
  virtual ~CmConnection() = default;
  virtual void set_handler(CmHandler& handler) = 0;
  // Returns the path to the peer, which is known once the request or answer has arrived.
  virtual Result<Path> path() = 0;
  // Accepts the peer's request. The side that received it calls this when |pair| is connected.
  virtual Status accept(const QueuePair& pair) = 0;
  virtual void refuse(std::string_view why) = 0;
  // Confirms the connection. The side that sent the request calls this when its queue pair is
  // connected.
  virtual Status confirm() = 0;
};

class CmListener {
 public:
  // Reports a connection request. |token| holds the bytes that the peer sent, which may not be a
  // valid token. Called from the poller.
  virtual void on_request(const CmToken& token, std::unique_ptr<CmConnection> connection) = 0;
  // Reports that peers can no longer send requests.
  virtual void on_listener_lost(const Status& why) = 0;

 protected:
  ~CmListener() = default;
};

class ConnectionManager {
 public:
  // Creates a manager that listens on the addresses of the device's port. Fails if it can listen on
  // none of them. If |cm| is null, it uses the installed library.
  static Result<std::unique_ptr<ConnectionManager>> create(const Cm* cm, const Device& device,
                                                           const Config& config, Poller& poller,
                                                           Log& log, CmListener& listener);
  // Returns kOk if the library is available.
  static Status probe();

  // All connections must be destroyed first.
  virtual ~ConnectionManager() = default;
  // Returns the address on which the manager listens for connections to |gid|, if there is one.
  virtual std::optional<Address> address_of(const Gid& gid) const = 0;
  // Starts a request to |to| from the address of |gid|. Fails if this side does not listen on that
  // address.
  virtual Result<std::unique_ptr<CmConnection>> connect(const Gid& gid, const Address& to,
                                                        const CmToken& token, const QueuePair& pair,
                                                        CmHandler& handler) = 0;
};

}  // namespace hetcomm::rdma
