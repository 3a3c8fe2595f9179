// An Operation is one asynchronous operation. The OperationPool holds all operations of a context.
//
//   kFree --allocate--> kIdle --submit--> kPending --complete--> kComplete --claim--> kReporting
//     ^                   ^                                                               |
//     |                   +------------------------- prepared ----------------------------+
//     +------------------------------------ all others -----------------------------------+
//
// An Operation belongs to the holder of the baton while it is pending, and to the thread that
// claims it once it is complete. As long as only one thread uses a context, that thread reports
// operations under the baton and does not claim them (Engine::try_enter_as_user()). Slots never
// move, and their memory is not freed before the context is destroyed, so a stale handle can be
// detected by its generation. State and generation share one word, so a thread with an old handle
// can never mistake the slot's next operation for its own.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include <hetcomm/request.h>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"

namespace hetcomm {

class CommunicatorBase;
class Engine;
class Memory;
struct Operation;
class StreamHold;
class UserStream;

// kFree: released by its last user; the pool will collect it. kIdle: owned by the pool. kPrepared:
// prepared and not running. kReporting: held by the one thread that reports or starts it.
enum class OperationState : uint8_t { kFree, kIdle, kPrepared, kPending, kComplete, kReporting };
// Kinds above kReceive are one-sided, except for kCollective, which consists of sends and receives.
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

// The phase of a pending operation determines how to end it.
enum class OperationPhase : uint8_t {
  kSubmitted,  // in the submission queue
  kCollected,  // waits for its group to be started
  kBehind,     // started; waits for earlier work in users' streams
  kQueued,     // send, or one-sided: in its pair's outbox
  kPosted,     // receive: in the match table
  kArriving,   // receive: matched, eager bytes still arriving
  kTransfer,   // rendezvous in progress, or a send that the receiver will pull
  kCopying,    // waits for device copies only
  kAwaiting,   // one-sided: waits for the owner's answer or credit; flush: for other operations
  kDirect,     // one-sided: the connection executes it
  kUnopened,   // receive: the sender has not opened its end of the track, or is too far behind
  kCollective,
};

// A CompositeOperation implements an operation of kind kCollective with other operations.
class CompositeOperation {
 public:
  virtual ~CompositeOperation() = default;
  // Returns a value that is used only for comparison. Operations with equal values start in the
  // order of their calls.
  virtual const void* order() const HETCOMM_UNDER_BATON = 0;
  // Called when the operation's position in this order is fixed and the operation waits for a
  // user's stream. A call of begin() or withdraw() follows.
  virtual void lined_up() HETCOMM_UNDER_BATON = 0;
  // Begins the work for the pending |operation|, which owns this object. On success, this object
  // owns itself from then on. On failure, |operation| still owns it and ends with the returned
  // status. May throw std::bad_alloc.
  virtual Status begin(Operation& operation) HETCOMM_UNDER_BATON = 0;
  // Called instead of begin() if the work will not begin. Other ranks may be waiting for it.
  virtual void withdraw(Code code, const std::string& text) HETCOMM_UNDER_BATON = 0;
  // Ends the work early. The operation completes once its memory is no longer accessed. |text| is
  // the whole error message: the operation, why it ends, and which ranks it waits for.
  virtual void end(Code code, const std::string& text) HETCOMM_UNDER_BATON = 0;
  // Returns whether the work would fail if it began after |rank| of the job was lost. |has_left| is
  // true if the rank had ended all its operations before.
  virtual bool fails_without(int rank, bool has_left) const HETCOMM_UNDER_BATON = 0;
  // Returns the reason why the work will fail once it begins, if one is already known. Otherwise
  // returns OK.
  virtual Status known_end() const HETCOMM_UNDER_BATON = 0;
  // Returns whether this is a collective call on a communicator. When one such call fails, all
  // pending ones of the communicator end.
  virtual bool is_collective_call() const HETCOMM_UNDER_BATON = 0;
  // Returns the ranks of the job that the work is known to wait for.
  virtual std::vector<int> awaited() const HETCOMM_UNDER_BATON = 0;
  // Returns a remark about the awaited ranks, such as "; rank 1 has no such plan". It is appended
  // to what the transports report, and may be empty.
  virtual std::string remark() const HETCOMM_UNDER_BATON = 0;
  // Returns the code with which the work ends at its deadline, given what is known about the
  // awaited ranks.
  virtual Code code_at_deadline() const HETCOMM_UNDER_BATON = 0;
  // Returns a description for people, such as "allreduce #5 of 64 bytes, FLOAT32, SUM".
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;
};

// An EndHandler is notified of the end of an internal operation, which has no request handle.
class EndHandler {
 public:
  // Handles the end of |operation|, with or without success. The operation is recycled afterwards.
  virtual void on_end(Operation& operation) HETCOMM_UNDER_BATON = 0;

