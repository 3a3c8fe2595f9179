// An Acceptor listens, and passes on connections whose peers have proved the job secret.
//
// The poller drives the Acceptor, which never blocks. The cost of strangers is limited: at most
// Options::max_pending unproved connections exist at a time, each with a fixed buffer and for at
// most kHandshakeTimeoutNs.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/net/address.h"
#include "src/net/handshake.h"
#include "src/net/poller.h"
#include "src/net/stream_socket.h"
#include "src/net/tls.h"
#include "src/system/clock.h"
#include "src/system/log.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

inline constexpr size_t kMaxPending = 128;
// When Options::max_pending connections are pending, the acceptor drops the oldest one without
// unread input, but only after at least this time. A burst of honest peers therefore waits in the
// listen queue instead of pushing each other out.
inline constexpr uint64_t kMinPendingNs = 250'000'000;
// On a busy machine honest peers need longer. Before it is dropped, each connection gets several
// times the duration of the slowest recent proof, up to this time.
inline constexpr uint64_t kMaxMinPendingNs = 2'000'000'000;
// An acceptor that finds no free descriptor stops accepting for this time.
inline constexpr uint64_t kExhaustedPauseNs = 100'000'000;
// If no descriptor has been free for this time, an acceptor with a spare descriptor reports the
// shortage to every client.
inline constexpr uint64_t kExhaustedLimitNs = 3'000'000'000;

class AcceptHandler {
 public:
  // Receives the non-blocking |socket| of |peer|, which has proved the secret. May destroy the
  // acceptor.
  virtual void on_accept(StreamSocket socket, const Hello& peer) = 0;

 protected:
  ~AcceptHandler() = default;
};

// A connection that was dropped before its peer had proved the secret.
struct Rejection {
  std::string peer;                     // the peer's address, for messages
  std::optional<int32_t> claimed_rank;  // the rank that the peer claims, unproved
  Status why;
  Denial denial = Denial::kNone;
  bool spoke = false;  // the peer has sent something
};

class RejectionHandler {
 public:
  // Receives a rejection. Must not destroy the acceptor.
  virtual void on_rejection(const Rejection& rejection) = 0;

 protected:
  ~RejectionHandler() = default;
};

class Acceptor final : public Watcher {
 public:
  struct Options {
    Credentials credentials;
    Role role = Role::kTcp;
    int32_t rank = 0;
    bool any_identity = false;
    std::shared_ptr<const TlsContext> tls{};  // null: no TLS; otherwise only TLS is accepted
    // Leaves connections in the kernel's queue until open(). A rank needs this if peers may learn
    // its address before the rank knows the credentials to check them against.
    bool held = false;
    PortRange ports{};       // used if the address has port 0
    std::string device{};    // accepts connections over this interface only; empty: any
    bool same_user = false;  // local sockets: refuses other users before they send anything
    size_t max_pending = kMaxPending;
    // If set, this handler receives each rejection, and the acceptor logs none of them at warn. It
    // must outlive the acceptor.
    RejectionHandler* rejections = nullptr;
    // If set, the acceptor keeps a spare descriptor and answers with |exhausted| when no other
    // descriptor has been free for kExhaustedLimitNs.
    std::optional<Status> exhausted{};
  };
  static Result<std::unique_ptr<Acceptor>> create(Poller& poller, Log& log, const Address& address,
                                                  Options options, AcceptHandler& handler);
  // Like create(), but with a socket that already listens (listen_on).
  static Result<std::unique_ptr<Acceptor>> adopt(Poller& poller, Log& log, UniqueFd listener,
                                                 Options options, AcceptHandler& handler);
  ~Acceptor();

  const Address& address() const { return address_; }
  // Starts accepting, and checks peers against |credentials|. Call once, on an acceptor created as
  // held.
  Status open(const Credentials& credentials);
  // Drops handshakes that took too long, and resumes accepting after a pause. |now_ns| is monotonic
  // time.
  void expire(uint64_t now_ns);
  // Returns the time at which expire() must run, kForever if nothing is pending.
  uint64_t next_timer_ns() const;
  // Returns the reason for which a connection was last dropped, or OK if none was.
  const Status& last_rejection() const { return last_rejection_; }
  // Returns whether clients are currently sent Options::exhausted, because no descriptor has been
  // free for kExhaustedLimitNs.
  bool exhausted() const { return turning_away_; }

  void on_events(uint32_t events) override;

 private:
  class Pending;
  Acceptor(Poller& poller, Log& log, Options options, AcceptHandler& handler);
  void accept_ready(uint64_t now);
  bool make_room(uint64_t now);
  bool drop_silent(uint64_t now);
  uint64_t min_pending_ns() const;
  bool someone_waits() const;
  void note_shortage(int error, uint64_t now);
  void note_no_shortage();
  void turn_away();
  void admit(UniqueFd socket, uint64_t now);
  void pause(uint64_t until);
  void resume();
  // Removes |pending| and passes its socket on, or closes it. The caller must return immediately,
  // because the handler may have destroyed this acceptor.
  void finish(Pending& pending, const Status& outcome);
  void reject(const Pending& pending, const Status& why);
  void report_rejection(const Rejection& rejection);

  Poller& poller_;
  Log& log_;
  Options options_;
  AcceptHandler& handler_;
  UniqueFd listener_;
  UniqueFd spare_;
  Address address_;
  std::deque<std::unique_ptr<Pending>> pending_;  // oldest first
  uint64_t resume_ns_ = kForever;                 // end of the pause; kForever: not paused
  uint64_t slowest_ns_ = 0;                       // duration of the slowest recent proof; decays
  uint64_t exhausted_since_ns_ = kForever;
  bool turning_away_ = false;
  uint64_t next_warning_ns_ = 0;
  Status last_rejection_;
  uint64_t unreported_ = 0;  // rejections that no warning has counted yet
};

// Returns the last rejection of the first of |acceptors| that has dropped a connection, or OK if
// none has.
Status last_rejection_of(const std::vector<std::unique_ptr<Acceptor>>& acceptors);

}  // namespace hetcomm
