// Operations in order of arrival. The list runs through Operation::next and Operation::previous, so
// that adding one allocates nothing; an operation is in one such list at a time.
#pragma once

#include "src/core/progress/operation.h"

namespace hetcomm {

class OperationQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  // The queue is not empty.
  Operation& front() const { return *first_; }

  void push_back(Operation& operation) {
    operation.next = nullptr;
    operation.previous = last_;
    (last_ != nullptr ? last_->next : first_) = &operation;
    last_ = &operation;
  }
  void push_front(Operation& operation) {
    operation.next = first_;
    operation.previous = nullptr;
    (first_ != nullptr ? first_->previous : last_) = &operation;
    first_ = &operation;
  }
  // |operation| is in this queue.
  void remove(Operation& operation) {
    (operation.previous != nullptr ? operation.previous->next : first_) = operation.next;
    (operation.next != nullptr ? operation.next->previous : last_) = operation.previous;
    operation.next = nullptr;
    operation.previous = nullptr;
  }

 private:
  Operation* first_ = nullptr;
  Operation* last_ = nullptr;
};

}  // namespace hetcomm
