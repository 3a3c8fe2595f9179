// One connection: a queue pair, and the TCP connection over which it was made, whose end says that
// the peer has closed or died. The end of the connection by rdma_cm, if there is one, says the
// same.
//
//   kOpen --(TCP ends)--> kClosing --(what had arrived was taken)--> kFailed --> on_failed
//     \------(completion with an error, revoke, cancel, protocol error)----^
//
// On the way into kFailed the queue pair is stopped, drained and destroyed: the device then touches
// no memory for this connection any more.
//
// Credits. Each side has as many receives posted for this peer as it has told, and a message, or a
// put's fragment, uses one up. They are given back in the head of each message; when half of them are
// due and there is nothing to say, in a message of their own. The last credit is kept for that one,
// which brings the peer at least half of its credits: so two sides cannot run dry against each
// other. Puts leave a quarter to messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/base/clock.h"
#include "src/base/unique_fd.h"
#include "src/net/poller.h"
#include "transports/rdma/bulk_queue.h"
#include "transports/rdma/connection_manager.h"
#include "transports/rdma/exposure.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class RdmaTransport;

// What a connection is made of.
struct Connected {
  std::unique_ptr<QueuePair> pair;  // connected to |peer|
  Parameters peer;
  UniqueFd socket;
  std::unique_ptr<CmConnection> cm;  // nullptr: made without
};

class RdmaEndpoint final : public Endpoint,
                           public PutStarter,
                           public GetStarter,
                           public MemoryExposer,
                           public Watcher,
                           public CmHandler {
 public:
  RdmaEndpoint(RdmaTransport& transport, int peer, Connected connected);
  ~RdmaEndpoint() override;

  void set_handler(EndpointHandler* handler) override;
  const Capabilities& capabilities() const override;
  EndpointAbilities abilities() override { return {.puts = this, .gets = this, .exposer = this}; }
  Code send(const MessageHeader& header, const SegmentView& payload) override;
  void close() override { break_off("closed"); }
  bool flushed() const override;
  std::string describe() const override;

  Code put(Bulk& bulk) override;
  Code get(Bulk& bulk) override;
  Result<RemoteKey> expose(Segments segments, Access access, uint64_t cookie) override;
  void revoke(const RemoteKey& key) override;
  void release(const RemoteKey& key) override;
  bool cancel(Bulk& bulk) override;

  void on_events(uint32_t events) override;
  void on_answer() override {}
  void on_ended(const Status& why) override;

  int peer() const { return peer_; }
  uint32_t number() const { return number_; }
  // Nullptr once it has failed.
  QueuePair* pair() { return pair_.get(); }

  // --- for RdmaTransport
  // A message, or a fragment of a put, has arrived. Upcalls.
  void on_received(const ibv_wc& completion, const std::byte* slot);
  // What was posted up to here has completed. No upcalls.
  void on_sent(uint64_t id);
  // The connection is of no more use; on_failed comes with the next progress() that finds a
  // handler. No upcalls; fails for nothing, at any time.
  void break_off(std::string_view reason) noexcept;
  // Sends and reports what can be. Returns the number of things done.
  int progress();
  // Whether progress() has to be called again, at once, without an event.
  bool has_urgent_work() const;
  // Whether look_at_tail() has to be, now and then.
  bool has_silent_tail() const {
    return handler_ != nullptr && state_ == State::kOpen && pair_->has_silent_tail();
  }
  // Asks about what is unsignalled if nothing was posted since the last look.
  void look_at_tail();
  // Before sleeping: every change will be announced. False when there is something to do at once.
  bool prepare_sleep();
  // Until then its queue pair may be in the error state without a word; see revoke().
  bool is_suspect() const { return pair_ != nullptr && suspect_until_ns_ != 0; }
  uint64_t suspect_until_ns() const { return suspect_until_ns_; }
  bool has_broken_in_silence() const { return pair_->is_in_error(); }
  void trust() { suspect_until_ns_ = 0; }
  // Writes nothing to the peer if that is all that happened since the last call: its device
  // answers, or the connection breaks.
  void probe();
  uint64_t deadline_ns() const { return state_ == State::kClosing ? deadline_ns_ : kForever; }

  // Place in the transport's list of active endpoints.
  size_t active_index = kInactive;
  static constexpr size_t kInactive = SIZE_MAX;

 private:
  enum class State : uint8_t { kOpen, kClosing, kFailed };

  bool can_send(uint64_t payload_bytes) const;
  bool can_post(KeyKind kind, bool copied) const;
  bool is_credit_due() const;
  Code start(Bulk& bulk, bool get);
  void pump();
  bool post_fragment(Transfer& transfer);
  size_t add_fragment_head(const Transfer& transfer);
  bool post_copied(Transfer& transfer, uint64_t length);
  bool post_direct(Transfer& transfer, uint64_t length);
  void post(Transfer& transfer, uint64_t length, unsigned flags, std::span<const ibv_sge> pieces,
            bool slot);
  bool put_at_once(Bulk& bulk, const Key& key);
  void send_credits();
  void flush_posts();
  void on_message(const ibv_wc& completion, const std::byte* slot);
  void on_fragment(const ibv_wc& completion);
  void on_copied_fragment(const FragmentHead& fragment, ConstByteSpan bytes);
  void copy_out(const SendRecord& record);
  void close(Status why, uint64_t linger_ns);
  int report();

  RdmaTransport& transport_;
  const int peer_;
  const uint32_t number_;
  const uint32_t peer_number_;
  const uint32_t peer_slot_bytes_;
  const uint32_t peer_credits_;  // all that it grants
  std::string path_;             // for texts
  EndpointHandler* handler_ = nullptr;
  State state_ = State::kOpen;
  bool want_writable_ = false;
  bool reported_ = false;
  uint32_t credits_;           // what may be sent
  uint32_t consumed_ = 0;      // receives used up and not posted again yet
  uint32_t owed_ = 0;          // posted again, and not told to the peer
  MessageHeader last_sent_{};  // core's, of the message before (decode_head)
  MessageHeader last_received_{};
  uint64_t bulk_bytes_ = 0;     // under way
  uint64_t posted_before_ = 0;  // when the silent tail was looked at
  uint64_t deadline_ns_ = 0;
  uint64_t probed_ = 0;  // what was posted then
  uint64_t suspect_until_ns_ = 0;
  Status why_;
  ExposureTable exposures_;
  BulkQueue queue_;
  UniqueFd socket_;
  bool watched_ = false;
  std::unique_ptr<CmConnection> cm_;
  std::unique_ptr<QueuePair> pair_;
};

}  // namespace hetcomm::rdma
