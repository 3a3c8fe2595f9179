// The connections of one rank's judge: listens, connects, proves, and turns what happens to sockets
// into what the judge knows about. Lives on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/base/config.h"
#include "src/base/log.h"
#include "src/liveness/control_thread.h"
#include "src/liveness/judge.h"
#include "src/liveness/link.h"
#include "src/liveness/mailbox.h"
#include "src/liveness/setup.h"
#include "src/net/acceptor.h"
#include "src/net/connector.h"

namespace hetcomm::liveness {

class Plane final : public Resident,
                    private Network,
                    private Observer,
                    private LinkHandler,
                    private AcceptHandler {
 public:
  static Result<std::unique_ptr<Plane>> create(ControlThread& thread, Log& log,
                                               const Config& config, Setup setup,
                                               std::shared_ptr<Mailbox> mailbox);
  ~Plane() override;

  // Where peers find this rank.
  std::vector<Address> addresses() const;
  // Takes connections and connects to the neighbours. |addresses| and |hosts| by rank.
  Status start(const Credentials& credentials, std::vector<std::vector<Address>> addresses,
               const std::vector<HostId>& hosts);
  Judge& judge() { return *judge_; }
  // Why a connection to this rank was dropped last; ok if none was.
  Status last_rejection() const;
  // Says goodbye; finished() when all have heard it, or after a while.
  void leave();

  void tick(uint64_t now_ns) override;
  uint64_t next_timer_ns() const override;
  bool finished(uint64_t now_ns) const override;

 private:
  class Attempt;
  class ExitWatch;
  static constexpr size_t kMostInterfaces = 6;
  static constexpr uint64_t kMostGoodbyeNs = 1'000'000'000;
  static constexpr uint64_t kMostClosingNs = 1'000'000'000;
  struct Closing {
    std::unique_ptr<Link> link;
    uint64_t deadline_ns;
  };

  Plane(ControlThread& thread, Log& log, Setup setup, std::shared_ptr<Mailbox> mailbox);
  Status listen(const Config& config);
  Status listen_at(const Address& address);
  std::vector<Address> candidates(int rank);
  Status adopt(StreamSocket socket, int rank, bool initiated, LinkId* id);
  void introduce(LinkId id, int rank, bool initiated);
  void attempt_ended(Attempt& attempt, Result<StreamSocket> socket);
  // Whether |rank| has taken a connection there, on whichever port.
  bool was_proved_at(int rank, const Address& address) const;
  ConnectFailure judge_failure(int rank, const Connector& connector) const;
  std::unique_ptr<Link> take(LinkId id);
  void process_exited(int rank);
  void forget_process(int rank);
  void answer(int from, const Frame& question);
  void tell(Mail mail);

  // Network.
  void connect(int rank) override;
  bool send(LinkId link, const Frame& frame) override;
  void close(LinkId link) override;
  uint64_t last_acknowledged_ns(LinkId link) override;
  // Observer.
  void on_ready() override;
  void on_dead(int rank, const std::string& why) override;
  void on_left(int rank) override;
  void on_declared_dead(const std::string& why) override;
  void on_notice(const Frame& notice) override;
  void on_letter(int from, const Frame& letter) override;
  void on_vouch(int rank) override;
  void on_suspect(int rank) override;
  // LinkHandler.
  void on_frame(Link& link, Frame& frame) override;
  void on_room(Link& link) override;
  void on_ended(Link& link, const std::string& why) override;
  void on_closed(Link& link) override;
  void on_process(Link& link, UniqueFd process) override;
  // AcceptHandler.
  void on_accept(StreamSocket socket, const Hello& peer) override;

  ControlThread& thread_;
  Log& log_;
  Setup setup_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<const TlsContext> tls_;  // null: off
  std::unique_ptr<Judge> judge_;           // from start() on
  PortRange ports_;
  bool same_user_ = true;  // on the local socket
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  std::vector<std::vector<Address>> addresses_;
  std::vector<HostId> hosts_;
  std::map<LinkId, std::unique_ptr<Link>> links_;
  std::vector<Closing> closing_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  // Processes of ranks of this host; each stays watched after its connection broke.
  std::map<int, std::unique_ptr<ExitWatch>> processes_;
  // Where a rank has taken connections, as texts without a port.
  std::multimap<int, std::string> proved_at_;
  std::vector<std::unique_ptr<Link>> garbage_;  // ended inside their own upcall
  std::vector<std::unique_ptr<Attempt>> done_;  // the same
  std::vector<std::unique_ptr<ExitWatch>> exited_;
  LinkId next_link_ = 1;
  size_t attempts_made_ = 0;
  uint64_t leave_by_ns_ = kForever;
};

}  // namespace hetcomm::liveness
