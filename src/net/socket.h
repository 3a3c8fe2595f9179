// Connections with the proof on top: Acceptor listens and hands over proved sockets; Connector
// makes one. Both are driven by the poller, never block, and bound what strangers can cost: at most
// kMaxPending unproved connections at a time, each with kHandshakeTimeoutNs and a fixed buffer.
#pragma once

#include <sys/types.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/net/address.h"
#include "src/net/handshake.h"
#include "src/net/poller.h"
#include "src/net/stream_socket.h"
#include "src/net/tls.h"

namespace hetcomm {

inline constexpr size_t kMaxPending = 128;
inline constexpr uint64_t kHandshakeTimeoutNs = 10'000'000'000;
// Beyond kMaxPending the oldest is dropped, but not before it had this time: a burst of honest
// peers waits in the listen queue instead of pushing each other out.
inline constexpr uint64_t kMinPendingNs = 250'000'000;
// How long an acceptor that found no free descriptor stops listening.
inline constexpr uint64_t kExhaustedPauseNs = 100'000'000;
inline constexpr uint64_t kMinDetectionNs = 2'000'000'000;

// Non-blocking, close-on-exec listener. Port 0 picks a free one (see bound_address), of |ports| if
// that is given; OUT_OF_RESOURCES when none of it is free. The IPv6 "any" address takes IPv4
// connections as well.
Result<UniqueFd> listen_on(const Address& address, int backlog, const PortRange& ports = {});
Result<Address> bound_address(int fd);
// Whether this host (its network namespace) has |address|: only then can it be bound.
bool is_local(const Address& address);
// Peer's address for messages; "unknown" if there is none.
std::string peer_name(int fd);

// The process at the other end of a local socket, as the kernel noted it when that process
// connected or listened.
struct LocalPeer {
  pid_t process = 0;  // 0: of another PID namespace
  uid_t user = 0;     // effective; users that this namespace does not know are all one
};
Result<LocalPeer> local_peer(int fd);
// kPermissionDenied, with process and user, when the other end of local socket |fd| belongs to
// another effective user than this process.
Status check_same_user(int fd);

// TCP_NODELAY. No effect on local sockets.
void set_no_delay(int fd);
// Keepalive, so that a peer that is cut off fails the connection within |detection_ns|. The kernel
// counts in seconds and needs two, one of silence and one for the probe: less than kMinDetectionNs
// is taken as that. For connections that carry no bulk data only: it sets TCP_USER_TIMEOUT too,
// which would kill a connection with data under way to a live peer that does not read. No effect on
// local sockets, whose other end cannot be cut off.
Status set_keepalive(int fd, uint64_t detection_ns);

class AcceptHandler {
 public:
  // |socket| is non-blocking; |peer| is proved. May destroy the acceptor.
  virtual void on_accept(StreamSocket socket, const Hello& peer) = 0;

 protected:
  ~AcceptHandler() = default;
};

class Acceptor final : public Watcher {
 public:
  struct Options {
    Credentials credentials;
    Role role = Role::kTcp;
    int32_t rank = 0;
    bool any_identity = false;
    std::shared_ptr<const TlsContext> tls{};  // null: without; else nothing but TLS is accepted
    // Connections wait in the kernel's queue until open(): for ranks whose address peers may learn
    // before they know themselves what a peer has to prove.
    bool held = false;
    PortRange ports{};       // for an address whose port is 0
    bool same_user = false;  // local sockets: other users are refused before they say anything
  };
  static Result<std::unique_ptr<Acceptor>> create(Poller& poller, Log& log, const Address& address,
                                                  Options options, AcceptHandler& handler);
  ~Acceptor();

  const Address& address() const { return address_; }
  // Judges connections by |credentials| from now on. Once, for one that was created held.
  Status open(const Credentials& credentials);
  // Drops handshakes that took too long and resumes listening after a pause; |now_ns| of the
  // monotonic clock.
  void expire(uint64_t now_ns);
  // When expire() has to run, kForever if nothing is pending.
  uint64_t next_timer_ns() const;
  // Why a connection was dropped last; ok if none was.
  const Status& last_rejection() const { return last_rejection_; }

  void on_events(uint32_t events) override;

