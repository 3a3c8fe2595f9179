// RdmaEndpoint is one connection: a queue pair, and the TCP connection over which it was
// established. If the TCP connection ends, the peer has closed or died, and the endpoint closes.
// The endpoint also closes when its rdma_cm connection, if any, ends.
//
//   kOpen --(TCP or rdma_cm ends)--> kClosing --(a short time passes)--> kFailed --> on_failed
//     \------(completion with an error, revoke, cancel, protocol error)--------^
//
// A closing endpoint sends nothing, but still delivers data that has already arrived. A failing
// endpoint stops, drains and destroys its queue pair, so the device no longer accesses memory for
// this connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/net/poller.h"
#include "src/system/clock.h"
#include "src/system/unique_fd.h"
#include "transports/rdma/bulk_sender.h"
#include "transports/rdma/connection_manager.h"
#include "transports/rdma/credits.h"
#include "transports/rdma/exposure.h"
#include "transports/rdma/message_port.h"
#include "transports/rdma/port.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class EndpointTable;

// The parts of an established connection.
struct Connected {
  std::unique_ptr<QueuePair> pair;  // connected to |peer|
  Parameters peer;
  UniqueFd socket;
  std::unique_ptr<CmConnection> cm;  // null if established without rdma_cm
};

class RdmaEndpoint final : public Endpoint,
                           public PutStarter,
                           public GetStarter,
                           public MemoryExposer,
                           public Watcher,
                           public CmHandler {
 public:
  // |port| and |table| outlive the endpoint.
  RdmaEndpoint(Port& port, EndpointTable& table, Connected connected);
  ~RdmaEndpoint() override;

  void set_handler(EndpointHandler* handler) override;
  const Capabilities& capabilities() const override { return port_.settings().capabilities; }
  EndpointAbilities abilities() override { return {.puts = this, .gets = this, .exposer = this}; }
  Code send(const MessageHeader& header, const ExtentView& payload) override;
  void close() override { break_off("closed"); }
  bool flushed() const override;
  Passage passage() const override;
  std::string describe() const override;

  Code put(Bulk& bulk) override;
  Code get(Bulk& bulk) override;
  Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie) override;
  void revoke(const RemoteKey& key) override;
  void release(const RemoteKey& key) override;
  bool cancel(Bulk& bulk) override;

  void on_events(uint32_t events) override;
  void on_answer() override {}
  void on_ended(const Status& why) override;

  uint32_t number() const { return number_; }
  // Returns the queue pair; nullptr once the endpoint has failed.
  QueuePair* pair() { return pair_.get(); }
  const QueuePair* pair() const { return pair_.get(); }

  // --- for the transport and its table
  // Handles an incoming message or fragment of a put. Makes upcalls.
  void on_received(const ibv_wc& completion, const std::byte* slot);
  // Records that all work posted up to |id| has completed. Makes no upcalls.
  void on_sent(uint64_t id);
  // Breaks the connection without upcalls. The next progress() with a handler calls on_failed. This
  // function never fails, and may be called at any time. |unanswered| is true if the device has
  // abandoned a request because the peer answered none of its retries.
  void break_off(std::string_view reason, bool unanswered = false) noexcept;
  // Sends as much as possible, and makes the upcalls that are due, including on_failed. Returns the
  // number of actions.
  int progress();
  // Returns whether progress() must be called again immediately, without waiting for an event.
  bool has_urgent_work() const;
  // Returns whether look_at_tail() must be called periodically.
  bool has_silent_tail() const {
    return handler_ != nullptr && state_ == State::kOpen && pair_->has_silent_tail();
  }
  // Requests confirmation of unsignalled work if nothing was posted since the previous call.
  void look_at_tail();
  // Prepares for sleep: afterwards every change causes an event. Returns false if there is work to
  // do immediately.
  bool prepare_sleep();
  // Returns whether the queue pair may have stopped without an error report; see revoke(). This is
  // possible until suspect_until_ns().
  bool is_suspect() const { return pair_ != nullptr && suspect_until_ns_ != 0; }
  uint64_t suspect_until_ns() const { return suspect_until_ns_; }
  bool has_broken_in_silence() const { return pair_->is_in_error(); }
  void trust() { suspect_until_ns_ = 0; }
  // Sends the peer an empty write if this side has posted nothing since the previous call and has
  // no work in flight. Either the peer's device answers or the connection breaks.
  void probe();
  uint64_t deadline_ns() const { return state_ == State::kClosing ? deadline_ns_ : kForever; }

  // Index in the table's list of active endpoints.
  size_t active_index = kInactive;
  static constexpr size_t kInactive = SIZE_MAX;

 private:
  enum class State : uint8_t { kOpen, kClosing, kFailed };

  Code start(Bulk& bulk, bool get);
  void flush_posts();
  bool can_send_any() const { return messages_.can_send(capabilities().max_payload_bytes); }
  void activate();
  void on_message(const ibv_wc& completion, const std::byte* slot);
  void on_fragment(const ibv_wc& completion);
  void on_copied_fragment(const FragmentHead& fragment, ConstByteSpan bytes);
  bool some_passed() const;
  void close(Status why, uint64_t linger_ns);
  int report();

  Port& port_;
  EndpointTable& table_;
  const uint32_t number_;
  const uint32_t peer_number_;
  std::string path_;  // for error texts
  EndpointHandler* handler_ = nullptr;
  State state_ = State::kOpen;
  bool want_writable_ = false;
  bool reported_ = false;
  bool watched_ = false;
  uint64_t posted_before_ = 0;  // requests posted at the last look_at_tail()
  uint64_t posted_at_probe_ = 0;
  uint64_t opening_end_ = 0;             // requests posted up to the first message; 0: none sent
  Passage passage_ = Passage::kNothing;  // valid once failed
  uint64_t deadline_ns_ = 0;
  uint64_t suspect_until_ns_ = 0;
  Status why_;
  UniqueFd socket_;
  std::unique_ptr<CmConnection> cm_;
  std::unique_ptr<QueuePair> pair_;
  Credits credits_;
  MessagePort messages_;
  BulkSender bulks_;
  ExposureTable exposures_;
};

}  // namespace hetcomm::rdma
