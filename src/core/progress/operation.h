// One asynchronous operation and the pool that holds them.
//
//   kFree --allocate--> kIdle --submit--> kPending --complete--> kComplete --claim--> kReporting
//     ^                   ^                                                               |
//     |                   +------------------------- prepared ----------------------------+
//     +------------------------------------ all others -----------------------------------+
//
// An Operation belongs to the holder of the baton while it is pending, and to the thread that
// claims it once it is complete. A context's sole user reports under the baton instead and claims
// nothing; nobody claims while it may do so (Engine::try_enter_as_user). Slots never move, and
// their memory is never given back before the context ends, so the generation identifies a stale
// handle. State and generation are one word, so a thread with an old handle can never mistake the
// slot's next operation for its own.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hetcomm/request.h>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"

namespace hetcomm {

class AccessLedger;
class CommunicatorBase;
class Departure;
class Engine;
class Track;
class Memory;
class PairBase;
struct Incoming;
struct Operation;
class DirectAccess;
class Registration;
class RemoteMemory;
class SendTransfer;
class StreamHold;
class ReceiveTransfer;
class UserStream;

// kFree: given back by its last user, to be collected by the pool. kIdle: in the pool's hands, or
// prepared and not running.
// kReporting: held by the one thread that reports, or starts, it. kPrepared: prepared and not
// running.
enum class OperationState : uint8_t { kFree, kIdle, kPrepared, kPending, kComplete, kReporting };
// Kinds above kReceive are one-sided, except for kCollective, which is made of sends and receives.
// kAccept and kAnswer are the owner's side of a peer's put and get.
enum class OperationKind : uint8_t {
  kSend,
  kReceive,
  kPut,
  kGet,
  kFetchAdd,
  kCompareSwap,
  kFlush,
  kAccept,
  kAnswer,
  kCollective
};

// The phase of a pending operation tells how to end it.
enum class OperationPhase : uint8_t {
  kSubmitted,  // in the submission queue
  kCollected,  // waits for its group to be started
  kBehind,     // started; waits for earlier work in users' streams
  kQueued,     // send, or one-sided: in its pair's outbox
  kPosted,     // receive: in the match table
  kArriving,   // receive: matched, eager bytes still coming
  kTransfer,   // rendezvous in progress, or a send that is to be pulled
  kCopying,    // waits for device copies only
  kAwaiting,   // one-sided: waits for the owner's answer, credit, or (flush) others
  kDirect,     // one-sided: the connection executes it directly
  kUnopened,   // receive: waits for the sending end of its track
  kCollective,
};

// Work that an operation of kind kCollective stands for, made of other operations.
class CompositeOperation {
 public:
  virtual ~CompositeOperation() = default;
  // Operations with the same order start in the order of their calls. The value is only compared.
  virtual const void* order() const HETCOMM_UNDER_BATON = 0;
  // Its turn in that order has been taken, and it waits for a user's stream. begin() or withdraw()
  // follows.
  virtual void lined_up() HETCOMM_UNDER_BATON = 0;
  // Begins it for |operation|, which is pending and owns it; from now on it owns itself. After a
  // failure |operation| stays as it is and ends with the status. May throw std::bad_alloc.
  virtual Status begin(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // It will not begin, though other ranks may wait for it.
  virtual void withdraw(Code code, const std::string& text) HETCOMM_UNDER_BATON = 0;
  // Ends it before its time. The operation completes when its memory is quiet. |text| is the whole
  // message: what it is, why it ends, and which ranks it waits for.
  virtual void end(Code code, const std::string& text) HETCOMM_UNDER_BATON = 0;
  // Whether it can no longer succeed if it begins after |rank| of the job was lost. |has_left|: the
  // rank had ended all its operations.
  virtual bool fails_without(int rank, bool has_left) const HETCOMM_UNDER_BATON = 0;
  // The known reason why it will not succeed once it begins; ok if there is none.
  virtual Status known_end() const HETCOMM_UNDER_BATON = 0;
  // Whether it is one of the collective operations that end together when one of a communicator
  // fails.
  virtual bool is_collective_call() const HETCOMM_UNDER_BATON = 0;
  // The ranks of the job that it waits for, as far as this rank knows.
  virtual std::vector<int> awaited() const HETCOMM_UNDER_BATON = 0;
  // A remark on these ranks in addition to those of transports: "; rank 1 has no such plan"; or
  // empty.
  virtual std::string remark() const HETCOMM_UNDER_BATON = 0;
  // How it ends at its deadline, from what is known of these ranks.
  virtual Code code_at_deadline() const HETCOMM_UNDER_BATON = 0;
  // A line for people: "allreduce #5 of 64 bytes, FLOAT32, SUM".
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;
};

// An EndHandler is told of the end of an internal operation, which has no request handle.
class EndHandler {
 public:
  // |operation| has ended, well or not; it is given back afterwards.
  virtual void on_end(Operation& operation) HETCOMM_UNDER_BATON = 0;

