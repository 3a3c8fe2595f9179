// PendingConnections establishes connections. It finds the addresses for reaching a peer, accepts
// connections from peers, and holds each attempt and arrival until it becomes an endpoint or fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/net/network_listener.h"
#include "transports/rdma/connection_manager.h"
#include "transports/rdma/endpoint_table.h"
#include "transports/rdma/port.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class ConnectAttempt;
class Arrival;

class PendingConnections final : public AcceptHandler, public CmListener {
 public:
  // |port| and |endpoints| outlive this object.
  PendingConnections(Port& port, EndpointTable& endpoints);
  ~PendingConnections();

  // Creates the listener. Call after the port has been found. If |use_cm| is true, also creates the
  // connection manager on the open port, with |cm|, or with the installed librdmacm if |cm| is
  // null.
  Status open(bool use_cm, const Cm* cm);
  // Starts to accept peers.
  Status start();
  std::vector<std::byte> contact() const { return encode_contact(contact_); }
  // Returns kOk if the peer with this contact can be reached from here.
  Status reach(ConstByteSpan contact) const { return way_to(contact).status(); }
  // Starts a connection. TransportHandler::on_connected is called later from run_timers() or the
  // poller.
  void connect(const Destination& destination, ConstByteSpan contact);
  void cancel(const Destination& destination);
  // Returns whether queue pair |number| belongs to an arrival. Its peer may already be sending
  // messages.
  bool owns(uint32_t number) const;
  // Returns the number of the transport's queue pairs: one for each attempt, for each arrival, and
  // for each endpoint that has not failed.
  size_t queue_pairs() const;
  // Handles expired deadlines, and makes the resulting upcalls. Returns the number of actions. The
  // transport calls it every 10 ms, and in the first progress() after connect(), so an arrival's
  // deadline may be noticed up to 10 ms late.
  int run_timers(uint64_t now);
  uint64_t next_timer_ns() const;

  void on_accept(StreamSocket socket, const Hello& hello) override;
  void on_request(const CmToken& token, std::unique_ptr<CmConnection> connection) override;
  void on_listener_lost(const Status& why) override { port_.break_down(why.text()); }

  // --- for attempts and arrivals
  // Returns the connection manager; nullptr unless HETCOMM_RDMA_CONNECT=cm.
  ConnectionManager* manager() { return manager_.get(); }
  // Creates a queue pair. The calling attempt or arrival is already included in queue_pairs().
  Result<std::unique_ptr<QueuePair>> make_queue_pair() {
    return port_.make_queue_pair(queue_pairs());
  }
  std::unique_ptr<Endpoint> make_endpoint(Connected connected);
  // Ends |attempt| with the outcome |endpoint|, and reports the outcome to core. Never fails.
  void finish(ConnectAttempt& attempt, Result<std::unique_ptr<Endpoint>> endpoint) noexcept;
  // Ends |arrival|. If |endpoint| is null, the connection has failed.
  void finish(Arrival& arrival, std::unique_ptr<Endpoint> endpoint) noexcept;

 private:
  // The addresses for reaching a peer.
  struct Way {
    std::vector<Address> addresses;
    Gid mine;
    GidBytes peer{};
  };

  Result<Way> way_to(ConstByteSpan contact) const;
  // Returns whether connections can be made through this address of the port.
  bool is_usable(const Gid& gid) const;

  Port& port_;
  EndpointTable& endpoints_;
  std::unique_ptr<ConnectionManager> manager_;
  Contact contact_;
  std::unique_ptr<NetworkListener> listener_;
  std::vector<std::unique_ptr<ConnectAttempt>> attempts_;
  std::vector<std::unique_ptr<Arrival>> arrivals_;
  mutable bool warned_ = false;  // has warned that a peer connects by another method
};

}  // namespace hetcomm::rdma
