#include "src/reshard/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "src/base/copy.h"

namespace hetcomm::reshard {
namespace {

// A unit that consists of several words.
template <typename Word, size_t kCount>
struct Several {
  Word words[kCount];
};

template <typename Unit>
Unit load(const std::byte* from) {
  Unit unit;
  std::memcpy(&unit, from, sizeof(Unit));
  return unit;
}

template <typename Unit>
void store(std::byte* to, Unit unit) {
  std::memcpy(to, &unit, sizeof(Unit));
}

// Copies |count| units at regular distances. The dense cases are separate, because compilers
// generate better code for a constant distance.
template <typename Unit>
void copy_line(const std::byte* from, uint64_t from_stride, std::byte* to, uint64_t to_stride,
               uint64_t count) {
  constexpr uint64_t kDense = sizeof(Unit);
  if (from_stride == kDense && to_stride == kDense) {
    std::memcpy(to, from, count * kDense);
  } else if (from_stride == kDense) {
    for (uint64_t i = 0; i < count; ++i) store(to + i * to_stride, load<Unit>(from + i * kDense));
  } else if (to_stride == kDense) {
    for (uint64_t i = 0; i < count; ++i) store(to + i * kDense, load<Unit>(from + i * from_stride));
  } else {
    for (uint64_t i = 0; i < count; ++i) {
      store(to + i * to_stride, load<Unit>(from + i * from_stride));
    }
  }
}

// A plane of units: |lines| lines of |units| each. Adjacent units are closest within a line in the
// source, and across lines in the target.
struct Plane {
  uint64_t lines = 1;
  uint64_t units = 1;
  uint64_t from_line = 0;  // all distances are in bytes
  uint64_t from_unit = 0;
  uint64_t to_line = 0;
  uint64_t to_unit = 0;
};

// A buffer of units that fits the first-level cache, and whose lines begin in different cache sets.
template <typename Unit>
struct Tile {
  static constexpr uint64_t kEdge = sizeof(Unit) <= 4 ? 64 : sizeof(Unit) <= 16 ? 32 : 16;
  static constexpr uint64_t kPitch = kEdge + std::max<uint64_t>(16 / sizeof(Unit), 1);
  alignas(64) std::array<Unit, kEdge * kPitch> units;

  Unit* line(uint64_t index) { return units.data() + index * kPitch; }
};

// Transposes a full tile of lines that are dense on both sides. All counts are compile-time
// constants, so that the compiler can vectorize the loops.
template <typename Unit>
void transpose_full(Tile<Unit>& tile, const std::byte* from, uint64_t from_line, std::byte* to,
                    uint64_t to_unit) {
  constexpr uint64_t kEdge = Tile<Unit>::kEdge;
  for (uint64_t i = 0; i < kEdge; ++i) {
    std::memcpy(tile.line(i), from + i * from_line, kEdge * sizeof(Unit));
  }
  for (uint64_t i = 0; i < kEdge; ++i) {
    std::array<Unit, kEdge> line;
    for (uint64_t k = 0; k < kEdge; ++k) line[k] = tile.line(k)[i];
    std::memcpy(to + i * to_unit, line.data(), sizeof(line));
  }
}

// Transposes tile by tile through a buffer. Lines of both sides are read and written in full, so no
// cache line is loaded twice, even if the strides are powers of two.
template <typename Unit>
void transpose(const Plane& plane, const std::byte* from, std::byte* to) {
  constexpr uint64_t kEdge = Tile<Unit>::kEdge;
  const bool is_dense = plane.from_unit == sizeof(Unit) && plane.to_line == sizeof(Unit);
  Tile<Unit> tile;
  for (uint64_t unit = 0; unit < plane.units; unit += kEdge) {
    const uint64_t units = std::min(kEdge, plane.units - unit);
    for (uint64_t line = 0; line < plane.lines; line += kEdge) {
      const uint64_t lines = std::min(kEdge, plane.lines - line);
      const std::byte* const source = from + line * plane.from_line + unit * plane.from_unit;
      std::byte* const target = to + line * plane.to_line + unit * plane.to_unit;
      if (is_dense && lines == kEdge && units == kEdge) {
        transpose_full(tile, source, plane.from_line, target, plane.to_unit);
        continue;
      }
      for (uint64_t i = 0; i < lines; ++i) {
        copy_line<Unit>(source + i * plane.from_line, plane.from_unit,
                        reinterpret_cast<std::byte*>(tile.line(i)), sizeof(Unit), units);
      }
      for (uint64_t i = 0; i < units; ++i) {
        copy_line<Unit>(reinterpret_cast<const std::byte*>(tile.line(0) + i),
                        Tile<Unit>::kPitch * sizeof(Unit), target + i * plane.to_unit,
                        plane.to_line, lines);
      }
    }
  }
}

// Returns the dimension with the smallest stride among those with more than one row, or the last
// dimension if there is none.
size_t innermost(const CommonRows& rows, const CommonRows::Sizes& strides) {
  size_t best = rows.dimensions - 1;
  for (size_t d = rows.dimensions; d-- > 0;) {
    if (rows.extents[d] > 1 && (rows.extents[best] == 1 || strides[d] < strides[best])) best = d;
  }
  return best;
}

// Calls use(from_offset, to_offset) for every index of |dimensions|, which are ordered from the
// slowest to the fastest.
template <typename Use>
void for_each_index(const CommonRows& rows, const size_t* dimensions, size_t count, uint64_t from,
                    uint64_t to, Use&& use) {
  CommonRows::Sizes at{};
  for (;;) {
    use(from, to);
    size_t i = count;
    for (; i > 0; --i) {
      const size_t d = dimensions[i - 1];
      from += rows.from_strides[d];
      to += rows.to_strides[d];
      if (++at[i - 1] < rows.extents[d]) break;
      from -= rows.extents[d] * rows.from_strides[d];
      to -= rows.extents[d] * rows.to_strides[d];
      at[i - 1] = 0;
    }
    if (i == 0) return;
  }
}

// All dimensions of |rows| with several rows except |one| and |other|, in descending order of their
// stride in the target.
struct Others {
  std::array<size_t, CommonRows::kMaxExtents> dimensions{};
  size_t count = 0;

