// Encodes and performs atomic operations on remote memory, for both sides of a pair.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/core/memory/access_state.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/wire/wire.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

inline bool is_atomic(const Operation& operation) {
  return operation.kind == OperationKind::kFetchAdd ||
         operation.kind == OperationKind::kCompareSwap;
}

// Returns the range of remote memory that |operation| accesses.
inline AccessBody access_body_of(const Operation& operation) {
  return {access_of(operation).remote->id(), operation.target.offset, operation.length};
}

inline AtomicBody atomic_body_of(const Operation& operation) {
  const AtomicAction action =
      operation.kind == OperationKind::kFetchAdd ? AtomicAction::kAdd : AtomicAction::kCompareSwap;
  return {access_body_of(operation), action, access_of(operation).operand,
          access_of(operation).compare};
}

inline bool is_aligned_word(const std::byte* at) {
  return reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) == 0;
}

// Applies the operation to the word at |at|, which is aligned. Returns the previous value.
inline uint64_t do_atomic(std::byte* at, const AtomicBody& body) {
  const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(at));
  if (body.action == AtomicAction::kAdd) return word.fetch_add(body.operand);
  uint64_t seen = body.compare;
  word.compare_exchange_strong(seen, body.operand);
  return seen;
}

}  // namespace hetcomm
