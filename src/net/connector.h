// A Connector makes one connection to one of several addresses, and proves the job secret on it.
// The poller drives the Connector, which never blocks.
#pragma once

#include <cstdint>
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

namespace hetcomm {

class ConnectHandler {
 public:
  // Receives the non-blocking |socket| after the proof. On failure, the text lists each address
  // that was tried, with its error.
  virtual void on_connect(Result<StreamSocket> socket) = 0;

 protected:
  ~ConnectHandler() = default;
};

// The local end of connections. The kernel's routing chooses each part that is empty.
struct LocalEnd {
  std::vector<Address> addresses;  // with port 0; the one most similar to the peer's is used
  std::string device;              // the interface; empty: any that has the address
};

// Tries |candidates| in order and divides the remaining time equally among them. If |tls| is given,
// only TLS connections are made.
//
// Calls on_connect() once, from the poller or expire(), never from create(). Destroying the
// Connector before on_connect() cancels the attempt. The Connector may be destroyed inside
// on_connect().
//
// The code of a failure is PERMISSION_DENIED or UNSUPPORTED if an attempt failed with it. Otherwise
// the code is OUT_OF_RESOURCES or OUT_OF_MEMORY if this process lacks a resource or a peer reports
// that it does, and PEER_LOST in all other cases.
class Connector final : public Watcher {
 public:
  static std::unique_ptr<Connector> create(Poller& poller, std::vector<Address> candidates,
                                           const Secret& secret, Hello hello, uint64_t deadline_ns,
                                           ConnectHandler& handler,
                                           std::shared_ptr<const TlsContext> tls = nullptr,
                                           LocalEnd from = {});
  ~Connector();

  // Sends nothing to local listeners of other users; such an attempt fails with PERMISSION_DENIED.
  void require_same_user() { same_user_ = true; }

  // Moves to the next candidate when the time of the current one is up, and fails after the last.
  // Also reports failures that occurred inside create().
  void expire(uint64_t now_ns);
  uint64_t next_timer_ns() const;

  // The last acceptor that has proved the job's secret with an incarnation other than the expected
  // one. The expected process no longer listens at |address|.
  struct OtherProcess {
    Address address;
    uint64_t incarnation = 0;
  };
  const std::optional<OtherProcess>& other_process() const { return other_process_; }
  // Returns the candidates whose host has reported that no process listens there.
  const std::vector<Address>& refused() const { return refused_; }
  // Returns the reason for the last failed handshake, if any.
  Denial denial() const { return denial_; }
  const Status& denial_reason() const { return denial_reason_; }
  // Returns the candidate whose kernel has accepted the connection or has a full queue, but whose
  // process has not answered yet. Returns null if there is none.
  const Address* reached() const {
    const bool taken = handshake_.has_value() || retry_ns_ != kForever;
    return taken && next_candidate_ < candidates_.size() ? &candidates_[next_candidate_] : nullptr;
  }

  void on_events(uint32_t events) override;

 private:
  Connector(Poller& poller, ConnectHandler& handler);
  void start_next(uint64_t now);
  Status start_attempt(const Address& address);
  Status bind_local_end(const Address& to);
  Status connect_now(const Address& address);
  void shake_hands();
  void attempt_failed(const Status& why);
  void close_socket();
  uint64_t attempt_share(uint64_t now) const;
  // Delivers |result|. The caller must return immediately, because the handler may have destroyed
  // this Connector.
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
  uint64_t retry_ns_ = kForever;  // when to retry a local listener whose queue was full
  std::shared_ptr<const TlsContext> tls_;
  LocalEnd from_;
  StreamSocket socket_;
  std::optional<Handshake> handshake_;  // set once connected
  std::optional<OtherProcess> other_process_;
  std::vector<Address> refused_;
  Denial denial_ = Denial::kNone;
  Status denial_reason_;
  std::string failures_;
  Code code_ = Code::kPeerLost;
  bool exhausted_ = false;  // no candidate is left
  bool reported_ = false;
};

}  // namespace hetcomm
