#include "reshard/box.h"

#include <algorithm>

#include <fmt/format.h>

namespace hetcomm::reshard {

bool Box::is_empty() const {
  for (size_t i = 0; i < dimensions; ++i) {
    if (begin[i] >= end[i]) return true;
  }
  return false;
}

uint64_t Box::elements() const {
  uint64_t product = 1;
  for (size_t i = 0; i < dimensions; ++i) product *= end[i] > begin[i] ? extent(i) : 0;
  return product;
}

bool Box::contains(const Box& other) const {
  for (size_t i = 0; i < dimensions; ++i) {
    if (other.begin[i] < begin[i] || other.end[i] > end[i]) return false;
  }
  return true;
}

bool Box::overlaps(const Box& other) const {
  for (size_t i = 0; i < dimensions; ++i) {
    if (std::max(begin[i], other.begin[i]) >= std::min(end[i], other.end[i])) return false;
  }
  return true;
}

Box whole_of(const std::vector<uint64_t>& shape) {
  Box box;
  box.dimensions = shape.size();
  std::copy(shape.begin(), shape.end(), box.end.begin());
  return box;
}

Box intersection(const Box& one, const Box& other) {
  Box both;
  both.dimensions = one.dimensions;
  for (size_t i = 0; i < one.dimensions; ++i) {
    both.begin[i] = std::max(one.begin[i], other.begin[i]);
    both.end[i] = std::max(both.begin[i], std::min(one.end[i], other.end[i]));
  }
  return both;
}

std::string to_text(const Box& box) {
  std::string text = "[";
  for (size_t i = 0; i < box.dimensions; ++i) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ", ", box.begin[i], box.end[i]);
  }
  return text + "]";
}

}  // namespace hetcomm::reshard