 protected:
  ~EndHandler() = default;
};

// An OperationCarrier carries operations to a peer, and can end each of them.
class OperationCarrier {
 public:
  // Ends |operation| in any phase. Once it has completed, nothing accesses its memory. Succeeds
  // even if out of memory.
  virtual void end(Operation& operation, Code code, std::string text) HETCOMM_UNDER_BATON = 0;

 protected:
  ~OperationCarrier() = default;
};

// BodyRoom is space in an operation for a body, which is state that another module of core attaches
// to the operation. That module defines the type. All members of a body are initially zero, and
// keep their values when the slot is reused.
template <size_t kBytes>
class alignas(uint64_t) BodyRoom {
 public:
  // Only body_of() calls this.
  template <typename Body>
  Body& as() {
    static_assert(sizeof(Body) <= kBytes && alignof(Body) <= alignof(BodyRoom));
    static_assert(std::is_aggregate_v<Body> && std::is_trivially_copyable_v<Body>);
    return *std::launder(reinterpret_cast<Body*>(bytes_.data()));
  }

 private:
  std::array<std::byte, kBytes> bytes_{};
};

// A piece of a message: host memory, or device memory that must be staged.
struct BufferPiece {
  Memory* memory;   // null: host memory
  uint64_t offset;  // in |memory|; the address if |memory| is null
  uint64_t length;
  bool operator==(const BufferPiece&) const = default;
};
// The memory of an operation's lists of pieces. A caller that repeats an operation keeps this
// memory between runs.
struct PieceLists {
  std::vector<BufferPiece> pieces;
  std::vector<iovec> extents;
};

// A SlotBlock summarizes kSlots adjacent slots for the sweep, which skips them if no operation in
// them is new or due.
struct SlotBlock {
  static constexpr size_t kSlots = 64;
  uint64_t look_at_ns = ~uint64_t{0};
  bool has_new = false;  // an operation has begun since the last visit
};

inline constexpr size_t kOperationAlign = 256;

struct alignas(kOperationAlign) Operation {
  // [any-thread]
  OperationState state() const { return state_in(word.load(std::memory_order_acquire)); }
  uint32_t generation() const { return generation_in(word.load(std::memory_order_relaxed)); }
  bool is(uint32_t generation, OperationState state) const {
    return word.load(std::memory_order_acquire) == make_word(generation, state);
  }
  // Claims a prepared operation in order to start it. Returns false if it cannot be started.
  bool claim_prepared(uint32_t generation) {
    return exchange(generation, OperationState::kPrepared);
  }
  // Claims a complete operation for reporting. Returns false if |generation| is stale or another
  // thread was first.
  bool claim(uint32_t generation) { return exchange(generation, OperationState::kComplete); }
  // Only the operation's owner calls set_state() and expire().
  void set_state(OperationState state) {
    word.store(make_word(generation(), state), std::memory_order_release);
  }
  // Sets the state and invalidates all handles.
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
    std::vector<BufferPiece> pieces;  // empty if |extent| covers everything
    // True if the CPU can access all pieces. extents() then covers all of them.
    bool on_host = true;
    // True if extents() covers all pieces although |on_host| is false. Some of its addresses are
    // then placeholders, for transports that can access the devices.
    bool has_placeholders = false;
    std::vector<iovec> extent_list;  // host view of |pieces|; empty while |extent| is used
  };
  // The operation is in at most one list at a time: match table, outbox, submission queue or free
  // list.
  struct Links {
    Operation* next = nullptr;
    Operation* previous = nullptr;
    uint64_t stamp = 0;  // posting order, in a match table
  };
  // Options chosen by the caller, or by core for its own messages.
  struct Options {
    bool collective = false;  // on the collective channel
    bool high_priority = false;
    bool on_track = false;              // a track carries it
    bool fail_on_any_loss : 1 = false;  // fails if any sender is lost; a bit, as the line is full
    bool on_stream : 1 = false;         // |order| names the stream
    bool gated : 1 = false;             // owns a departure (DepartureSeat) until it starts
  };
  // The operation's position in the order of a user's stream.
  struct Order {
    UserStream* stream = nullptr;  // counts this operation as a user
    StreamHold* hold = nullptr;    // holds |stream|; set when the operation joins its departure
  };
  // The state of one run of the operation.
  struct Run {
    uint64_t sent = 0;          // send: bytes of an eager message already sent
    uint64_t pull_id = 0;       // send: id of its kPull if its bytes are pushed instead; else 0
    uint64_t deadline_ns = 0;   // 0: not set yet
    uint64_t submitted_ns = 0;  // 0: not recorded yet
    bool stall_reported = false;
  };
  // The operation's result, which its completion reports. All members are written before the state
  // becomes kComplete.
  struct Outcome {
    Code code = Code::kOk;
    int32_t source = -1;  // job rank; once complete, rank in the communicator
    uint64_t matched_tag = 0;
    uint64_t bytes_sent = 0;
    uint64_t bytes_received = 0;
    std::unique_ptr<std::string> text;

