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
// rdma_cm finds the path and nothing else: both have proved who they are, and told each other their
// queue pairs and the token, on the TCP connection (connect_attempt.h). Whoever does not know an
// open token is refused, and a path to another queue pair or address than those told is not used.
//
// Queue pairs are made outside of librdmacm, which opens the device for itself: they belong to the
// context of ours, with everything else.
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
  // The side that connects: the peer has accepted.
  virtual void on_answer() = 0;
  // The connection could not be made, or has ended. Nothing follows.
  virtual void on_ended(const Status& why) = 0;

 protected:
  ~CmHandler() = default;
};

// One of this side's, whoever asked. Destroying it ends it for the peer too. No call blocks.
class CmConnection {
 public:
  virtual ~CmConnection() = default;
  virtual void set_handler(CmHandler& handler) = 0;
  // The way to the peer: from the request, or the answer, on.
  virtual Result<Path> path() = 0;
  // The side that was asked; |pair| is connected.
  virtual Status accept(const QueuePair& pair) = 0;
  virtual void refuse(std::string_view why) = 0;
  // The side that asked; its queue pair is connected.
  virtual Status confirm() = 0;
};

class CmListener {
 public:
  // Somebody asks, with what may be a token. From the poller.
  virtual void on_request(const CmToken& token, std::unique_ptr<CmConnection> connection) = 0;
  // Nobody can ask any more.
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
  // kOk if the library can be had.
  static Status probe();

  // All connections have been destroyed.
  virtual ~ConnectionManager() = default;
  // The address at which it listens for connections to |gid|, if it does.
  virtual std::optional<Address> address_of(const Gid& gid) const = 0;
  // Asks at |to| from the address of |gid|, which is listened on.
  virtual Result<std::unique_ptr<CmConnection>> connect(const Gid& gid, const Address& to,
                                                        const CmToken& token, const QueuePair& pair,
                                                        CmHandler& handler) = 0;
};

}  // namespace hetcomm::rdma