 private:
  class Pending;
  Acceptor(Poller& poller, Log& log, Options options, AcceptHandler& handler);
  void accept_ready(uint64_t now);
  bool make_room(uint64_t now);
  void admit(UniqueFd socket, uint64_t now);
  void pause(uint64_t until);
  void resume();
  // Takes |pending| out and hands its socket over, or closes it. The last thing an upcall does.
  void finish(Pending& pending, const Status& outcome);
  void reject(const Pending& pending, const Status& why);
  void report_rejection(const std::string& name, const Status& why, bool warn);

  Poller& poller_;
  Log& log_;
  Options options_;
  AcceptHandler& handler_;
  UniqueFd listener_;
  Address address_;
  std::deque<std::unique_ptr<Pending>> pending_;  // oldest first
  uint64_t resume_ns_ = kForever;                 // not kForever: paused until then
  uint64_t next_warning_ns_ = 0;
  Status last_rejection_;
  uint64_t unreported_ = 0;  // strangers since the last warning
};

class ConnectHandler {
 public:
  // A proved, non-blocking socket, or why there is none (each address that was tried, with its
  // error).
  virtual void on_connect(Result<StreamSocket> socket) = 0;

 protected:
  ~ConnectHandler() = default;
};

// With |tls| a connection is made by TLS or not at all.
//
// Tries |candidates| in order, each with its share of the time that is left. on_connect comes once,
// from the poller or expire(), never from create(). Destroying it first cancels. It may be
// destroyed inside on_connect. The failure's code is PERMISSION_DENIED or UNSUPPORTED where a
// candidate said so, OUT_OF_RESOURCES where this process lacks something, else PEER_LOST.
class Connector final : public Watcher {
 public:
  static std::unique_ptr<Connector> create(Poller& poller, std::vector<Address> candidates,
                                           const Secret& secret, Hello hello, uint64_t deadline_ns,
                                           ConnectHandler& handler,
                                           std::shared_ptr<const TlsContext> tls = nullptr);
  ~Connector();

  // Says nothing to a local listener of another user; the attempt fails with PERMISSION_DENIED.
  void require_same_user() { same_user_ = true; }

  // Moves to the next candidate, or gives up, when time is over; also delivers failures that
  // happened at once.
  void expire(uint64_t now_ns);
  uint64_t next_timer_ns() const;

  // The process that has proved itself, last, at the address of another one: with the job's
  // secret, but not the incarnation that was asked for. Who was asked for listens there no more.
  struct OtherProcess {
    Address address;
    uint64_t incarnation = 0;
  };
  const std::optional<OtherProcess>& other_process() const { return other_process_; }
  // Candidates whose host has answered that nobody listens there.
  const std::vector<Address>& refused() const { return refused_; }
  // The candidate whose kernel has taken the connection, or has its queue full of such; its process
  // has not answered yet. Null: there is none.
  const Address* reached() const {
    const bool taken = handshake_.has_value() || retry_ns_ != kForever;
    return taken && next_candidate_ < candidates_.size() ? &candidates_[next_candidate_] : nullptr;
  }

  void on_events(uint32_t events) override;

 private:
  Connector(Poller& poller, ConnectHandler& handler);
  void start_next(uint64_t now);
  Status start_attempt(const Address& address);
  Status connect_now(const Address& address);
  void shake_hands();
  void attempt_failed(const Status& why);
  void close_socket();
  uint64_t attempt_share(uint64_t now) const;
  // The last thing an upcall does.
  void report(Result<StreamSocket> result);
  void report_failure();

  Poller& poller_;
  ConnectHandler& handler_;
  std::vector<Address> candidates_;
  size_t next_candidate_ = 0;
  Secret secret_;
  Hello hello_;
  uint64_t deadline_ns_ = 0;
  uint64_t attempt_deadline_ns_ = 0;
  bool same_user_ = false;
  uint64_t retry_ns_ = kForever;  // a local listener's queue was full: when to try again
  std::shared_ptr<const TlsContext> tls_;
  StreamSocket socket_;
  std::optional<Handshake> handshake_;  // once connected
  std::optional<OtherProcess> other_process_;
  std::vector<Address> refused_;
  std::string failures_;
  Code code_ = Code::kPeerLost;
  bool exhausted_ = false;  // no candidate is left; the failure has to be reported
  bool reported_ = false;
};

}  // namespace hetcomm
