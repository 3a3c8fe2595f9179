// One asynchronous operation and the pool that holds them.
//
//   kFree --allocate--> kIdle --submit--> kPending --complete--> kComplete --consume--> kFree
//                         ^                                          |
//                         +--------------- prepared -----------------+
//
// An Operation belongs to whoever holds the baton while it is pending, and to the thread that consumes it once
// it is complete. Slots never move and their memory is never given back before the context ends, so that a stale handle
// can be recognised by its generation.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"

#include <hetcomm/request.h>

namespace hetcomm {

class Communicator;
class Engine;
class Memory;
class Pair;
struct Incoming;
class SendTransfer;
class ReceiveTransfer;

enum class OperationState : uint32_t { kFree, kIdle, kPending, kComplete };
enum class OperationKind : uint8_t { kSend, kReceive };

// Where a pending operation stands, so that it can be ended from anywhere.
enum class OperationStage : uint8_t {
  kSubmitted,    // in the submission queue, or collected in a group
  kQueued,       // send: in its pair's outbox
  kPosted,       // receive: in the match table
  kArriving,     // receive: matched, eager fragments still coming
  kTransfer,     // rendezvous under way
  kCopying,      // waits for device copies only
};

// A piece of a message: host memory, or device memory that has to be staged.
struct BufferPiece {
  Memory* memory;   // null: host
  uint64_t offset;  // host: address
  uint64_t length;
};

inline constexpr size_t kOperationAlign = 256;

struct alignas(kOperationAlign) Operation {
  std::atomic<OperationState> state{OperationState::kFree};
  std::atomic<uint32_t> generation{1};  // 24 bits used
  OperationKind kind = OperationKind::kSend;
  OperationStage stage = OperationStage::kSubmitted;
  bool prepared = false;
  bool detached = false;         // released while running: nobody consumes it
  bool on_host = true;           // all pieces can be touched by the CPU: |segments| is filled
  bool high_priority = false;
  bool fail_on_any_loss = false;
  bool collective = false;       // on the collective channel

  uint16_t channel = 0;          // wire id of the communicator
  Communicator* communicator = nullptr;
  int32_t peer = -1;             // rank in the mesh, -1: any
  uint64_t tag = 0;
  uint64_t ignore = 0;
  uint64_t length = 0;           // bytes in the pieces
  iovec inline_segment{};        // the segments when there is one
  Segments segments;             // host view of the pieces
  uint64_t sent = 0;             // send: bytes of an eager message that have left

  // Links: match table or outbox, submission queue, free list. One at a time.
  Operation* next = nullptr;
  Operation* previous = nullptr;
  uint64_t stamp = 0;            // posting order
  Pair* pair = nullptr;          // send, or matched receive
  SendTransfer* send_transfer = nullptr;
  ReceiveTransfer* receive_transfer = nullptr;

  uint64_t timeout_ns = 0;
  uint64_t deadline_ns = 0;      // 0: not counted from yet
  uint64_t submitted_ns = 0;     // 0: not noted yet
  bool stall_reported = false;

  // The outcome; written before state becomes kComplete.
  Code code = Code::kOk;
  int32_t source = -1;           // mesh rank
  uint64_t matched_tag = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  std::unique_ptr<std::string> text;

  Engine* engine = nullptr;
  std::vector<BufferPiece> pieces;   // empty when the one host segment says all
  std::vector<iovec> segment_list;   // storage of |segments| when there are several
};

// Slab of operations. allocate() under the baton; recycle() from any thread.
class OperationPool {
 public:
  explicit OperationPool(Engine* engine) : engine_(engine) {}

  // Null when memory is exhausted.
  Operation* allocate() {
    if (free_ == nullptr) refill();
    Operation* operation = free_;
    if (operation == nullptr) return nullptr;
    free_ = operation->next;
    operation->next = nullptr;
    operation->state.store(OperationState::kIdle, std::memory_order_relaxed);
    return operation;
  }
  // The same without the baton, null when this pool has none left: then add_shared() under the baton.
  Operation* allocate_shared();
  void add_shared();
  // Makes all handles of |operation| stale and gives the slot back.
  void recycle(Operation* operation);
  // The same for whoever holds the baton.
  void recycle_locked(Operation* operation) {
    retire(operation);
    operation->next = free_;
    free_ = operation;
  }

  // Makes all handles of a slot that stays in use stale.
  static void expire_handles(Operation& operation);

  // Every slot, for rare walks over what is pending. Under the baton.
  template <typename Use>
  void for_each(Use&& use) {
    for (const auto& block : blocks_) {
      for (size_t i = 0; i < kBlock; ++i) use(block[i]);
    }
  }

 private:
  static constexpr size_t kBlock = 64;
  static void retire(Operation* operation);
  void refill();

  Engine* engine_;
  Operation* free_ = nullptr;
  std::atomic<Operation*> returned_{nullptr};
  std::atomic<uint64_t> shared_{0};  // address of the first, and a tag against reuse between look and swap
  std::vector<std::unique_ptr<Operation[]>> blocks_;
};

// Handle: address of the slot with 24 bits of generation in the bits that an aligned user-space address leaves free.
hetcomm_request_t* encode_handle(const Operation* operation);
// Null for a null handle, or when the generation is not the slot's (stale).
Operation* decode_handle(hetcomm_request_t* handle);

}  // namespace hetcomm