    // Returns the text, or the code's default text. Allocates no memory.
    std::string_view why() const { return text ? std::string_view(*text) : code_text(code); }
    // Resets the outcome for a new run, except for |text|.
    void begin(int32_t from, uint64_t with_tag) {
      code = Code::kOk;
      source = from;
      matched_tag = with_tag;
      bytes_sent = bytes_received = 0;
    }
  };
  // Members of internal operations, which are detached and report their end to |handler|.
  struct Internal {
    EndHandler* handler = nullptr;  // null: not an internal operation
    uint64_t cookie = 0;            // private to the handler
  };
  // The operation's slot in the pool. All operations that use the slot share these members.
  struct Slot {
    Engine* engine = nullptr;
    SlotBlock* block = nullptr;
    std::atomic<Operation*> shared_next{nullptr};  // list of slots for threads without the baton
  };
  // The position that a one-sided operation accesses in a registered memory.
  struct Target {
    uint64_t offset = 0;
    uint64_t ahead = 0;  // bytes that were moved earlier; |offset| is after them
  };

  // Space for the bodies of other modules.
  struct Bodies {
    BodyRoom<16> transfer;   // Transfers, of peer/transfer
    BodyRoom<16> track;      // TrackRun, of peer/matching
    BodyRoom<16> departure;  // DepartureSeat, of job
    BodyRoom<8> direct;      // DirectCarrier, of peer/access
    BodyRoom<80> access;     // AccessState, of memory
  };

  // First cache line: members that every match reads and every post writes.
  std::atomic<uint64_t> word{make_word(1, OperationState::kIdle)};
  OperationKind kind = OperationKind::kSend;
  OperationPhase phase = OperationPhase::kSubmitted;
  bool prepared = false;
  bool detached = false;  // released while running, so no thread claims it
  Options options;
  uint32_t channel = 0;  // send: number of the receiver's channel
  int32_t peer = -1;     // job rank, -1: any
  uint64_t tag = 0;
  uint64_t ignore = 0;
  uint64_t length = 0;  // bytes in the pieces
  CommunicatorBase* communicator = nullptr;
  OperationCarrier* carrier = nullptr;  // send, or matched receive: its pair

  // Second to fourth cache lines: further members that a common message uses.
  Buffers buffers;
  Links links;
  // This operation's index, from 1, in the list of a thread that waits for any of several
  // operations; 0 if there is none. It is a hint, which any thread may write.
  std::atomic<uint32_t> wait_index{0};
  Run run;
  Outcome outcome;
  uint64_t timeout_ns = 0;

  // Rarely used members, except for |slot|, which every post uses.
  CompositeOperation* composite = nullptr;  // kCollective: owned until it is started
  Slot slot;
  Internal internal;
  Order order;
  Target target;
  Bodies bodies;

  Extents extents() const {
    return buffers.extent_list.empty() ? Extents(&buffers.extent, 1) : Extents(buffers.extent_list);
  }
  // Removes the first |bytes|, which a one-sided operation has already moved. The operation then
  // covers only the rest.
  void drop_front(uint64_t bytes);
  void clear_pieces() {
    buffers.pieces.clear();
    buffers.extent_list.clear();
  }
  // Gives the memory of |lists| to the operation, or takes it back. Both must be without pieces.
  void swap_lists(PieceLists& lists) {
    buffers.pieces.swap(lists.pieces);
    buffers.extent_list.swap(lists.extents);
  }
};
// Returns |operation|'s body of type |Body|. Body::kRoom is its member in Bodies.
template <typename Body>
Body& body_of(Operation& operation) {
  return (operation.bodies.*Body::kRoom).template as<Body>();
}
template <typename Body>
const Body& body_of(const Operation& operation) {
  return body_of<Body>(const_cast<Operation&>(operation));
}

