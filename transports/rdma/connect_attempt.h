// ConnectAttempt and Arrival are the two sides of a connection that is being established.
//
//   lower rank (ConnectAttempt)               higher rank (Arrival)
//     creates a queue pair
//     TCP, proof of the secret; its
//     parameters are in the hello      -->    creates a queue pair, connects it
//     connects its own                 <--    answer: parameters or a refusal
//     ready                            -->    hands the endpoint to core
//
// The ready byte keeps the higher rank from sending to a queue pair that cannot receive yet.
//
// With HETCOMM_RDMA_CONNECT=cm neither side derives the path from the other's parameters. The
// answer contains a token, which the lower rank presents in an rdma_cm connection request
// (connection_manager.h). Both sides then connect their queue pairs over the path that rdma_cm has
// found. The ready byte is sent after that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/net/connector.h"
#include "transports/rdma/connection_manager.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/wire.h"

namespace hetcomm::rdma {

class PendingConnections;
class Port;

class ConnectAttempt final : public ConnectHandler, public Watcher, public CmHandler {
 public:
  // |refused| is a failure that is already known, or kOk. expire() reports the failure.
  ConnectAttempt(PendingConnections& owner, Port& port, const Destination& destination,
                 Status refused);
  ~ConnectAttempt();

  const Destination& destination() const { return destination_; }
  bool has_queue_pair() const { return pair_ != nullptr; }

  void start(std::vector<Address> addresses, const Gid& mine, const GidBytes& peer);
  // expire() and the upcalls may destroy the attempt. They handle lack of memory like any other
  // failure.
  void expire(uint64_t now);
  void on_connect(Result<StreamSocket> socket) override;
  void on_events(uint32_t events) override;
  void on_answer() override;
  void on_ended(const Status& why) override;
  uint64_t next_timer_ns() const;

 private:
  template <typename Upcall>
  void guarded(Upcall&& upcall);
  void begin();
  void start_round();
  void take(Result<StreamSocket> socket);
  void read_answer();
  void answered();
  Status ask(const CmInvitation& invitation);
  void complete();
  void fail(Status why);

  PendingConnections& owner_;
  Port& port_;
  const Destination destination_;
  Status refused_;
  std::vector<Address> addresses_;
  Gid mine_;
  GidBytes peer_gid_{};
  std::unique_ptr<QueuePair> pair_;
  // The next five fields hold the state of the connection rounds, which
  // transports/tcp/connect_attempt.h describes.
  uint64_t round_ends_ns_ = 0;
  uint64_t deadline_ns_ = 0;
  uint32_t doublings_ = 0;
  bool reached_ = false;
  uint64_t last_reached_ns_ = 0;
  std::unique_ptr<Connector> connector_;
  UniqueFd socket_;  // set once the peer has proved its identity
  AnswerBytes answer_{};
  size_t received_ = 0;
  Parameters peer_parameters_;        // valid once the answer is decoded
  std::unique_ptr<CmConnection> cm_;  // set once the rdma_cm connection is started
};

class Arrival final : public Watcher, public CmHandler {
 public:
  Arrival(PendingConnections& owner, Port& port, int peer, UniqueFd socket);
  ~Arrival();

  // Answers |hello| and starts waiting for the ready byte. The answer to a refused peer gives the
  // reason. Returns false if the arrival has failed.
  bool start(ConstByteSpan hello);
  // Returns the number of the arrival's queue pair; 0 if it has none.
  uint32_t number() const { return number_; }
  // Stops the queue pair, if it still exists, so that it receives nothing more.
  void stop() {
    if (pair_) pair_->stop();
  }
  int peer() const { return peer_; }
  // Returns whether the arrival waits for an rdma_cm connection with |token|.
  bool awaits(const CmToken& token) const;
  // Connects the queue pair over the path of |connection|, and accepts |connection|. If this fails,
  // refuses |connection|.
  void take(std::unique_ptr<CmConnection> connection);

  // expire() and the upcalls may destroy the arrival.
  void on_events(uint32_t events) override;
  void on_answer() override {}
  void on_ended(const Status& why) override;
  void expire(uint64_t now);
  uint64_t next_timer_ns() const { return deadline_ns_; }

 private:
  Status prepare(ConstByteSpan hello, AnswerBytes& answer);
  Status connect_and_accept();

  PendingConnections& owner_;
  Port& port_;
  const int peer_;
  UniqueFd socket_;
  Parameters peer_parameters_;
  Gid mine_;  // this side's address, as specified by the peer
  std::unique_ptr<QueuePair> pair_;
  uint32_t number_ = 0;           // number of the queue pair, even after its destruction
  bool ready_ = false;            // the queue pair is connected
  std::optional<CmToken> token_;  // set until a peer presents it over rdma_cm
  std::unique_ptr<CmConnection> cm_;
  uint64_t deadline_ns_ = 0;
};

}  // namespace hetcomm::rdma
