// Pair: everything between this rank and one peer. Ordering, credits, acknowledgement, eager and
// rendezvous messages, and what happens when a connection breaks.
//
//   kIdle --first use--> kConnecting --connected, kOpen exchanged--> kReady
//                             ^                                         |
//                             +--- last connection broke, peer alive ---+
//   any --peer lost--> kLost
//
// A pair may have several connections (rails). Messages of this side go over one of them, which
// each side chooses for itself; bulk data goes over all that are worth it. A rail that fails is
// fenced, the peer is told before anything is done again (kRailDown), and what was under way on it
// goes over the others, or over the next connection. A rail that a better one has replaced is
// closed when it stays unused: the lower rank says so (kRailUnused), the higher one closes it once
// nothing of its own is under way there, and answers (kRailClosed). The rails of a pair that is
// idle are closed where descriptors run short (pair_idle.cc). The lower rank connects; a transport
// whose rail failed cools down, for longer each time, before it is tried again. The higher rank,
// without a rail, says so (knock), since the lower one may not have noticed.
//
// Messages of the pair are numbered; the receiver takes them in order and drops what it had before.
// On a connection that may lose messages while the peer lives they are kept until acknowledged and
// sent again on the next one. Eager data is bounded by credit that the peer grants; without credit
// a message asks first (rendezvous) and its data stays with the sender. Only the lower rank of a
// pair connects; the higher one asks it to (knock).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetcomm/communicator.h>

#include "src/core/memory/throughput.h"
#include "src/core/peer/bulk_chooser.h"
#include "src/core/peer/match.h"
#include "src/core/peer/pair_commons.h"
#include "src/core/peer/pull_chooser.h"
#include "src/core/peer/remote_access.h"
#include "src/core/peer/retention.h"
#include "src/core/peer/wire.h"
#include "src/core/progress/graveyard.h"
#include "src/core/progress/operation.h"
#include "src/core/progress/operation_queue.h"
#include "src/core/progress/slot_table.h"
#include "transports/transport.h"

namespace hetcomm {

class Pair;

inline double score_of(const Capabilities& capabilities) {
  constexpr double kTypicalMessage = 64 * 1024;
  return capabilities.latency_ns / 1e3 +
         kTypicalMessage * 1e6 /
             static_cast<double>(std::max<uint64_t>(capabilities.bandwidth_bytes_per_s, 1));
}

// A connection takes over messages where its estimate is better by this factor.
inline constexpr double kClearlyBetter = 1.5;

// One connection of a pair.
class Rail final : public EndpointHandler, public Mortal {
 public:
  Rail(Pair& pair, std::unique_ptr<Endpoint> endpoint, uint64_t id, size_t transport,
       hetcomm_counters_t* counters);

  void on_message(const MessageHeader& header, ConstByteSpan payload) override;
  void on_put(uint64_t cookie, uint64_t length) override;
  void on_bulk_complete(Bulk& bulk, Code code) override;
  void on_mapped(const RemoteKey& key, const Result<MappedRegion>& mapped) override;
  void on_unmap(const RemoteKey& key) override;
  void on_writable() override;
  void on_doubt(const StreamId& stream) override;
  void on_failed(const Status& why) override;

  Endpoint& endpoint() { return *endpoint_; }
  const Endpoint& endpoint() const { return *endpoint_; }
  const EndpointAbilities& abilities() const { return abilities_; }
  // Of the endpoint; but what may be lost is no larger than every other connection can carry.
  const Capabilities& capabilities() const { return capabilities_; }
  hetcomm_counters_t& counters() { return *counters_; }
  uint64_t id = 0;         // agreed number of the connection: the lower rank counts
  size_t transport;        // its number in the job
  std::string_view kind;   // of the transport: rails of one kind share bulk data
  bool known = false;      // both sides know it by |id|
  bool dropped = false;    // given up: it only waits to be destroyed
  bool retiring = false;   // one side has said that it uses it no more
  bool open = false;       // the peer's kOpen has arrived
  bool open_sent = false;  // ours has left
  bool leaving = false;    // the peer may close it
  Throughput sending;
  Throughput receiving;
  // Bytes per second in the direction of |load|: measured, or else estimated.
  double rate_of(const Throughput& load) const;
  // Estimated time of a message, to compare rails by.
  double score_us() const;
  // Messages from now on are no larger.
  void limit_payload(uint32_t bytes) {
    capabilities_.max_payload_bytes = std::min(capabilities_.max_payload_bytes, bytes);
  }

