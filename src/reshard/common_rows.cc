#include "src/reshard/common_rows.h"

#include <algorithm>

namespace hetcomm::reshard {
namespace {

// Iterates over the levels of a region (bytes, rows, planes, ...), from the innermost outwards.
// Each level has a member count, and a distance between its members.
class Levels {
 public:
  explicit Levels(const Region& region)
      : region_(region), count_(region.row_bytes), left_(region.dimensions) {
    skip();
  }
  // Returns the member count of the current level, or 1 after the last level.
  uint64_t count() const { return count_; }
  uint64_t stride() const { return stride_; }
  // Divides |part|, a factor of count(), out of the current level.
  void take(uint64_t part) {
    count_ /= part;
    stride_ *= part;
    skip();
  }

 private:
  void skip() {
    while (count_ == 1 && left_ > 0) {
      --left_;
      count_ = region_.extents[left_];
      stride_ = region_.strides[left_];
    }
  }

  const Region& region_;
  uint64_t count_;
  uint64_t stride_ = 1;
  size_t left_;
};

}  // namespace

bool find_common_rows(const Region& from, const Region& to, CommonRows* out) {
  CommonRows rows{.row_bytes = 1};
  // The loop finds the innermost dimension first, so the order is reversed at the end.
  size_t& count = rows.dimensions;
  Levels source(from);
  Levels target(to);
  while (source.count() > 1 && target.count() > 1) {
    const uint64_t part = std::min(source.count(), target.count());
    if (source.count() % part != 0 || target.count() % part != 0) return false;
    const uint64_t inner = count == 0 ? rows.row_bytes : rows.extents[count - 1];
    const uint64_t from_inner = count == 0 ? 1 : rows.from_strides[count - 1];
    const uint64_t to_inner = count == 0 ? 1 : rows.to_strides[count - 1];
    if (source.stride() == inner * from_inner && target.stride() == inner * to_inner) {
      (count == 0 ? rows.row_bytes : rows.extents[count - 1]) *= part;
    } else if (count == CommonRows::kMaxExtents) {
      return false;
    } else {
      rows.extents[count] = part;
      rows.from_strides[count] = source.stride();
      rows.to_strides[count] = target.stride();
      ++count;
    }
    source.take(part);
    target.take(part);
  }
  for (auto* sizes : {&rows.extents, &rows.from_strides, &rows.to_strides}) {
    std::reverse(sizes->begin(), sizes->begin() + static_cast<ptrdiff_t>(count));
  }
  *out = rows;
  return source.count() == 1 && target.count() == 1;
}

}  // namespace hetcomm::reshard
