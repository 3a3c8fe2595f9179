// One stream that this side is connecting: the first of a new connection, or a further one of an
// endpoint.
//
// All addresses are tried twice: at first with a short limit each, so that one that swallows
// packets does not keep the others waiting; then, if a time limit was what ended it (a refusal is
// final), with the whole of the bootstrap time, because a peer that computes answers late.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/net/socket.h"
#include "transports/tcp/transport.h"

namespace hetcomm::tcp {

class TcpTransport::Attempt final : public ConnectHandler {
 public:
  // |refused|: a failure that is known already and is to be reported later.
  Attempt(TcpTransport& transport, int peer, const StreamName& name, std::vector<Address> addresses,
          Status refused);

  void set_endpoint(TcpEndpoint& endpoint) { endpoint_ = &endpoint; }
  // Nullptr: the first stream of a new connection.
  TcpEndpoint* endpoint() const { return endpoint_; }
  int peer() const { return peer_; }
  const StreamName& name() const { return name_; }

  void start(const TransportEnvironment& environment);
  // These two may destroy it.
  void expire(const TransportEnvironment& environment);
  void on_connect(Result<StreamSocket> socket) override;
  uint64_t next_timer_ns() const;

 private:
  void connect(const TransportEnvironment& environment, uint64_t deadline_ns);

  TcpTransport& transport_;
  const int peer_;
  const StreamName name_;
  const std::vector<Address> addresses_;
  const Status refused_;
  TcpEndpoint* endpoint_ = nullptr;
  uint64_t short_deadline_ns_ = 0;
  uint64_t deadline_ns_ = 0;
  bool patient_ = false;  // in the second round
  std::unique_ptr<Connector> connector_;
};

}  // namespace hetcomm::tcp