 private:
  template <typename Upcall>
  void guarded(Upcall&& upcall);

  Pair& pair_;
  std::unique_ptr<Endpoint> endpoint_;
  Capabilities capabilities_;
  hetcomm_counters_t* counters_;
  const EndpointAbilities abilities_;
};

// A put or get of core, with whom to tell.
class BulkOwner {
 public:
  // The bulk has ended; its memory is quiet.
  virtual void on_bulk(Bulk& bulk, Code code) = 0;

 protected:
  ~BulkOwner() = default;
};
struct OwnedBulk : Bulk {
  BulkOwner* owner = nullptr;
  Rail* rail = nullptr;         // where it goes; null when it has ended
  OwnedBulk* listed = nullptr;  // the next one in the pair's list
  bool is_get = false;
  bool waiting = false;      // refused for now; in the pair's list
  bool started = false;      // counted in the rail's load
  Code refused = Code::kOk;  // for good, and not reported yet; in the pair's other list
};

// Bulks in order. The list runs through them, so that nothing is forgotten for want of memory.
class BulkList {
 public:
  OwnedBulk* first() const { return first_; }
  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  void push(OwnedBulk& bulk) {
    bulk.listed = nullptr;
    (first_ == nullptr ? first_ : last_->listed) = &bulk;
    last_ = &bulk;
    ++size_;
  }
  OwnedBulk& pop() {
    OwnedBulk& bulk = *first_;
    first_ = bulk.listed;
    --size_;
    return bulk;
  }
  template <typename Which>
  void remove_if(Which&& which) {
    OwnedBulk* at = std::exchange(first_, nullptr);
    size_ = 0;
    while (at != nullptr) {
      OwnedBulk& bulk = *at;
      at = bulk.listed;
      if (!which(bulk)) push(bulk);
    }
  }

 private:
  OwnedBulk* first_ = nullptr;
  OwnedBulk* last_ = nullptr;
  size_t size_ = 0;
};

// Eager messages of which bytes are missing: at most one that comes in fragments, and any that were
// to be pulled and are pushed.
class ArrivingList {
 public:
  bool empty() const { return first_ == nullptr; }
  void add(Incoming& message) {
    message.arriving = true;
    message.next_arriving = first_;
    first_ = &message;
  }
  // The one with that number of its sender's transfer, 0: the one in fragments. Null: none.
  Incoming* find(uint64_t sender_id) const {
    Incoming* at = first_;
    while (at != nullptr && at->sender_id != sender_id) at = at->next_arriving;
    return at;
  }
  // Null: none belongs to it.
  Incoming* find(const Operation& receive) const {
    Incoming* at = first_;
    while (at != nullptr && at->operation != &receive) at = at->next_arriving;
    return at;
  }
  void remove(Incoming& message) {
    Incoming** at = &first_;
    while (*at != &message) at = &(*at)->next_arriving;
    *at = message.next_arriving;
    message.arriving = false;
  }
  Incoming& pop() {
    Incoming& message = *first_;
    remove(message);
    return message;
  }

 private:
  Incoming* first_ = nullptr;
};

// Receives |length| bytes of puts into what was exposed under its cookie.
class PutTarget {
 public:
  virtual void on_arrived(uint64_t length) = 0;

 protected:
  ~PutTarget() = default;
};

class Pair final : public ScheduledPair {
 public:
  enum class State : uint8_t { kIdle, kConnecting, kReady, kLost };