 protected:
  ~EndHandler() = default;
};

// A piece of a message: host memory, or device memory that has to be staged.
struct BufferPiece {
  Memory* memory;   // null: host
  uint64_t offset;  // host: address
  uint64_t length;
  bool operator==(const BufferPiece&) const = default;
};
// Memory for an operation's lists of pieces. A caller that starts it again keeps this memory.
struct PieceLists {
  std::vector<BufferPiece> pieces;
  std::vector<iovec> extents;
};

// Notes about neighbouring slots, so that the sweep looks only where something may be due.
struct SlotBlock {
  static constexpr size_t kSlots = 64;
  uint64_t look_at_ns = ~uint64_t{0};
  bool has_new = false;  // an operation began since the last look
};

inline constexpr size_t kOperationAlign = 256;

struct alignas(kOperationAlign) Operation {
  // [any-thread]
  OperationState state() const { return state_in(word.load(std::memory_order_acquire)); }
  uint32_t generation() const { return generation_in(word.load(std::memory_order_relaxed)); }
  bool is(uint32_t generation, OperationState state) const {
    return word.load(std::memory_order_acquire) == make_word(generation, state);
  }
  // Takes a prepared operation in order to start it; false when it cannot be started.
  bool claim_prepared(uint32_t generation) {
    return exchange(generation, OperationState::kPrepared);
  }
  // Takes a complete operation for reporting. False when it is not the one that |generation| names,
  // or when another thread was first.
  bool claim(uint32_t generation) { return exchange(generation, OperationState::kComplete); }
  // Only the operation's owner calls these two.
  void set_state(OperationState state) {
    word.store(make_word(generation(), state), std::memory_order_release);
  }
  // Sets the state and makes all handles stale.
  void expire(OperationState state) {
    const uint32_t following = (generation() + 1) & kGenerationMask;
    word.store(make_word(following == 0 ? 1 : following, state), std::memory_order_release);
  }

  static constexpr uint32_t kGenerationMask = 0xffffff;
  static constexpr uint64_t make_word(uint32_t generation, OperationState state) {
    return uint64_t{generation} << 8 | static_cast<uint8_t>(state);
  }
  static constexpr OperationState state_in(uint64_t word) {
    return static_cast<OperationState>(word & 0xff);
  }
  static constexpr uint32_t generation_in(uint64_t word) {
    return static_cast<uint32_t>(word >> 8);
  }

  bool exchange(uint32_t generation, OperationState from) {
    uint64_t expected = make_word(generation, from);
    return word.compare_exchange_strong(expected, make_word(generation, OperationState::kReporting),
                                        std::memory_order_acquire, std::memory_order_relaxed);
  }

