// Connections being made: finds the way to a peer, accepts peers, and keeps each attempt and
// arrival until it is an endpoint or has failed.
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
  // |port| and |endpoints| outlive it.
  PendingConnections(Port& port, EndpointTable& endpoints);
  ~PendingConnections();

  // Makes the listener, after the port was found. With |use_cm| the port is open, and the call
  // makes the connection manager over |cm|, or over the installed librdmacm if that is null.
  Status open(bool use_cm, const Cm* cm);
  // Peers can connect from here on.
  Status start();
  std::vector<std::byte> contact() const { return encode_contact(contact_); }
  // kOk if the peer with this contact can be reached from here.
  Status reach(ConstByteSpan contact) const { return way_to(contact).status(); }
  // TransportHandler::on_connected follows from run_timers() or the poller.
  void connect(const Destination& destination, ConstByteSpan contact);
  void cancel(const Destination& destination);
  // True: queue pair |number| is that of a peer whose connection is not complete.
  bool owns(uint32_t number) const;
  // Number of queue pairs of the transport, including those of endpoints.
  size_t queue_pairs() const;
  // Makes upcalls. Returns the number of things done. The transport calls it every 10 ms, and at
  // once after connect(), so the deadline of an arrival may be noticed that late.
  int run_timers(uint64_t now);
  uint64_t next_timer_ns() const;

  void on_accept(StreamSocket socket, const Hello& hello) override;
  void on_request(const CmToken& token, std::unique_ptr<CmConnection> connection) override;
  void on_listener_lost(const Status& why) override { port_.break_down(why.text()); }

  // --- for attempts and arrivals
  // Nullptr: connections are made by exchange.
  ConnectionManager* manager() { return manager_.get(); }
  // The attempt or arrival that asks is counted already.
  Result<std::unique_ptr<QueuePair>> make_queue_pair() {
    return port_.make_queue_pair(queue_pairs());
  }
  std::unique_ptr<Endpoint> make_endpoint(Connected connected);
  // Ends an attempt with its outcome, and tells core. This never fails.
  void finish(ConnectAttempt& attempt, Result<std::unique_ptr<Endpoint>> endpoint) noexcept;
  // Ends an arrival with its outcome. Nullptr: the connection has failed.
  void finish(Arrival& arrival, std::unique_ptr<Endpoint> endpoint) noexcept;

 private:
  // The way to a peer.
  struct Way {
    std::vector<Address> addresses;
    Gid mine;
    GidBytes peer{};
  };

  Result<Way> way_to(ConstByteSpan contact) const;
  // True: connections can be made by this address of the port.
  bool is_usable(const Gid& gid) const;

  Port& port_;
  EndpointTable& endpoints_;
  std::unique_ptr<ConnectionManager> manager_;
  Contact contact_;
  std::unique_ptr<NetworkListener> listener_;
  std::vector<std::unique_ptr<ConnectAttempt>> attempts_;
  std::vector<std::unique_ptr<Arrival>> arrivals_;
  mutable bool warned_ = false;  // that a peer makes connections in another way
};

}  // namespace hetcomm::rdma