  // |credit|: bytes that the peer lets this rank send unasked.
  Pair(PairCommons& common, int rank, uint32_t credit);
  ~Pair();
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  int rank() const { return rank_; }
  State state() const { return state_; }
  const Status& lost_because() const { return lost_; }
  PairCommons& common() { return common_; }
  // The connection to start something on, null while there is none.
  Rail* rail() { return state_ == State::kReady ? rail_ : nullptr; }
  // The connection of that number, open or not; null when there is none (any more).
  Rail* find_rail(uint64_t id);
  // Calls |use(Rail&)| for the connections that share bulk data: all of the one's kind that
  // messages go over.
  template <typename Use>
  void for_each_bulk_rail(Use&& use) {
    if (state_ != State::kReady) return;
    for (const auto& rail : rails_) {
      if (rail->open && rail->open_sent && same_kind(*rail, *rail_)) use(*rail);
    }
  }
  size_t bulk_rails();
  size_t rails() const { return rails_.size(); }
  template <typename Use>
  void for_each_rail(Use&& use) {
    for (const auto& rail : rails_) use(*rail);
  }

  // Starts a send, which is pending.
  void submit_send(Operation& send);
  // Sends a message as a whole if that can be done at once and is all that there is to do. False:
  // nothing has left, submit_send() does it or says why not.
  bool send_at_once(uint32_t channel, uint64_t tag, iovec bytes);
  // Ends a send that is queued or under way in |code|; its buffer is quiet when it has completed.
  void end_send(Operation& send, Code code, std::string text);
  // Ends an operation that this pair has, in whatever stage it is. Its memory is quiet when it has
  // completed. Works without memory.
  void end(Operation& operation, Code code, std::string text);
  // end() for one that could not be started for want of memory, if it is pending.
  void end_out_of_memory(Operation& operation);
  // Starts connecting if nothing is under way.
  void ensure_connected();
  // A connection was made (by either side) over |transport|.
  void adopt(std::unique_ptr<Endpoint> endpoint, std::string_view transport, size_t index);
  // The peer has no connection, having lost those up to number |lost|.
  void knocked(uint32_t lost);
  // The peer, the lower rank, cannot connect to this one.
  void refused_by_peer(const Status& why);
  // No transport has reached the peer. |may_change|: a later attempt may.
  void connect_failed(const Status& why, bool may_change);
  // Messages of the peer have come since this was asked last, not long ago.
  bool has_received_since_asked(uint64_t now_ns, uint64_t longest_ns) {
    const bool lately = now_ns < std::exchange(asked_ns_, now_ns) + longest_ns;
    return std::exchange(received_when_asked_, received_) != received_ && lately;
  }
  // Others reach the peer, this rank does not.
  void vouched() { vouched_ = true; }
  // The peer is gone for good. All of it ends, also without memory.
  void lose(const Status& why);
  // It left cleanly: what it sent before is still delivered, then as lose().
  void peer_left();

  RemoteAccess& access() { return access_; }
  // A further connection over transport |index| is not waited for any more. False: it was not.
  bool stop_connecting(size_t index);
  // A further connection over transport |index| could not be made.
  void connect_failed(size_t index, const Status& why);
  // Transport |index| failed lately: others come first.
  bool is_cooling(size_t index) const;
  // The connection has room again.
  void writable(Rail& rail);
  // Sends what waits. Called when there may be room, credit, or a connection.
  void pump();
  // Nothing is under way, so that the peer may be asked whether the connection can be closed.
  bool may_close_idle(uint64_t now_ns) const;
  // Asks it; may_close_idle() is true.
  void ask_to_close_idle();
  // How often in a row this was called while no message had come or gone since the call before.
  uint32_t count_idle();
  // Sends credit and acknowledgements that are due.
  void send_update() override;
  // Asks the peer to acknowledge what it has, before this side leaves.
  void ask_for_acknowledgement();
  bool copy_some() override { return access_.copy_some(); }
  void tick(uint64_t now_ns) override;
  uint64_t next_timer_ns() const override;
  // Nothing accepted is waiting to leave.
  bool flushed() const;