  // The memory that the operation sends or receives.
  struct Buffers {
    iovec extent{};                   // host view of the pieces when there is at most one
    std::vector<BufferPiece> pieces;  // empty when the one host extent says all
    // The CPU can touch all pieces, and extents() covers all of them.
    bool on_host = true;
    // If not |on_host|: extents() covers all pieces, for transports that reach their devices.
    bool has_placeholders = false;
    std::vector<iovec> extent_list;  // host view of |pieces|; empty when |extent| is
  };
  // The operation is in one list at a time: match table, outbox, submission queue or free list.
  struct Links {
    Operation* next = nullptr;
    Operation* previous = nullptr;
    uint64_t stamp = 0;  // posting order, in a match table
  };
  // Chosen by the caller, or by core for its own messages.
  struct Options {
    bool collective = false;  // on the collective channel
    bool high_priority = false;
    bool on_track = false;              // |transfer.track| carries it
    bool fail_on_any_loss : 1 = false;  // bits: the first line is full
    bool on_stream : 1 = false;         // |order| names the stream
  };
  // The place of an operation in the order of a user's stream. Other operations use only
  // |departure| and |index|, in the phase kBehind.
  struct Order {
    UserStream* stream = nullptr;    // in use by the operation
    Departure* departure = nullptr;  // owned until the start; then it is one of its operations
    size_t index = 0;                // among these
    StreamHold* hold = nullptr;      // since the start
  };
  // State of one run of the operation.
  struct Run {
    uint64_t sent = 0;          // send: bytes of an eager message that have left
    uint64_t pull_id = 0;       // send: its kPull has left, and the bytes follow
    uint64_t deadline_ns = 0;   // 0: not set yet
    uint64_t submitted_ns = 0;  // 0: not noted yet
    bool stall_reported = false;
  };
  // The operation's result, as its completion shows it. All of it is written before the state
  // becomes kComplete.
  struct Outcome {
    Code code = Code::kOk;
    int32_t source = -1;  // job rank, then rank in the communicator
    uint64_t matched_tag = 0;
    uint64_t bytes_sent = 0;
    uint64_t bytes_received = 0;
    std::unique_ptr<std::string> text;

    // A run begins. There is no text from an earlier one.
    void begin(int32_t from, uint64_t with_tag) {
      code = Code::kOk;
      source = from;
      matched_tag = with_tag;
      bytes_sent = bytes_received = 0;
    }
  };
  // This rank's side of a rendezvous.
  struct Transfer {
    SendTransfer* send = nullptr;
    ReceiveTransfer* receive = nullptr;
    Track* track = nullptr;  // ignored where |on_track| is not set
    uint64_t run = 0;        // place in the track
  };
  // An internal operation, which is detached, tells |handler| of its end.
  struct Internal {
    EndHandler* handler = nullptr;  // null: not an internal operation
    uint64_t cookie = 0;            // the handler's own
  };
  // The operation's slot in the pool. All operations that use the slot share these members.
  struct Slot {
    Engine* engine = nullptr;
    SlotBlock* block = nullptr;
    std::atomic<Operation*> shared_next{nullptr};  // list of slots for threads without the baton
  };
  // State of a one-sided operation. Other operations ignore it.
  struct Access {
    RemoteMemory* remote = nullptr;
    AccessLedger* ledger = nullptr;        // the pair's, once it has the operation
    Registration* registration = nullptr;  // owner's side
    uint64_t offset = 0;
    uint64_t ahead = 0;    // bytes at the front that are in place already and no longer counted
    uint64_t operand = 0;  // addend or new value; put: what to notify with
    uint64_t compare = 0;
    uint64_t* result = nullptr;
    uint64_t id = 0;     // initiator's, once asked for
    uint64_t batch = 0;  // identifies the operations between two flushes
    DirectAccess* direct = nullptr;
    bool started = false;  // counted in its batch
    bool asked = false;    // the owner may have done it
    bool notify = false;
    bool placed = false;  // all bytes are placed; the owner does not know yet
    bool counted = false;
    bool direct_failed = false;  // the owner has to look at it
    bool waiting = false;        // in a TurnQueue
    bool had_turn = false;       // has waited for its turn to be asked
    bool holds_permit = false;   // counted in Permits
    bool awaits_credit = false;  // for its notification, in a list
  };

  // First line: what every match reads, and every post writes.
  std::atomic<uint64_t> word{make_word(1, OperationState::kIdle)};
  OperationKind kind = OperationKind::kSend;
  OperationPhase phase = OperationPhase::kSubmitted;
  bool prepared = false;
  bool detached = false;  // released while running: nobody claims it
  Options options;
  uint32_t channel = 0;  // send: number of the receiver's channel
  int32_t peer = -1;     // job rank, -1: any
  uint64_t tag = 0;
  uint64_t ignore = 0;
  uint64_t length = 0;  // bytes in the pieces
  CommunicatorBase* communicator = nullptr;
  PairBase* pair = nullptr;  // send, or matched receive

  // Second to fourth line: further members that the common message uses.
  Buffers buffers;
  Links links;
  // This operation's index, from 1 on, in the list of a thread that waits for any of several. 0: no
  // thread does. A hint, which any thread may write.
  std::atomic<uint32_t> wait_index{0};
  Run run;
  Outcome outcome;
  uint64_t timeout_ns = 0;

