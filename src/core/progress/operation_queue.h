// OperationQueue is a list of operations, linked through Operation::links, so adding an operation
// allocates no memory. An operation can be in only one such list at a time.
#pragma once

#include "src/base/baton_role.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class OperationQueue {
 public:
  bool empty() const HETCOMM_UNDER_BATON { return first_ == nullptr; }
  // Returns the first operation. The queue must not be empty.
  Operation& front() const HETCOMM_UNDER_BATON { return *first_; }

  void push_back(Operation& operation) HETCOMM_UNDER_BATON {
    operation.links.next = nullptr;
    operation.links.previous = last_;
    (last_ != nullptr ? last_->links.next : first_) = &operation;
    last_ = &operation;
  }
  void push_front(Operation& operation) HETCOMM_UNDER_BATON {
    operation.links.next = first_;
    operation.links.previous = nullptr;
    (first_ != nullptr ? first_->links.previous : last_) = &operation;
    first_ = &operation;
  }
  // Removes |operation|, which must be in this queue.
  void remove(Operation& operation) HETCOMM_UNDER_BATON {
    (operation.links.previous != nullptr ? operation.links.previous->links.next : first_) =
        operation.links.next;
    (operation.links.next != nullptr ? operation.links.next->links.previous : last_) =
        operation.links.previous;
    operation.links.next = nullptr;
    operation.links.previous = nullptr;
  }

 private:
  Operation* first_ = nullptr;
  Operation* last_ = nullptr;
};

}  // namespace hetcomm