  // For transfers: a small protocol message, sent before queued user messages. Queued if there is
  // no room. Fails for nothing: without memory nothing more leaves, and the pair is lost at the end
  // of the pass.
  // |place|: what RemoteAccess counts until the peer has acknowledged the message.
  void send_control(MessageKind kind, uint64_t tag, uint64_t value, const void* body, size_t size,
                    Place place = Place::kNone);
  // On |bulk.rail|.
  void submit_bulk(OwnedBulk& bulk);
  // On return the bulk's memory is quiet.
  // As Endpoint::cancel.
  bool cancel_bulk(OwnedBulk& bulk);
  uint64_t add_target(PutTarget& target) { return targets_.insert(&target); }
  void remove_target(uint64_t cookie) { targets_.erase(cookie); }
  uint64_t add_send(SendTransfer& transfer) { return sends_.insert(&transfer); }
  void forget_send(uint64_t id) { sends_.erase(id); }
  void request_answered();
  // The peer has read a message of |bytes|.
  void pull_answered(uint64_t bytes);
  uint64_t add_receive(ReceiveTransfer& transfer) { return receives_.insert(&transfer); }
  void forget_receive(uint64_t id) { receives_.erase(id); }
  void return_credit(uint64_t bytes);
  // The peer waits to hear that its message was dealt with.
  void acknowledgement_due();
  // |message|, of this pair, is in no list any more.
  void free_incoming(Incoming* message);
  // Memory ran out in the middle of something: nothing can be promised to the peer any more.
  void out_of_memory() override;
  // The same for whoever cannot bear the end of everything now: at the end of the pass.
  void starve();
  BulkChooser& chooser() { return chooser_; }
  // The pair's time that a transfer begun at |started_ns| and finished now took, beside its
  // predecessors.
  uint64_t service_time(uint64_t started_ns, uint64_t now_ns);

  // For receives: attaches a message that was queued as unexpected to |receive|.
  void attach(Incoming& message, Operation& receive);
  // The same for one that a request names.
  void attach_request(Operation& receive, const RequestBody& body, uint64_t length);
  // Detaches a receive whose eager fragments are still coming; the rest is dropped.
  void detach_arriving(Operation& receive);

  // Called for a message taken out of a match table for good. True when its fragments are still
  // coming: then the pair keeps it and drops them.
  bool forget(Incoming& message);

  // Counters of |transport|, made on first use; stable address.
  hetcomm_counters_t* counters_of(std::string_view transport);
  const std::deque<hetcomm_counters_t>& counters() const { return counters_; }

 private:
  friend class Rail;
  friend class RemoteAccess;
  struct ControlMessage {
    MessageKind kind;
    uint64_t tag;
    uint64_t value;
    uint32_t size;
    std::array<std::byte, 64> body;
    uint32_t received;  // when it was queued: what it may acknowledge
    Place place;
  };

  // Attempts to have a rail over a transport; the lower rank's.
  struct Attempts {
    bool connecting = false;
    uint32_t failures = 0;       // in a row
    uint64_t not_before_ns = 0;  // cools down until then
    uint64_t up_since_ns = 0;
  };
  Attempts& path(size_t index);

  // pair.cc: sending
  bool start_send(Operation& send);
  bool start_or_end(Operation& send);
  bool start_copied(Operation& send);
  bool start_long(Operation& send);
  bool start_eager(Operation& send);
  bool refused(Operation& send, Code code);
  bool send_fragments(Operation& send);
  bool start_rendezvous(Operation& send);
  bool start_pulled(Operation& send, PoolPtr<SendTransfer> transfer, const RequestBody& request);
  void push(SendTransfer& transfer);
  void push_overdue(uint64_t now_ns);
  void end_unsent(Operation& send, Code code, std::string text);
  void finish_send(Operation& send);
  void note_sent(uint64_t length, bool eager);
  bool may_send() const { return state_ == State::kReady && control_.empty(); }
  void enqueue(Operation& send);
  Code send_sequenced(WireHeader header, const SegmentView& payload) {
    return send_sequenced(header, payload, received_);
  }
  Code send_sequenced(WireHeader header, const SegmentView& payload, uint32_t acknowledged);
  Code send_message(const WireHeader& header, const SegmentView& payload);  // the same, elsewhere
  void retain(const MessageHeader& header, const SegmentView& payload);
  bool owes_acknowledgement() const { return static_cast<int32_t>(owed_ - reported_received_) > 0; }
  // What the peer says that it has, it was sent. False after a violation.
  bool was_sent(Rail& rail, uint32_t sequence);
  uint32_t credit_available() const {
    return credit_limit_ - (credit_used_ - credit_returned_by_peer_);
  }
  bool send_waiting_control();
  void queue_control(MessageKind kind, uint64_t tag, uint64_t value, const void* body, size_t size,
                     Place place);
  void tell_loss();
  Code start_bulk(OwnedBulk& bulk);
  void submit_waiting_bulks();
  void bulk_ended(OwnedBulk& bulk, Code code);
  void report_refused_bulks();