  // Seldom used.
  Transfer transfer;
  CompositeOperation* composite = nullptr;  // kCollective: owned until it is started
  Slot slot;
  Internal internal;
  Order order;
  Access access;

  Extents extents() const {
    return buffers.extent_list.empty() ? Extents(&buffers.extent, 1) : Extents(buffers.extent_list);
  }
  // Drops |bytes| that a one-sided operation has moved already. The rest is its own operation.
  void drop_front(uint64_t bytes);
  void clear_pieces() {
    buffers.pieces.clear();
    buffers.extent_list.clear();
  }
  // Lends the operation the memory of |lists|, or takes it back: both are empty.
  void swap_lists(PieceLists& lists) {
    buffers.pieces.swap(lists.pieces);
    buffers.extent_list.swap(lists.extents);
  }
};
// Matching touches the first line; posting and completing a common message touches five.
static_assert(sizeof(Operation) == kOperationAlign * 2 && offsetof(Operation, buffers) == 64 &&
              offsetof(Operation, transfer) == 256 && offsetof(Operation, internal) <= 320);

// One line for people: the operation, its peer and its length.
std::string describe(const Operation& operation) HETCOMM_UNDER_BATON;

// Operations in slabs of slots. Most calls need the baton; recycle() and allocate_shared() do not.
//
// A slot that is given back without the baton is only marked kFree, which costs no locked
// instruction; a small ring of hints says where to look. Two threads that give slots back at once
// may lose a hint, so the pool looks at every slot before it grows.
class OperationPool {
 public:
  explicit OperationPool(Engine* engine) : engine_(engine) {}

  // Null when memory is exhausted.
  Operation* allocate() HETCOMM_UNDER_BATON {
    // The slot that was given back last is still in the cache.
    Operation* operation = has_hints() ? take_hint() : nullptr;
    if (operation != nullptr) return operation;
    if (free_ == nullptr) refill();
    operation = free_;
    if (operation == nullptr) return nullptr;
    free_ = operation->links.next;
    operation->links.next = nullptr;
    return operation;
  }
  // Allocates without the baton. Null when no shared slot is left: then call add_shared() under the
  // baton. [any-thread]
  Operation* allocate_shared();
  void add_shared() HETCOMM_UNDER_BATON;
  // Makes all handles of |operation| stale and gives the slot back. [any-thread]
  void recycle(Operation* operation) {
    if (operation->outcome.text) [[unlikely]]
      operation->outcome.text.reset();
    const uint32_t out = hints_out_.load(std::memory_order_relaxed);
    uint32_t at = hints_in_.load(std::memory_order_relaxed);
    if (static_cast<int32_t>(at - out) < 0) [[unlikely]]
      at = out;  // a lost race
    if (at - out >= kHints) [[unlikely]] {
      push_returned(operation);
      return;
    }
    operation->expire(OperationState::kFree);
    hints_[at % kHints].store(operation, std::memory_order_relaxed);
    hints_in_.store(at + 1, std::memory_order_release);
  }
  // Like recycle(), under the baton.
  void recycle_locked(Operation* operation) HETCOMM_UNDER_BATON {
    if (operation->outcome.text) operation->outcome.text.reset();
    operation->expire(OperationState::kIdle);
    operation->links.next = free_;
    free_ = operation;
  }

  // Calls use(slot) for the slots of blocks in which something has begun or is due. |use| returns
  // when to look at the slot next. sweep() returns when to come back.
  template <typename Use>
  uint64_t sweep(uint64_t now_ns, Use&& use) HETCOMM_UNDER_BATON {
    uint64_t next = ~uint64_t{0};
    for (size_t index = 0; index < slab_count_; ++index) {
      const Slab& slab = slabs_[index];
      for (size_t i = 0; i < slab.count; i += SlotBlock::kSlots) {
        SlotBlock& block = slab.blocks[i / SlotBlock::kSlots];
        if (block.has_new || block.look_at_ns <= now_ns) look_at(block, &slab.slots[i], use);
        next = std::min(next, block.look_at_ns);
      }
    }
    return next;
  }
  // Every slot, for rare walks over what is pending.
  template <typename Use>
  void for_each(Use&& use) HETCOMM_UNDER_BATON {
    for (size_t index = 0; index < slab_count_; ++index) {
      const Slab& slab = slabs_[index];
      for (size_t i = 0; i < slab.count; ++i) use(slab.slots[i]);
    }
  }

