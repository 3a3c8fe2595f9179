#include "src/core/progress/operation.h"

#include <algorithm>
#include <new>

#include <fmt/core.h>

#include "src/base/baton_role.h"

namespace hetcomm {
namespace {

const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kSend:
      return "send to";
    case OperationKind::kReceive:
      return "receive from";
    case OperationKind::kPut:
      return "put to";
    case OperationKind::kGet:
      return "get from";
    case OperationKind::kFetchAdd:
      return "fetch_add at";
    case OperationKind::kCompareSwap:
      return "compare_swap at";
    case OperationKind::kFlush:
      return "flush to";
    case OperationKind::kAccept:
      return "put here by";
    case OperationKind::kAnswer:
      return "get here by";
    case OperationKind::kCollective:
      return "collective operation with";
  }
  return "operation with";
}

}  // namespace

std::string describe(const Operation& operation) {
  if (operation.kind == OperationKind::kCollective) {
    return operation.composite != nullptr ? operation.composite->describe()
                                          : "collective operation";
  }
  const std::string rank = operation.peer < 0 ? "any rank" : fmt::format("rank {}", operation.peer);
  if (operation.kind == OperationKind::kFlush) {
    return fmt::format("{} {}", name_of(operation.kind), rank);
  }
  if (operation.kind > OperationKind::kReceive) {
    return fmt::format("{} {}, offset {}, {} bytes", name_of(operation.kind), rank,
                       operation.target.offset - operation.target.ahead,
                       operation.length + operation.target.ahead);
  }
  return fmt::format("{} {}, tag {:#x}, {} bytes", name_of(operation.kind), rank, operation.tag,
                     operation.length);
}

void Operation::drop_front(uint64_t bytes) {
  length -= bytes;
  target.offset += bytes;
  target.ahead += bytes;
  // Empty pieces stay in the list, because each piece holds a use of its memory, which is released
  // when the operation ends.
  uint64_t rest = bytes;
  for (BufferPiece& piece : buffers.pieces) {
    const uint64_t part = std::min(rest, piece.length);
    piece.offset += part;
    piece.length -= part;
    rest -= part;
  }
  rest = bytes;
  const auto shorten = [&rest](iovec& view) {
    const size_t part = std::min<uint64_t>(rest, view.iov_len);
    view = {static_cast<std::byte*>(view.iov_base) + part, view.iov_len - part};
    rest -= part;
  };
  if (buffers.extent_list.empty()) {
    shorten(buffers.extent);
    return;
  }
  for (iovec& view : buffers.extent_list) shorten(view);
  std::erase_if(buffers.extent_list, [](const iovec& view) { return view.iov_len == 0; });
}

void OperationPool::push_returned(Operation* operation) {
  operation->expire(OperationState::kIdle);
  Operation* head = returned_.load(std::memory_order_relaxed);
  do {
    operation->links.next = head;
  } while (!returned_.compare_exchange_weak(head, operation, std::memory_order_release,
                                            std::memory_order_relaxed));
}

Operation* OperationPool::allocate_shared() {
  uint64_t head = shared_.load(std::memory_order_acquire);
  while (true) {
    auto* operation = reinterpret_cast<Operation*>(head & kHandleAddressMask);
    if (operation == nullptr) return nullptr;
    // |next| is stale if another thread has taken the slot in the meantime. The tag then makes the
    // compare-and-swap fail.
    const auto next =
        reinterpret_cast<uint64_t>(operation->slot.shared_next.load(std::memory_order_relaxed));
    const uint64_t tagged = next | ((head >> kHandleAddressBits) + 1) << kHandleAddressBits;
    if (shared_.compare_exchange_weak(head, tagged, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      return operation;
    }
  }
}

void OperationPool::add_shared() {
  for (size_t i = 0; i < kShared; ++i) {
    Operation* operation = allocate();
    if (operation == nullptr) return;
    uint64_t head = shared_.load(std::memory_order_relaxed);
    uint64_t tagged = 0;
    do {
      operation->slot.shared_next.store(reinterpret_cast<Operation*>(head & kHandleAddressMask),
                                        std::memory_order_relaxed);
      tagged = reinterpret_cast<uint64_t>(operation) | ((head >> kHandleAddressBits) + 1)
                                                           << kHandleAddressBits;
    } while (!shared_.compare_exchange_weak(head, tagged, std::memory_order_acq_rel,
                                            std::memory_order_relaxed));
  }
}

void OperationPool::refill() {
  free_ = returned_.exchange(nullptr, std::memory_order_acquire);
  if (free_ != nullptr) return;
  // If the search finds few slots, another search would soon be necessary, so slots are added as
  // well.
  if (8 * collect_free() <= slot_count()) grow();
}

// Collects released slots whose hint was lost. Returns their number.
size_t OperationPool::collect_free() {
  size_t found = 0;
  for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.state() != OperationState::kFree) return;
    operation.set_state(OperationState::kIdle);
    operation.links.next = free_;
    free_ = &operation;
    ++found;
  });
  return found;
}

// Doubles the number of slots, so that the cost of the preceding search is small per new slot.
void OperationPool::grow() {
  if (slab_count_ == slabs_.size()) return;
  const size_t count = kFirstSlab << (slab_count_ == 0 ? 0 : slab_count_ - 1);
  std::unique_ptr<Operation[]> slots(new (std::nothrow) Operation[count]);
  std::unique_ptr<SlotBlock[]> blocks(new (std::nothrow) SlotBlock[count / SlotBlock::kSlots]);
  if (!slots || !blocks) return;
  const Slab& slab = slabs_[slab_count_++] = {std::move(slots), std::move(blocks), count};
  for (size_t i = count; i-- > 0;) {
    Operation& operation = slab.slots[i];
    operation.slot.engine = engine_;
    operation.slot.block = &slab.blocks[i / SlotBlock::kSlots];
    operation.links.next = free_;
    free_ = &operation;
  }
}

}  // namespace hetcomm