  // pair_receive.cc: receiving
  void receive(Rail& rail, const MessageHeader& raw, ConstByteSpan payload);
  bool use_credit(uint64_t bytes);
  void receive_unopened(Rail& rail, const WireHeader& header);
  void dispatch(const WireHeader& header, ConstByteSpan payload);
  void receive_eager(const WireHeader& header, ConstByteSpan payload);
  bool take_eager(const WireHeader& header, ConstByteSpan payload);
  void receive_first(const WireHeader& header, ConstByteSpan payload);
  void receive_more(const WireHeader& header, ConstByteSpan payload);
  void receive_pull(const WireHeader& header, ConstByteSpan payload);
  void receive_pull_pause(const WireHeader& header);
  void receive_request(const WireHeader& header, ConstByteSpan payload);
  void refuse_request(uint32_t channel, uint64_t sender_id);
  void receive_push(uint64_t sender_id);
  Operation* match(MatchTable* table, uint64_t tag);
  void announce(Incoming& message, const RequestBody& request);
  void queue_unexpected(MatchTable& table, Incoming& message, const WireHeader& header);
  void drop_withdrawn(uint64_t sender_id);
  void hand_over(Incoming& message, MatchTable& table, Operation* receive,
                 const WireHeader& header);
  void count_received(uint64_t length);
  Code pull(const PullBody& from, Segments into, uint64_t length);
  bool samples(uint64_t bytes);
  void took(uint64_t bytes, uint64_t elapsed_ns, uint64_t pieces);
  void tell_pull_pause(uint64_t bytes);
  void receive_withdraw(const WireHeader& header);
  void finish_arriving(Incoming& message);
  void await_bytes(Incoming& message, MatchTable* table, Operation* receive,
                   const WireHeader& header);
  enum class Keeps : uint8_t { kNothing, kBytes };
  Incoming* new_incoming(uint64_t tag, uint64_t length, uint64_t credit, Keeps keeps);
  void attach_new(Incoming& message, Operation& receive);
  void violated(std::string_view what) { violated(*receiving_on_, what); }
  void violated(Rail& rail, std::string_view what);

  // pair_connection.cc: connecting, breaking, resuming
  void opened(Rail& rail, const WireHeader& header);
  void resume();
  void give_up(const Status& why);
  void rail_failed(Rail& rail, const Status& why, bool tell = true);
  void drop_rail(Rail& rail, bool peer_has_to_know);
  void drop_all_rails();
  void fail_everything(const Status& why);
  void send_open(Rail& rail);
  void use(Rail& rail);
  void replay_on(Rail& rail);
  Rail* best_open_rail();
  bool is_better(const Rail& rail) const;
  void take_over(Rail& rail);
  static bool same_kind(const Rail& a, const Rail& b);
  void restart_transfers();
  // Of a rail that the lower rank has numbered, while its number is still on the way.
  bool is_early(uint64_t id);
  void fail_unknown_rails();
  void take_early_grants();
  void want_more_rails();
  bool uses(const Rail& rail);
  bool is_replaced(const Rail& rail);
  void plan_to_close_unused();
  void close_unused_rails();
  void close_unused(Rail& rail);
  void cool_down(size_t index);

  // pair_idle.cc: closing what nobody uses
  bool has_nothing_to_do() const;
  bool is_idle() const;
  void receive_close_idle();
  void receive_may_close(uint64_t rail, bool may);
  void stay_connected();
  void left_by_peer(Rail& rail);
  bool waits(MessageKind kind) const;

