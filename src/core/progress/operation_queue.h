// A queue of operations in order of arrival. The list runs through Operation::links, so that adding
// one allocates nothing; an operation is in one such list at a time.
#pragma once

#include "src/core/progress/operation.h"

namespace hetcomm {

class OperationQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  // The queue is not empty.
  Operation& front() const { return *first_; }

  void push_back(Operation& operation) {
    operation.links.next = nullptr;
    operation.links.previous = last_;
    (last_ != nullptr ? last_->links.next : first_) = &operation;
    last_ = &operation;
  }
  void push_front(Operation& operation) {
    operation.links.next = first_;
    operation.links.previous = nullptr;
    (first_ != nullptr ? first_->links.previous : last_) = &operation;
    first_ = &operation;
  }
  // |operation| is in this queue.
  void remove(Operation& operation) {
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