 private:
  static constexpr size_t kFirstSlab = 64;
  static constexpr size_t kShared = 64;  // slots moved to |shared_| at a time
  static constexpr uint32_t kHints = 256;
  struct Slab {
    std::unique_ptr<Operation[]> slots;
    std::unique_ptr<SlotBlock[]> blocks;
    size_t count;
  };

  template <typename Use>
  static void look_at(SlotBlock& block, Operation* slots, Use&& use) HETCOMM_UNDER_BATON {
    // Operations that |use| begins or ends are noted for the next sweep.
    block = {};
    uint64_t next = ~uint64_t{0};
    for (size_t i = 0; i < SlotBlock::kSlots; ++i) next = std::min<uint64_t>(next, use(slots[i]));
    block.look_at_ns = std::min(block.look_at_ns, next);
  }

  bool has_hints() const {
    return hints_in_.load(std::memory_order_relaxed) != hints_out_.load(std::memory_order_relaxed);
  }
  Operation* take_hint() HETCOMM_UNDER_BATON {
    uint32_t at = hints_out_.load(std::memory_order_relaxed);
    while (static_cast<int32_t>(hints_in_.load(std::memory_order_acquire) - at) > 0) {
      Operation* operation = hints_[at % kHints].load(std::memory_order_relaxed);
      hints_out_.store(++at, std::memory_order_relaxed);
      if (operation != nullptr && operation->state() == OperationState::kFree) {
        operation->set_state(OperationState::kIdle);
        return operation;
      }
    }
    return nullptr;
  }
  void push_returned(Operation* operation);
  size_t collect_free() HETCOMM_UNDER_BATON;
  size_t slot_count() const HETCOMM_UNDER_BATON {
    return slab_count_ == 0 ? 0 : kFirstSlab << (slab_count_ - 1);
  }
  void grow() HETCOMM_UNDER_BATON;
  void refill() HETCOMM_UNDER_BATON;

  Engine* engine_;
  Operation* free_ HETCOMM_GUARDED_BY_BATON = nullptr;
  std::array<Slab, 48> slabs_ HETCOMM_GUARDED_BY_BATON{};  // each as large as all before it
  size_t slab_count_ HETCOMM_GUARDED_BY_BATON = 0;
  std::atomic<uint32_t> hints_out_{0};  // written under the baton
  std::atomic<uint32_t> hints_in_{0};   // written by all; racing writes may be lost
  std::array<std::atomic<Operation*>, kHints> hints_{};
  std::atomic<Operation*> returned_{nullptr};
  std::atomic<uint64_t> shared_{
      0};  // address of the first, and a tag against reuse between look and swap
};

// A request handle, taken apart: it holds the address of a slot, with 24 bits of generation in the
// bits that an aligned user-space address leaves free.
struct OperationRef {
  Operation* operation = nullptr;
  uint32_t generation = 0;

  bool is(OperationState state) const { return operation->is(generation, state); }
  // Whether the handle has been given back, or its operation was reported.
  bool stale() const { return operation->generation() != generation; }
};
inline constexpr uint64_t kHandleLowBits = 8;
inline constexpr uint64_t kHandleLowMask = (1u << kHandleLowBits) - 1;
inline constexpr uint64_t kHandleAddressBits = 48;
inline constexpr uint64_t kHandleAddressMask =
    ((uint64_t{1} << kHandleAddressBits) - 1) & ~kHandleLowMask;
static_assert(kOperationAlign == kHandleLowMask + 1);

inline hetcomm_request_t* encode_handle(const Operation* operation) {
  const uint64_t generation = operation->generation();
  return reinterpret_cast<hetcomm_request_t*>(reinterpret_cast<uint64_t>(operation) |
                                              (generation & kHandleLowMask) |
                                              (generation >> kHandleLowBits) << kHandleAddressBits);
}
// The operation is null for a null handle; nothing else is checked.
inline OperationRef decode_handle(hetcomm_request_t* handle) {
  const uint64_t bits = reinterpret_cast<uint64_t>(handle);
  return {reinterpret_cast<Operation*>(bits & kHandleAddressMask),
          static_cast<uint32_t>((bits >> kHandleAddressBits) << kHandleLowBits |
                                (bits & kHandleLowMask))};
}

}  // namespace hetcomm
