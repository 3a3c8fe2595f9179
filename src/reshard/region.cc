#include "src/reshard/region.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "src/base/copy.h"
#include "src/reduce/reduce.h"

namespace hetcomm::reshard {
namespace {

template <typename From, typename To>
void cast(const std::byte* from, std::byte* to, size_t elements) {
  for (size_t i = 0; i < elements; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    const To cast = static_cast<To>(value);
    std::memcpy(to + i * sizeof(To), &cast, sizeof(To));
  }
}

// Clamps to the finite range of float8_e4m3fn. NaN stays NaN.
void saturate(float* numbers, size_t count) {
  constexpr float kLargest = 448;
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = numbers[i] > kLargest ? kLargest : numbers[i];
    numbers[i] = numbers[i] < -kLargest ? -kLargest : numbers[i];
  }
}

// Converts |elements| contiguous elements.
void convert(ElementType from_type, const std::byte* from, ElementType to_type, std::byte* to,
             size_t elements, Overflow overflow) {
  if (from_type == ElementType::kFloat64) return cast<double, float>(from, to, elements);
  if (to_type == ElementType::kFloat64) return cast<float, double>(from, to, elements);
  const size_t from_bytes = reduce::size_of(from_type);
  const size_t to_bytes = reduce::size_of(to_type);
  std::array<float, 1024> wide;
  while (elements > 0) {
    const size_t count = std::min(elements, wide.size());
    if (from_type == ElementType::kFloat32) {
      std::memcpy(wide.data(), from, count * sizeof(float));
    } else {
      reduce::widen(from_type, wide.data(), from, count);
    }
    if (to_type == ElementType::kFloat8E4M3fn && overflow == Overflow::kSaturates) {
      saturate(wide.data(), count);
    }
    if (to_type == ElementType::kFloat32) {
      std::memcpy(to, wide.data(), count * sizeof(float));
    } else {
      reduce::narrow(to_type, to, wide.data(), count);
    }
    from += count * from_bytes;
    to += count * to_bytes;
    elements -= count;
  }
}

// Adds |elements| elements that have a narrower type, block by block.
void add_wider(ElementType from_type, const std::byte* from, ElementType to_type, std::byte* to,
               size_t elements) {
  constexpr size_t kBlock = 1024;
  std::array<std::byte, kBlock * sizeof(double)> wide;
  const size_t from_bytes = reduce::size_of(from_type);
  const size_t to_bytes = reduce::size_of(to_type);
  for (size_t done = 0; done < elements; done += kBlock) {
    const size_t count = std::min(kBlock, elements - done);
    std::byte* const target = to + done * to_bytes;
    convert(from_type, from + done * from_bytes, to_type, wide.data(), count, Overflow::kIsNan);
    const std::byte* const inputs[] = {target, wide.data()};
    reduce::combine(to_type, reduce::Operator::kSum, target, inputs, 2, count);
  }
}

// Calls use(from, to, elements) for each run of elements that is contiguous on both sides.
template <typename Use>
void for_each_run(const CopySide& from, const CopySide& to, Use&& use) {
  const uint64_t from_bytes = reduce::size_of(from.type);
  const uint64_t to_bytes = reduce::size_of(to.type);
  RowCursor source(*from.region);
  RowCursor target(*to.region);
  while (source.left() > 0 && target.left() > 0) {
    const uint64_t elements = std::min(source.left() / from_bytes, target.left() / to_bytes);
    use(from.base + source.offset(), to.base + target.offset(), elements);
    source.advance(elements * from_bytes);
    target.advance(elements * to_bytes);
  }
}

}  // namespace

Region region_of(const StridedBox& box, uint32_t tensor, uint64_t element_bytes, uint64_t base) {
  Region region;
  region.memory = box.memory;
  region.tensor = tensor;
  region.offset = base + box.offset * element_bytes;
  region.row_bytes = element_bytes;
  size_t dimensions = box.dimensions;
  if (dimensions > 0 && box.strides[dimensions - 1] == 1) {
    region.row_bytes *= box.extents[--dimensions];
  }
  region.dimensions = dimensions;
  for (size_t d = 0; d < dimensions; ++d) {
    region.extents[d] = box.extents[d];
    region.strides[d] = box.strides[d] * element_bytes;
    region.rows *= box.extents[d];
  }
  return region;
}

namespace {

// Iterates over the levels of a region (bytes, rows, planes, ...), from the innermost outwards.
// Each level has a count, and the distance between its members.
class Levels {
 public:
  explicit Levels(const Region& region)
      : region_(region), count_(region.row_bytes), left_(region.dimensions) {
    skip();
  }
  // Returns the count of the current level; 1 at the end.
  uint64_t count() const { return count_; }
  uint64_t stride() const { return stride_; }
  // Removes a factor |part|, which divides count().
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
  // The loop finds the innermost dimension first. The order is reversed at the end.
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

void copy(const CopySide& from, const CopySide& to, Overflow overflow) {
  if (from.type != to.type) {
    for_each_run(from, to, [&](const std::byte* source, std::byte* target, uint64_t elements) {
      convert(from.type, source, to.type, target, elements, overflow);
    });
    return;
  }
  const size_t element_bytes = reduce::size_of(from.type);
  for_each_run(from, to, [&](const std::byte* source, std::byte* target, uint64_t elements) {
    if (source != target) copy_long(target, source, elements * element_bytes);
  });
}

void add(const CopySide& from, const CopySide& to) {
  if (from.type != to.type) {
    for_each_run(from, to, [&](const std::byte* source, std::byte* target, uint64_t elements) {
      add_wider(from.type, source, to.type, target, elements);
    });
    return;
  }
  for_each_run(from, to, [&](const std::byte* source, std::byte* target, uint64_t elements) {
    const std::byte* const inputs[] = {target, source};
    reduce::combine(to.type, reduce::Operator::kSum, target, inputs, 2, elements);
  });
}

}  // namespace hetcomm::reshard