  PairCommons& common_;
  const int rank_;
  State state_ = State::kIdle;
  Status lost_;
  bool left_ = false;
  std::vector<std::unique_ptr<Rail>> rails_;
  Rail* rail_ = nullptr;  // messages go over it
  const bool is_higher_;  // the lower rank numbers the rails
  std::vector<GrantBody> early_grants_;
  Rail* receiving_on_ = nullptr;            // whose message is being handled
  std::vector<Attempts> paths_;             // by transport
  uint64_t more_rails_at_ns_ = UINT64_MAX;  // when a transport has cooled down
  uint64_t take_over_at_ns_ = UINT64_MAX;   // when a better rail may carry what is not acknowledged
  uint64_t close_unused_at_ns_ = UINT64_MAX;  // when replaced rails are looked at
  uint64_t rails_made_ = 0;
  bool replaced_ = false;                     // adopt() is making a connection in place of another
  bool lost_unknown_ = false;                 // since one opened: a rail whose number had not come
  uint64_t attempts_ = 0;                     // since the last connection that opened
  uint64_t unreached_since_ns_ = UINT64_MAX;  // the first of those attempts failed
  bool vouched_ = false;                      // others have heard of the peer meanwhile
  uint64_t connects_failed_ = 0;              // since then
  uint64_t retry_at_ns_ = UINT64_MAX;
  bool asked_to_close_ = false;  // the peer has not answered
  uint64_t ask_again_ns_ = 0;    // the peer has refused; not before
  unsigned refusals_ = 0;        // in a row
  uint32_t traffic_ = 0;         // messages, when count_idle() was called last
  uint32_t idle_ = 0;            // what it returned
  bool starved_ = false;         // a protocol message was lost for want of memory
  bool untold_ = false;          // the peer does not know that it is lost
  Status verdict_;  // why a lossless connection broke; the control plane says what that means

  // Sending.
  OperationQueue outbox_;
  std::vector<ControlMessage> control_;
  size_t control_sent_ = 0;  // messages of |control_| that have left
  BulkList waiting_bulks_;
  BulkList refused_bulks_;   // to be reported at the end of the pass
  uint64_t unanswered_ = 0;  // requests that the peer has not matched yet
  uint32_t sent_;            // sequence of the last message sent
  uint32_t credit_used_;     // bytes, modulo 2^32, as all credit counters
  uint32_t credit_returned_by_peer_;
  uint32_t credit_limit_;
  Retention retention_;
  bool check_kept_ = false;  // the peer has to have everything up to |not_kept_|
  uint32_t not_kept_ = 0;
  bool replaying_ = false;  // |retention_| is being sent again, on |rail_|
  uint32_t replayed_ = 0;   // the last message that was

  // Receiving.
  uint32_t received_;  // sequence of the last message received
  uint32_t received_when_asked_;
  uint64_t asked_ns_ = 0;
  uint32_t reported_received_;
  uint32_t owed_;               // the peer waits to hear that this one was dealt with
  uint32_t credit_taken_;       // by the peer, so far
  uint32_t requests_held_ = 0;  // announced by the peer and not matched
  uint32_t credit_returned_;    // to the peer, so far
  uint32_t credit_reported_;
  uint32_t credit_granted_;
  uint64_t bytes_unreported_ = 0;
  ArrivingList arriving_;
  bool arriving_sampled_ = false;  // the one that comes in fragments
  uint64_t arriving_pieces_ = 0;   // fragments of a sampled one that are here
  uint64_t arriving_ns_ = 0;       // that taking them out has cost

  RemoteAccess access_{*this};
  SlotTable<PutTarget> targets_;
  SlotTable<SendTransfer> sends_;
  SlotTable<ReceiveTransfer> receives_;
  std::deque<hetcomm_counters_t> counters_;
  BulkChooser chooser_;
  PullChooser pull_chooser_;
  PullPlan pull_plan_;
  uint64_t pull_answered_ns_ = 0;     // when the peer had read a message last
  uint64_t push_at_ns_ = UINT64_MAX;  // when messages that were not pulled are looked at
  bool push_grace_ = false;           // some were late then, and are looked at once more
  uint64_t last_transfer_ns_ = 0;
};

}  // namespace hetcomm
