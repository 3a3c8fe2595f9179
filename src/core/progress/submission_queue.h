// SubmissionQueue holds operations that threads without the baton leave to its holder. It is
// lock-free: many threads push, and the holder takes the whole queue at once.
#pragma once

#include <atomic>

#include "src/base/baton_role.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class SubmissionQueue {
 public:
  bool empty() const { return newest_.load(std::memory_order_relaxed) == nullptr; }

  // Adds |operation|. [any-thread]
  void push(Operation& operation) {
    Operation* head = newest_.load(std::memory_order_relaxed);
    do {
      operation.links.next = head;
    } while (!newest_.compare_exchange_weak(head, &operation, std::memory_order_seq_cst,
                                            std::memory_order_relaxed));
  }

  // Empties the queue. Returns its operations in the order of arrival, linked through
  // Operation::links.
  Operation* take() HETCOMM_UNDER_BATON {
    Operation* stack = newest_.exchange(nullptr, std::memory_order_acquire);
    Operation* ordered = nullptr;
    while (stack != nullptr) {
      Operation* const next = stack->links.next;
      stack->links.next = ordered;
      ordered = stack;
      stack = next;
    }
    return ordered;
  }

 private:
  std::atomic<Operation*> newest_{nullptr};  // a stack: the newest operation first
};

}  // namespace hetcomm
