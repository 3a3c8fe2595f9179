#include "src/reshard/region_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "src/base/copy.h"
#include "src/reduce/reduce.h"
#include "src/reshard/common_rows.h"
#include "src/reshard/strided_copy.h"

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

// Converts |elements| contiguous elements of |from|.
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

// Adds |elements| elements of a narrower type to |to|, block by block.
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

// Returns |region| with sizes in elements of |element_bytes| instead of bytes.
Region in_elements(const Region& region, uint64_t element_bytes) {
  Region result = region;
  result.row_bytes /= element_bytes;
  for (size_t d = 0; d < region.dimensions; ++d) result.strides[d] /= element_bytes;
  return result;
}

// Returns the rows for copying |part|, whose sizes are in elements, from one side to a dense block,
// or with |back| from the block to the side. The block holds the rows in the order of |part|.
CommonRows to_block(const CommonRows& part, const CommonRows::Sizes& strides,
                    uint64_t element_bytes, bool back) {
  CommonRows rows = part;
  rows.row_bytes *= element_bytes;
  uint64_t dense = rows.row_bytes;
  for (size_t d = part.dimensions; d-- > 0;) {
    const uint64_t far = strides[d] * element_bytes;
    rows.from_strides[d] = back ? dense : far;
    rows.to_strides[d] = back ? far : dense;
    dense *= part.extents[d];
  }
  return rows;
}

// If the rows that are contiguous on both sides are short, calls use(source, target, elements) for
// dense blocks of elements, and then copies |target| to its destination. With |reads|, |target|
// first gets the destination's elements. Returns false, and does nothing, if the rows are long or
// the two sides have no common rows.
template <typename Use>
bool by_blocks(const CopySide& from, const CopySide& to, bool reads, Use&& use) {
  constexpr size_t kBlockBytes = 16u << 10;
  const uint64_t from_bytes = reduce::size_of(from.type);
  const uint64_t to_bytes = reduce::size_of(to.type);
  CommonRows rows;
  if (!find_common_rows(in_elements(*from.region, from_bytes), in_elements(*to.region, to_bytes),
                        &rows) ||
      rows.dimensions == 0 || rows.row_bytes * std::min(from_bytes, to_bytes) >= kShortRow) {
    return false;
  }
  alignas(64) std::array<std::byte, kBlockBytes> source;
  alignas(64) std::array<std::byte, kBlockBytes> target;
  const uint64_t most_rows = kBlockBytes / (rows.row_bytes * std::max(from_bytes, to_bytes));
  for (Blocks blocks(rows, most_rows); blocks.next();) {
    const CommonRows& part = blocks.part();
    uint64_t elements = part.row_bytes;
    for (size_t d = 0; d < part.dimensions; ++d) elements *= part.extents[d];
    std::byte* const place = to.base + to.region->offset + blocks.to_offset() * to_bytes;
    copy_rows(to_block(part, part.from_strides, from_bytes, false),
              from.base + from.region->offset + blocks.from_offset() * from_bytes, source.data());
    if (reads) copy_rows(to_block(part, part.to_strides, to_bytes, false), place, target.data());
    use(source.data(), target.data(), elements);
    copy_rows(to_block(part, part.to_strides, to_bytes, true), target.data(), place);
  }
  return true;
}

// Adds |elements| contiguous elements of |from| to |to|.
void add_run(ElementType from_type, const std::byte* from, ElementType to_type, std::byte* to,
             size_t elements) {
  if (from_type != to_type) return add_wider(from_type, from, to_type, to, elements);
  const std::byte* const inputs[] = {to, from};
  reduce::combine(to_type, reduce::Operator::kSum, to, inputs, 2, elements);
}

}  // namespace

void copy(const CopySide& from, const CopySide& to, Overflow overflow) {
  if (from.type != to.type) {
    const auto use = [&](const std::byte* source, std::byte* target, uint64_t elements) {
      convert(from.type, source, to.type, target, elements, overflow);
    };
    if (!by_blocks(from, to, /*reads=*/false, use)) for_each_run(from, to, use);
    return;
  }
  if (CommonRows rows; find_common_rows(*from.region, *to.region, &rows)) {
    const std::byte* const source = from.base + from.region->offset;
    std::byte* const target = to.base + to.region->offset;
    const bool stays = source == target && rows.from_strides == rows.to_strides;
    if (!stays) copy_rows(rows, source, target);
    return;
  }
  const size_t element_bytes = reduce::size_of(from.type);
  for_each_run(from, to, [&](const std::byte* source, std::byte* target, uint64_t elements) {
    if (source != target) copy_long(target, source, elements * element_bytes);
  });
}

void add(const CopySide& from, const CopySide& to) {
  const auto use = [&](const std::byte* source, std::byte* target, uint64_t elements) {
    add_run(from.type, source, to.type, target, elements);
  };
  if (!by_blocks(from, to, /*reads=*/true, use)) for_each_run(from, to, use);
}

}  // namespace hetcomm::reshard
