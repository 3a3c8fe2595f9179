// RemoteAccess: one-sided operations between this rank and one peer, both halves.
//
// clang-format off
//   initiator                                         owner
//     kPut (range, bytes)                        -->    writes them; acknowledged with whatever
//                                                       goes back next
//     kPutRequest (range, source), a rendezvous  -->    a receive of its own, with chunks as any
//     kGet (range)                               -->    a send of its own:
//                                                <--    kGetData (bytes) or kGetRequest (source)
//     kAtomic                                    -->    does it
//                                                <--    kAtomicDone (value before)
//                                                <--    kRefused (why not), for each of them
// clang-format on
//
// On a connection that reaches published regions puts and gets go there by themselves; the
// notification then follows as a kPut without bytes. All messages are numbered and come once, as
// all of the pair, which is what makes notifications and atomics happen once. Everything that the
// owner reads here is checked against its table of registrations. Under the baton.
//
// At most kMaxAsked operations are asked of one owner at a time, and kMaxHeld held for one
// initiator: places.h says what counts.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/completer.h"
#include "src/core/peer/places.h"
#include "src/core/peer/wire.h"
#include "src/core/progress/operation.h"
#include "src/core/progress/operation_queue.h"
#include "src/core/progress/slot_table.h"

namespace hetcomm {

class Pair;
class Rail;

// What one call copies to or from mapped memory; the rest is for progress.
inline constexpr uint64_t kMostCopiedAtOnce = 4 << 20;

class RemoteAccess final : public AccessLedger {
 public:
  explicit RemoteAccess(Pair& pair) : pair_(pair) {}
  RemoteAccess(const RemoteAccess&) = delete;
  RemoteAccess& operator=(const RemoteAccess&) = delete;

  // Takes a one-sided operation of this rank's user, which is pending.
  void submit(Operation& operation);
  // Starts one that was in the pair's outbox. False: to be tried again.
  bool start(Operation& operation);
  // Ends one that is under way (OperationStage::kAwaiting or kDirect). Its buffer is quiet when it
  // has completed.
  void end(Operation& operation, Code code, std::string text);
  void ending(Operation& operation) override;
  // Flushes may follow.
  void ended(uint64_t epoch, Code code) override;

  // For people: |operation| ended in |code| because the owner said so.
  static std::string failure_text(const Operation& operation, Code code);

  void receive(const WireHeader& header, ConstByteSpan payload);
  // The owner has dealt with all messages up to |sequence|.
  void acknowledged(uint32_t sequence);
  bool awaits_acknowledgement() const {
    return !sent_puts_.empty() || places_.has_answers() || fence_ == Fence::kAsked;
  }
  // The initiator has all answers up to |sequence|. Called before the message that acknowledges
  // them is dealt with, which may ask for something.
  void answers_acknowledged(uint32_t sequence) { places_.acknowledged(sequence); }
  // Takes the place of |operation| away, for the message that ends its transfer.
  static Place hand_over(Operation& operation);
  // Gives the place of |operation| back.
  void release(Operation& operation);
  // A protocol message has just been sent.
  void left(MessageKind kind, Place place);
  const Places& places() const { return places_; }
  // An answer or an operation that waits can start now, if the connection has room.
  bool has_to_start() const {
    return !waiting_answers_.empty() || (!waiting_.empty() && places_.is_free());
  }
  // Start what waits. Without room on the connection it waits on.
  void start_answers();
  void start_waiting();
  void credit_came();
  bool waits_for_credit() const { return !awaiting_credit_.empty(); }
  // The network moves something over |rail| by itself.
  bool uses(const Rail& rail) const;
  // What was under way on |rail| itself is quiet, and starts again with start_again(), which comes
  // after the peer was told: the cause may be the operation itself, which the owner then says.
  void rail_failed(const Rail& rail, bool peer_has_to_know);
  void start_again();
  // There are other connections than before.
  void rails_changed();
  void fail_everything(const Status& why);
  // Remote memories of the peer, for as long as they exist.
  void add(RemoteMemory& remote);
  void remove(RemoteMemory& remote) { std::erase(remotes_, &remote); }
  // The connection maps, or stops mapping, a region.
  void mapped(Rail& rail, const RemoteKey& key, const Result<MappedRegion>& mapped);
  void unmap(const Rail& rail, const RemoteKey& key);
  // Copies to and from mapped memory that are too long for one call go on. False: none is left.
  bool copy_some();
  bool flushed() const {
    return awaiting_credit_.empty() && waiting_.empty() && waiting_answers_.empty();
  }
  // Nothing is under way, and no memory of the peer is held that a connection may have mapped.
  bool is_idle() const;

