#include "src/core/operation.h"

#include <new>

namespace hetcomm {
namespace {

constexpr uint64_t kLowBits = 8;
constexpr uint64_t kLowMask = (1u << kLowBits) - 1;
constexpr uint64_t kAddressBits = 48;
constexpr uint64_t kAddressMask = ((uint64_t{1} << kAddressBits) - 1) & ~kLowMask;
constexpr uint32_t kGenerationMask = 0xffffff;

static_assert(kOperationAlign == kLowMask + 1);

}  // namespace

void OperationPool::expire_handles(Operation& operation) {
  uint32_t generation =
      (operation.generation.load(std::memory_order_relaxed) + 1) & kGenerationMask;
  if (generation == 0) generation = 1;
  operation.generation.store(generation, std::memory_order_relaxed);
}

void OperationPool::retire(Operation* operation) {
  expire_handles(*operation);
  operation->state.store(OperationState::kFree, std::memory_order_relaxed);
  if (operation->text) operation->text.reset();
}

void OperationPool::recycle(Operation* operation) {
  retire(operation);
  Operation* head = returned_.load(std::memory_order_relaxed);
  do {
    operation->next = head;
  } while (!returned_.compare_exchange_weak(head, operation, std::memory_order_release,
                                            std::memory_order_relaxed));
}

Operation* OperationPool::allocate_shared() {
  uint64_t head = shared_.load(std::memory_order_acquire);
  while (true) {
    auto* operation = reinterpret_cast<Operation*>(head & kAddressMask);
    if (operation == nullptr) return nullptr;
    // |next| may be stale when another thread took the slot meanwhile; the tag makes the swap fail then.
    const auto next = reinterpret_cast<uint64_t>(
        __atomic_load_n(&operation->next, __ATOMIC_RELAXED));
    const uint64_t tagged = next | ((head >> kAddressBits) + 1) << kAddressBits;
    if (shared_.compare_exchange_weak(head, tagged, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      operation->next = nullptr;
      return operation;
    }
  }
}

void OperationPool::add_shared() {
  for (size_t i = 0; i < kBlock; ++i) {
    Operation* operation = allocate();
    if (operation == nullptr) return;
    uint64_t head = shared_.load(std::memory_order_relaxed);
    uint64_t tagged = 0;
    do {
      __atomic_store_n(&operation->next, reinterpret_cast<Operation*>(head & kAddressMask),
                       __ATOMIC_RELAXED);
      tagged = reinterpret_cast<uint64_t>(operation) | ((head >> kAddressBits) + 1) << kAddressBits;
    } while (!shared_.compare_exchange_weak(head, tagged, std::memory_order_acq_rel,
                                            std::memory_order_relaxed));
  }
}

void OperationPool::refill() {
  free_ = returned_.exchange(nullptr, std::memory_order_acquire);
  if (free_ != nullptr) return;
  std::unique_ptr<Operation[]> block(new (std::nothrow) Operation[kBlock]);
  if (!block) return;
  for (size_t i = kBlock; i-- > 0;) {
    block[i].engine = engine_;
    block[i].next = free_;
    free_ = &block[i];
  }
  blocks_.push_back(std::move(block));
}

hetcomm_request_t* encode_handle(const Operation* operation) {
  const uint64_t generation = operation->generation.load(std::memory_order_relaxed);
  const uint64_t bits = reinterpret_cast<uint64_t>(operation) | (generation & kLowMask) |
                        (generation >> kLowBits) << kAddressBits;
  return reinterpret_cast<hetcomm_request_t*>(bits);
}

Operation* decode_handle(hetcomm_request_t* handle) {
  const uint64_t bits = reinterpret_cast<uint64_t>(handle);
  auto* operation = reinterpret_cast<Operation*>(bits & kAddressMask);
  if (operation == nullptr) return nullptr;
  const uint64_t generation = (bits >> kAddressBits) << kLowBits | (bits & kLowMask);
  if (operation->generation.load(std::memory_order_relaxed) != generation) return nullptr;
  return operation;
}

}  // namespace hetcomm