// Matching accesses only the first cache line. Posting and completing a common message accesses
// five.
static_assert(sizeof(Operation) == kOperationAlign * 2 && offsetof(Operation, buffers) == 64 &&
              offsetof(Operation, composite) == 256 && offsetof(Operation, internal) <= 320);

// Returns a description for people of the operation, its peer and its length.
std::string describe(const Operation& operation) HETCOMM_UNDER_BATON;

// Holds operations in slabs of slots. All calls need the baton, except recycle() and
// allocate_shared().
//
// A slot that is released without the baton is only marked kFree, which usually needs no atomic
// read-modify-write. A small ring of hints tells the pool where to look. A hint can be lost if two
// threads release slots at the same time, so the pool checks every slot before it grows.
class OperationPool {
 public:
  explicit OperationPool(Engine* engine) : engine_(engine) {}

  // Allocates a slot. Returns null if out of memory.
  Operation* allocate() HETCOMM_UNDER_BATON {
    // The most recently released slot is probably still in the cache.
    Operation* operation = has_hints() ? take_hint() : nullptr;
    if (operation != nullptr) return operation;
    if (free_ == nullptr) refill();
    operation = free_;
    if (operation == nullptr) return nullptr;
    free_ = operation->links.next;
    operation->links.next = nullptr;
    return operation;
  }
  // Allocates a slot without the baton. Returns null if no shared slot is left. The caller then
  // calls add_shared() under the baton. [any-thread]
  Operation* allocate_shared();
  void add_shared() HETCOMM_UNDER_BATON;
  // Invalidates all handles of |operation| and releases the slot. [any-thread]
  void recycle(Operation* operation) {
    if (operation->outcome.text) [[unlikely]]
      operation->outcome.text.reset();
    const uint32_t out = hints_out_.load(std::memory_order_relaxed);
    uint32_t at = hints_in_.load(std::memory_order_relaxed);
    if (static_cast<int32_t>(at - out) < 0) [[unlikely]]
      at = out;  // a race lost hints
    if (at - out >= kHints) [[unlikely]] {
      push_returned(operation);
      return;
    }
    operation->expire(OperationState::kFree);
    hints_[at % kHints].store(operation, std::memory_order_relaxed);
    hints_in_.store(at + 1, std::memory_order_release);
  }
  // Like recycle(), but needs the baton.
  void recycle_locked(Operation* operation) HETCOMM_UNDER_BATON {
    if (operation->outcome.text) operation->outcome.text.reset();
    operation->expire(OperationState::kIdle);
    operation->links.next = free_;
    free_ = operation;
  }

  // Calls use(slot) for the slots of all blocks in which an operation has begun or is due. |use|
  // returns the time of the next visit of the slot. sweep() returns the time at which the next
  // sweep is due.
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
  // Calls |use| for every slot. Meant for rare walks over all pending operations.
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
    // Operations that |use| begins or ends are recorded for the next sweep.
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
  // Except for the first, each slab is as large as all earlier ones together.
  std::array<Slab, 48> slabs_ HETCOMM_GUARDED_BY_BATON{};
  size_t slab_count_ HETCOMM_GUARDED_BY_BATON = 0;
  std::atomic<uint32_t> hints_out_{0};  // written under the baton
  std::atomic<uint32_t> hints_in_{0};   // written by all threads; racing writes may be lost
  std::array<std::atomic<Operation*>, kHints> hints_{};
  std::atomic<Operation*> returned_{nullptr};
  // The address of the first slot for threads without the baton. The high bits are a tag that
  // changes with every update, so that a compare-and-swap fails if the slot was taken and added
  // again.
  std::atomic<uint64_t> shared_{0};
};

// A decoded request handle. The handle holds the address of a slot, with 24 bits of generation in
// the bits that an aligned user-space address leaves free.
struct OperationRef {
  Operation* operation = nullptr;
  uint32_t generation = 0;

  bool is(OperationState state) const { return operation->is(generation, state); }
  // Returns whether the handle was released, or its operation was reported.
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
// Decodes |handle|. The operation is null for a null handle. Nothing else is checked.
inline OperationRef decode_handle(hetcomm_request_t* handle) {
  const uint64_t bits = reinterpret_cast<uint64_t>(handle);
  return {reinterpret_cast<Operation*>(bits & kHandleAddressMask),
          static_cast<uint32_t>((bits >> kHandleAddressBits) << kHandleLowBits |
                                (bits & kHandleLowMask))};
}

}  // namespace hetcomm
