// A Line is a queue whose entries are stored in one block of memory. It suits many short queues.
#pragma once

#include <cstddef>
#include <vector>

namespace hetcomm::pipeline {

template <typename Entry>
class Line {
 public:
  bool empty() const { return first_ == entries_.size(); }
  const Entry& front() const { return entries_[first_]; }
  void push_back(const Entry& entry) { entries_.push_back(entry); }
  void pop_front() {
    ++first_;
    // Compacts only when at least half of the entries have left, so that moving them is cheap.
    if (2 * first_ < entries_.size()) return;
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }

 private:
  std::vector<Entry> entries_;
  size_t first_ = 0;  // index of the front; the entries before it have been removed
};

}  // namespace hetcomm::pipeline
