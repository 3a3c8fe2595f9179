// Layouts as modelled by the tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/hetcomm.h>

namespace hetcomm_test {

// A layout as modelled by the tests.
struct Grid {
  std::vector<uint64_t> shape;
  std::vector<hetcomm_part_t> parts;
  uint32_t terms = 1;
  uint32_t divisor = 1;

  uint64_t elements() const {
    uint64_t product = 1;
    for (const uint64_t extent : shape) product *= extent;
    return product;
  }
  // Returns the number of elements in |rank|'s memory.
  uint64_t extent_of(int32_t rank) const {
    uint64_t end = 0;
    for (const hetcomm_part_t& part : parts) {
      if (part.rank != rank) continue;
      uint64_t last = part.offset;
      for (size_t d = 0; d < shape.size(); ++d) {
        last += (part.end[d] - part.begin[d] - 1) * part.strides[d];
      }
      end = std::max(end, last + 1);
    }
    return end;
  }
  // Calls use(position in memory, element index, term) for every element that |rank| holds.
  template <typename Use>
  void for_each(int32_t rank, Use&& use) const {
    for (const hetcomm_part_t& part : parts) {
      if (part.rank != rank) continue;
      uint64_t count = 1;
      for (size_t d = 0; d < shape.size(); ++d) count *= part.end[d] - part.begin[d];
      for (uint64_t i = 0; i < count; ++i) {
        uint64_t rest = i;
        uint64_t place = part.offset;
        uint64_t number = 0;
        uint64_t weight = 1;
        for (size_t d = shape.size(); d-- > 0;) {
          const uint64_t extent = part.end[d] - part.begin[d];
          place += rest % extent * part.strides[d];
          number += (part.begin[d] + rest % extent) * weight;
          rest /= extent;
          weight *= shape[d];
        }
        use(place, number, part.term);
      }
    }
  }
};

// Owns a layout handle.
class Made {
 public:
  explicit Made(const Grid& grid) {
    const hetcomm_layout_options_t options{.struct_size = sizeof(options),
                                           .padded_shape = nullptr,
                                           .terms = grid.terms,
                                           .uneven = 0,
                                           .view_offset = 0,
                                           .view_strides = nullptr,
                                           .divisor = grid.divisor,
                                           .reserved = 0};
    EXPECT_EQ(hetcomm_layout_from_parts(grid.shape.size(), grid.shape.data(), grid.parts.data(),
                                        grid.parts.size(), &options, &layout_),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() { EXPECT_EQ(hetcomm_layout_destroy(layout_), HETCOMM_OK); }
  const hetcomm_layout_t* get() const { return layout_; }

 private:
  hetcomm_layout_t* layout_ = nullptr;
};

}  // namespace hetcomm_test
