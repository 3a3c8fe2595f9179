// One stream that this side is connecting: the first of a new connection, or a further one of an
// endpoint.
//
// All addresses are tried in rounds, with a short limit each, so that one that swallows packets
// does not keep the others waiting, and none waits for the kernel, which asks ever less often. A
// peer that was reached and has not answered computes: the next round then lasts twice as long, and
// the rounds go on for the bootstrap time. They end with a refusal, or when nobody was reached for
// the detection time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/net/connector.h"
#include "transports/tcp/transport.h"

namespace hetcomm::tcp {

class TcpTransport::ConnectAttempt final : public ConnectHandler {
 public:
  // |refused|: a failure that is known already and is to be reported later.
  ConnectAttempt(TcpTransport& transport, int peer, const StreamName& name,
                 std::vector<Address> addresses, Status refused);

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
  void start_round();

  TcpTransport& transport_;
  const int peer_;
  const StreamName name_;
  const std::vector<Address> addresses_;
  const Status refused_;
  TcpEndpoint* endpoint_ = nullptr;
  uint64_t round_ends_ns_ = 0;
  uint64_t deadline_ns_ = 0;
  uint32_t doublings_ = 0;        // of the round's time
  bool reached_ = false;          // somebody's kernel, in this round
  uint64_t last_reached_ns_ = 0;  // or when it was started
  std::unique_ptr<Connector> connector_;
};

}  // namespace hetcomm::tcp