  Others(const CommonRows& rows, size_t one, size_t other) {
    for (size_t d = 0; d < rows.dimensions; ++d) {
      if (d != one && d != other && rows.extents[d] > 1) dimensions[count++] = d;
    }
    std::sort(dimensions.begin(), dimensions.begin() + static_cast<ptrdiff_t>(count),
              [&](size_t a, size_t b) { return rows.to_strides[a] > rows.to_strides[b]; });
  }
};

template <typename Unit>
void copy_units(const CommonRows& rows, const std::byte* from, std::byte* to) {
  const size_t near_from = innermost(rows, rows.from_strides);
  const size_t near_to = innermost(rows, rows.to_strides);
  const Others others(rows, near_from, near_to);
  const Plane plane{.lines = rows.extents[near_to],
                    .units = rows.extents[near_from],
                    .from_line = rows.from_strides[near_to],
                    .from_unit = rows.from_strides[near_from],
                    .to_line = rows.to_strides[near_to],
                    .to_unit = rows.to_strides[near_from]};
  for_each_index(rows, others.dimensions.data(), others.count, 0, 0,
                 [&](uint64_t from_offset, uint64_t to_offset) {
                   if (near_from != near_to) {
                     transpose<Unit>(plane, from + from_offset, to + to_offset);
                   } else {
                     copy_line<Unit>(from + from_offset, plane.from_unit, to + to_offset,
                                     plane.to_unit, plane.units);
                   }
                 });
}

void copy_long_rows(const CommonRows& rows, const std::byte* from, std::byte* to) {
  const Others all(rows, rows.dimensions, rows.dimensions);
  for_each_index(rows, all.dimensions.data(), all.count, 0, 0,
                 [&](uint64_t from_offset, uint64_t to_offset) {
                   copy_long(to + to_offset, from + from_offset, rows.row_bytes);
                 });
}

}  // namespace

void copy_rows(const CommonRows& rows, const std::byte* from, std::byte* to) {
  if (rows.dimensions == 0) return copy_long(to, from, rows.row_bytes);
  switch (rows.row_bytes) {
    case 1:
      return copy_units<uint8_t>(rows, from, to);
    case 2:
      return copy_units<uint16_t>(rows, from, to);
    case 4:
      return copy_units<uint32_t>(rows, from, to);
    case 8:
      return copy_units<uint64_t>(rows, from, to);
    case 6:
      return copy_units<Several<uint16_t, 3>>(rows, from, to);
    case 12:
      return copy_units<Several<uint32_t, 3>>(rows, from, to);
    case 16:
      return copy_units<Several<uint64_t, 2>>(rows, from, to);
    case 24:
      return copy_units<Several<uint64_t, 3>>(rows, from, to);
    case 32:
      return copy_units<Several<uint64_t, 4>>(rows, from, to);
    case 48:
      return copy_units<Several<uint64_t, 6>>(rows, from, to);
    default:
      return copy_long_rows(rows, from, to);
  }
}

Blocks::Blocks(const CommonRows& rows, uint64_t most_rows) : rows_(rows), part_(rows) {
  for (size_t d = 0; d < rows.dimensions; ++d) edges_[d] = 1;
  if (rows.dimensions == 0) return;
  const size_t near_from = innermost(rows, rows.from_strides);
  const size_t near_to = innermost(rows, rows.to_strides);
  uint64_t left = std::max<uint64_t>(most_rows, 1);
  const auto widen = [&](size_t d, uint64_t most) {
    edges_[d] = std::min({rows.extents[d], most, left});
    left /= edges_[d];
  };
  if (near_from == near_to) {
    widen(near_to, left);
  } else {
    // The part is square if both dimensions have enough rows.
    uint64_t edge = 1;
    while (edge * edge * 4 <= left) edge *= 2;
    widen(near_to, std::max(edge, left / std::max<uint64_t>(rows.extents[near_from], 1)));
    widen(near_from, left);
  }
  const Others others(rows, near_from, near_to);
  for (size_t i = others.count; i-- > 0;) widen(others.dimensions[i], left);
}

bool Blocks::next() {
  if (!std::exchange(begun_, true)) {
    settle();
    return true;
  }
  for (size_t d = rows_.dimensions; d-- > 0;) {
    at_[d] += edges_[d];
    if (at_[d] < rows_.extents[d]) {
      settle();
      return true;
    }
    at_[d] = 0;
  }
  return false;
}

void Blocks::settle() {
  from_ = 0;
  to_ = 0;
  for (size_t d = 0; d < rows_.dimensions; ++d) {
    part_.extents[d] = std::min(edges_[d], rows_.extents[d] - at_[d]);
    from_ += at_[d] * rows_.from_strides[d];
    to_ += at_[d] * rows_.to_strides[d];
  }
}

}  // namespace hetcomm::reshard
