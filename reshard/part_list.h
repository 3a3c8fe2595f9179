// A PartList holds the parts of a layout. Copies of a list share their parts until one of them is
// changed (copy on write). Plans can therefore share layouts without copying the parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "reshard/box.h"

namespace hetcomm::reshard {

// A Part is one box that one rank holds. The element with index |i|, relative to the beginning of
// the box, is offset + sum(i[d] * strides[d]) elements after the beginning of the rank's memory for
// the tensor.
struct Part {
  int rank = 0;
  Box box;
  uint32_t copy = 0;  // parts of a term with the same number form one copy of it
  uint32_t term = 0;  // term of the sum; 0 if the tensor is not a sum
  uint64_t offset = 0;
  Numbers strides{};
  bool operator==(const Part&) const = default;
};

// Behaves like a const std::vector. edit() returns the vector for changes.
class PartList {
 public:
  PartList() = default;
  PartList(std::initializer_list<Part> parts) : PartList(std::vector<Part>(parts)) {}
  explicit PartList(std::vector<Part> parts)
      : parts_(std::make_shared<std::vector<Part>>(std::move(parts))) {}

  size_t size() const { return parts_ == nullptr ? 0 : parts_->size(); }
  bool empty() const { return size() == 0; }
  const Part* begin() const { return parts_ == nullptr ? nullptr : parts_->data(); }
  const Part* end() const { return begin() + size(); }
  const Part& operator[](size_t index) const { return (*parts_)[index]; }
  const Part& front() const { return parts_->front(); }
  const Part& back() const { return parts_->back(); }
  bool operator==(const PartList& other) const {
    if (parts_ == other.parts_) return true;
    return size() == other.size() && (empty() || *parts_ == *other.parts_);
  }

  // Returns the vector for changes, and first copies it if other lists share it. No other thread
  // may use this list during the call.
  std::vector<Part>& edit() {
    if (parts_ == nullptr) {
      parts_ = std::make_shared<std::vector<Part>>();
    } else if (parts_.use_count() > 1) {
      parts_ = std::make_shared<std::vector<Part>>(*parts_);
    }
    return *parts_;
  }
  void push_back(const Part& part) { edit().push_back(part); }
  void reserve(size_t count) { edit().reserve(count); }
  void clear() { parts_.reset(); }

 private:
  std::shared_ptr<std::vector<Part>> parts_;
};

}  // namespace hetcomm::reshard
