#include "reshard/box.h"

#include <algorithm>
#include <numeric>

#include <fmt/core.h>

namespace hetcomm::reshard {
namespace {

// Returns the dimension in which the boxes have the most distinct start indices.
size_t widest_dimension(const std::vector<Box>& boxes) {
  size_t best = 0;
  size_t most = 0;
  for (size_t i = 0; i < boxes.front().dimensions; ++i) {
    std::vector<uint64_t> begins;
    for (const Box& box : boxes) begins.push_back(box.begin[i]);
    std::sort(begins.begin(), begins.end());
    const auto count =
        static_cast<size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (count > most) {
      most = count;
      best = i;
    }
  }
  return best;
}

}  // namespace

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

// Sweeps along one dimension, and compares each box with the boxes that have not ended before it.
std::optional<std::pair<size_t, size_t>> find_overlap(const std::vector<Box>& boxes) {
  if (boxes.size() < 2) return std::nullopt;
  const size_t along = widest_dimension(boxes);
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t one, size_t other) {
    return boxes[one].begin[along] < boxes[other].begin[along];
  });
  std::vector<size_t> open;
  for (const size_t index : order) {
    const Box& box = boxes[index];
    std::erase_if(open, [&](size_t each) { return boxes[each].end[along] <= box.begin[along]; });
    for (const size_t each : open) {
      if (boxes[each].overlaps(box)) return std::minmax(each, index);
    }
    open.push_back(index);
  }
  return std::nullopt;
}

std::string to_text(const Box& box) {
  std::string text = "[";
  for (size_t i = 0; i < box.dimensions; ++i) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ", ", box.begin[i], box.end[i]);
  }
  return text + "]";
}

}  // namespace hetcomm::reshard
