// ConnectAttempt connects one stream: the first stream of a new connection, or a further stream of
// an endpoint.
//
// The attempt tries all addresses in rounds, with a short time limit for each round. An address
// that drops packets then does not delay the others, and no address depends on the kernel's
// retries, which become less and less frequent. If a round ends after a peer's kernel was reached
// but its process did not answer, the process is busy computing, so the next round lasts twice as
// long. The rounds end with a connection or a refusal, after the bootstrap time, or if no peer was
// reached for the detection time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/net/connector.h"
#include "src/net/tls.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

class ConnectAttempt;

class ConnectAttemptHandler {
 public:
  // Reports the outcome once. |attempt| has ended, and the handler may destroy it.
  virtual void on_attempt_ended(ConnectAttempt& attempt, Result<StreamSocket> socket) = 0;

 protected:
  ~ConnectAttemptHandler() = default;
};

class ConnectAttempt final : public ConnectHandler {
 public:
  // The parts of the transport that an attempt uses. They must outlive it.
  struct Context {
    const TransportEnvironment& environment;
    std::shared_ptr<const TlsContext> tls;  // null if TLS is off
    uint64_t detection_ns;
    const LocalEnd& from;
  };
  // If |refused| is a failure, the attempt makes no connection and reports that failure later.
  ConnectAttempt(Context context, ConnectAttemptHandler& handler, const Destination& destination,
                 const StreamName& name, std::vector<Address> addresses, Status refused);

  const Destination& destination() const { return destination_; }
  const StreamName& name() const { return name_; }

  void start();
  // These two may end the attempt.
  void expire(uint64_t now);
  void on_connect(Result<StreamSocket> socket) override;
  uint64_t next_timer_ns() const;

 private:
  void start_round();

  const Context context_;
  ConnectAttemptHandler& handler_;
  const Destination destination_;
  const StreamName name_;
  const std::vector<Address> addresses_;
  const Status refused_;
  uint64_t round_ends_ns_ = 0;
  uint64_t deadline_ns_ = 0;
  uint32_t doublings_ = 0;        // number of times that the round's duration was doubled
  bool reached_ = false;          // a peer's kernel answered in this round
  uint64_t last_reached_ns_ = 0;  // when a peer's kernel last answered, or the start time
  std::unique_ptr<Connector> connector_;
};

}  // namespace hetcomm::tcp
