// A plane makes the control connections for one rank's judge: it listens, connects, proves the
// secret, watches the processes on its host, and reports to the judge. It lives on the control
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/liveness/control_connection.h"
#include "src/liveness/control_thread.h"
#include "src/liveness/judge.h"
#include "src/liveness/mailbox.h"
#include "src/liveness/process_descriptor.h"
#include "src/liveness/process_watches.h"
#include "src/liveness/profile_book.h"
#include "src/liveness/proved_addresses.h"
#include "src/liveness/setup.h"
#include "src/net/acceptor.h"
#include "src/net/connector.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm::liveness {

class Plane final : public Resident,
                    private Network,
                    private Observer,
                    private ControlConnectionHandler,
                    private AcceptHandler,
                    private ProcessHandler {
 public:
  static Result<std::unique_ptr<Plane>> create(ControlThread& thread, Log& log,
                                               const Config& config, Setup setup,
                                               std::shared_ptr<Mailbox> mailbox,
                                               std::shared_ptr<ProfileBook> profiles);
  ~Plane() override;

  // Returns the addresses at which peers find this rank.
  std::vector<Address> addresses() const;
  // Accepts connections and connects to the neighbours.
  Status start(Membership membership);
  // Records that |rank| listens at |addresses|, which it has reported.
  void learn(int rank, std::vector<Address> addresses) {
    members_.addresses.learn(rank, std::move(addresses));
  }
  // Sends this rank's profile to |rank|, which answers with its own.
  void ask_profile(int rank, uint64_t now_ns);
  Judge& judge() { return *judge_; }
  // Returns the reason for which this rank last dropped an incoming connection, or OK if it has
  // dropped none.
  Status last_rejection() const;
  // Sends the goodbye. finished() is true once all connected ranks have acknowledged it, or after a
  // second.
  void leave();

  void tick(uint64_t now_ns) override;
  uint64_t next_timer_ns() const override;
  bool finished(uint64_t now_ns) const override;

 private:
  class ConnectAttempt;
  static constexpr size_t kMaxInterfaces = 6;
  static constexpr uint64_t kMaxGoodbyeNs = 1'000'000'000;
  static constexpr uint64_t kMaxClosingNs = 1'000'000'000;
  struct Closing {
    std::unique_ptr<ControlConnection> connection;
    uint64_t deadline_ns;
  };

  Plane(ControlThread& thread, Log& log, Setup setup, std::shared_ptr<Mailbox> mailbox,
        std::shared_ptr<ProfileBook> profiles);
  Status listen(const Config& config);
  Status listen_at(const Address& address);
  std::vector<Address> candidates(int rank);
  Status adopt(StreamSocket socket, int rank, bool initiated, ConnectionId* id);
  void introduce(ConnectionId id, int rank, bool initiated);
  void attempt_ended(ConnectAttempt& attempt, Result<StreamSocket> socket);
  std::unique_ptr<ControlConnection> take(ConnectionId id);
  void take_profile(int from, const Frame& letter);
  void send_uncounted(int to, LetterType type, uint64_t value, std::string text);
  bool tells_addresses() const { return !members_.profile.empty(); }
  void tell(Mail mail);

  // Overrides of Network.
  void connect(int rank) override;
  bool send(ConnectionId connection, const Frame& frame) override;
  void close(ConnectionId connection) override;
  uint64_t last_acknowledged_ns(ConnectionId connection) override;
  std::string addresses_of(int rank) override { return members_.addresses.text(rank); }
  void learn_addresses(int rank, const std::string& addresses) override;
  // Overrides of Observer.
  void on_ready() override;
  void on_dead(int rank, const std::string& why) override;
  void on_left(int rank) override;
  void on_declared_dead(const std::string& why) override;
  void on_notice(const Frame& notice) override;
  void on_letter(int from, const Frame& letter) override;
  void on_vouch(int rank) override;
  void on_suspect(int rank) override;
  // Overrides of ControlConnectionHandler.
  void on_frame(ControlConnection& connection, Frame& frame) override;
  void on_room(ControlConnection& connection) override;
  void on_ended(ControlConnection& connection, const std::string& why) override;
  void on_closed(ControlConnection& connection) override;
  void on_process(ControlConnection& connection, UniqueFd process) override;
  // Overrides of AcceptHandler.
  void on_accept(StreamSocket socket, const Hello& peer) override;
  // Overrides of ProcessHandler.
  void on_exit(int rank) override;

  ControlThread& thread_;
  Log& log_;
  Setup setup_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<ProfileBook> profiles_;
  std::shared_ptr<const TlsContext> tls_;  // null if TLS is off
  std::unique_ptr<Judge> judge_;           // null before start()
  uint32_t link_local_scope_ = 0;          // scope of link-local IPv6 addresses that peers send
  PortRange ports_;
  const UniqueFd own_process_ = describe_own_process();  // sent to peers on this host
  bool same_user_ = true;  // the local socket accepts only processes of this user
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  Membership members_;
  std::map<ConnectionId, std::unique_ptr<ControlConnection>> connections_;
  std::vector<Closing> closing_;
  std::vector<std::unique_ptr<ConnectAttempt>> attempts_;
  ProcessWatches processes_;  // the processes of the ranks on this host
  ProvedAddresses proved_;    // the addresses at which ranks have proved themselves
  std::vector<std::unique_ptr<ControlConnection>> garbage_;  // destroyed by the next tick()
  std::vector<std::unique_ptr<ConnectAttempt>> done_;        // destroyed by the next tick()
  ConnectionId next_connection_id_ = 1;
  size_t attempts_made_ = 0;
  uint64_t leave_by_ns_ = kForever;
};

}  // namespace hetcomm::liveness
