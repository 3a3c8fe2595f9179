// An Acceptor listens, and hands over connections whose peers have proved the job secret.
//
// The poller drives the Acceptor, which never blocks. The cost of strangers is bounded: at most
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
// When as many connections are pending as the limit allows, the acceptor drops the oldest one
// without unread input. Each connection has at least this time before it is dropped. A burst of
// honest peers therefore waits in the listen queue, and they do not push each other out.
inline constexpr uint64_t kMinPendingNs = 250'000'000;
// On a busy machine honest peers need longer. Each connection gets several times as long as the
// slowest recent proof took, up to this time.
inline constexpr uint64_t kMaxMinPendingNs = 2'000'000'000;
// An acceptor that found no free descriptor stops listening for this time.
inline constexpr uint64_t kExhaustedPauseNs = 100'000'000;
// An acceptor with a spare descriptor that has found no other for this time reports the shortage to
// every client.
inline constexpr uint64_t kExhaustedLimitNs = 3'000'000'000;

class AcceptHandler {
 public:
  // Receives the non-blocking |socket| of the proved |peer|. May destroy the acceptor.
  virtual void on_accept(StreamSocket socket, const Hello& peer) = 0;

 protected:
  ~AcceptHandler() = default;
};

// A connection that was dropped before it had proved itself.
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
    std::shared_ptr<const TlsContext> tls{};  // null: without TLS; otherwise only TLS is accepted
    // Leaves connections in the kernel's queue until open(). A rank needs this if peers may learn
    // its address before the rank itself knows what a peer has to prove.
    bool held = false;
    PortRange ports{};       // for an address whose port is 0
    std::string device{};    // interface that connections arrive over; empty: any
    bool same_user = false;  // local sockets: refuses other users before they send anything
    size_t max_pending = kMaxPending;
    // If set, receives each rejection, and the acceptor logs none of them at warn. Outlives the
    // acceptor.
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
  // Drops handshakes that took too long and resumes listening after a pause; |now_ns| is monotonic
  // time.
  void expire(uint64_t now_ns);
  // Returns the time at which expire() must run, kForever if nothing is pending.
  uint64_t next_timer_ns() const;
  // Returns why the last dropped connection was dropped; ok if none was.
  const Status& last_rejection() const { return last_rejection_; }
  // Returns whether clients receive Options::exhausted at present, because no descriptor has been
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
  // Removes |pending| and hands its socket over, or closes it. The caller returns at once, because
  // the handler may have destroyed this acceptor.
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

// Returns the last rejection of the first of |acceptors| that has dropped a connection; ok if none.
Status last_rejection_of(const std::vector<std::unique_ptr<Acceptor>>& acceptors);

}  // namespace hetcomm