 private:
  friend class DirectAccess;
  // The operations between two flushes.
  struct Epoch {
    uint64_t running = 0;
    Code first_failure = Code::kOk;
    bool closed = false;
    Operation* flush = nullptr;  // null in a closed one: it ended before
  };
  struct SentPut {
    uint32_t sequence;
    uint64_t id;  // 0: the withdrawal of one
  };
  struct Copy {
    Operation* operation;
    uint64_t done;
  };
  struct KnownRegion {
    RemoteKey key;
    MappedRegion mapped;  // without an address: asked for
  };

  void submit_flush(Operation& flush);
  Epoch& open_epoch();
  bool is_mapped(RemoteMemory& remote, Rail& rail);
  bool start_mapped(Operation& operation);
  void copy_part(const Operation& operation, uint64_t from, uint64_t length) const;
  // Takes |operation| out of what copies; false when it was not there.
  bool stop_copying(const Operation& operation);
  void go_by_message(Operation& operation, uint64_t placed = 0);
  void send_soon(Operation& operation);
  void enqueue_again();
  void forget_direct(Operation& operation);
  void lose_direct(Operation& operation, const Status& why);
  // A connection has failed that the peer may still hold, so that what was written to it may
  // arrive.
  bool is_fence_open() const { return fence_ != Fence::kNone; }
  void told_of_failure();
  void finish_direct(Operation& operation, Code code);
  void count_once(Operation& operation);
  void finish_epochs();
  static bool fits_message(const Operation& put, const Rail& rail);
  bool start_put(Operation& put, Rail& rail);
  bool start_put_message(Operation& put);
  bool start_put_request(Operation& put);
  bool start_get(Operation& get, Rail& rail);
  bool start_atomic(Operation& atomic);
  bool start_answer(Operation& answer, const Rail& rail);
  bool start_transfer(Operation& send, MessageKind kind, uint64_t value);
  bool may_go_direct(const Operation& operation, const Rail& rail);
  void start_direct(Operation& operation);
  bool pay_for_notification(Operation& put);
  bool may_ask(Operation& operation);
  void wait_in(OperationQueue& queue, Operation& operation);
  void start_all(OperationQueue& queue);
  void wake_waiting();
  void free_place();
  void answered_late(uint64_t id);
  // Sends a message that the owner answers or acknowledges; |operation| waits for that. False: to
  // be tried again.
  bool ask(Operation& operation, WireHeader header, Segments payload, uint64_t length);

  // Holds one more for the peer. False after a violation.
  bool hold();
  void refuse(uint64_t id, Code code);
  // Tells the initiator that its get has failed here.
  void refuse(Operation& answer);
  // The owner's side of a put (kAccept) has ended.
  void accepted(const Operation& accept);
  Operation* begin_for_peer(OperationKind kind, Registration& registration,
                            const AccessBody& range);
  Registration* find(const AccessBody& body, uint32_t right, Code* code) const;
  void note_refusal(const char* why) const;
  void finish_put(Registration& registration, const AccessBody& body, const WireHeader& header);
  void receive_put(const WireHeader& header, ConstByteSpan payload);
  void receive_put_request(const WireHeader& header, ConstByteSpan payload);
  void receive_get(const WireHeader& header, ConstByteSpan payload);
  void submit_answer(Operation& answer);
  void receive_get_data(const WireHeader& header, ConstByteSpan payload);
  void receive_get_request(const WireHeader& header, ConstByteSpan payload);
  void receive_atomic(const WireHeader& header, ConstByteSpan payload);
  void receive_atomic_done(const WireHeader& header);
  void receive_refused(const WireHeader& header);
  void complete(Operation& operation, Code code);

  Pair& pair_;
  // Operations that wait for the owner's answer. The id of one that has ended stays, with its
  // place.
  SlotTable<Operation> asked_;
  Places places_;
  OperationQueue waiting_;                   // operations that wait for a place
  OperationQueue waiting_answers_;           // answers that wait for room on the connection
  std::vector<Operation*> awaiting_credit_;  // notified puts
  std::vector<Operation*> direct_;
  enum class Fence : uint8_t { kNone, kWanted, kAsked };
  Fence fence_ = Fence::kNone;
  uint32_t untold_failures_ = 0;   // of connections, which the peer has to know
  uint32_t fence_sequence_ = 0;    // asked: gone when the peer has dealt with that message
  std::deque<SentPut> sent_puts_;  // not acknowledged
  std::vector<RemoteMemory*> remotes_;
  std::vector<KnownRegion> regions_;  // of the connection
  std::vector<Copy> copies_;
  std::vector<Operation*> again_;
  std::deque<Epoch> epochs_;  // the last one is open
  uint64_t first_epoch_ = 0;
  Code unreported_failure_ = Code::kOk;  // before the next epoch, of a flush that ended early
};

}  // namespace hetcomm
