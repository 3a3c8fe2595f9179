// Rows and ranges of a tensor's bytes, as tensors for torch's copies and calculations.
#pragma once

#include <ATen/ATen.h>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include <hetcomm/device_plugin.h>

namespace hetcomm::torch_backend {

using Rows = hetcomm_device_rows_t;

// Whether [offset, offset + size) is within |bytes|.
bool fits(const at::Tensor& bytes, uint64_t offset, uint64_t size);
// Whether all rows are within |bytes|.
bool fits(const at::Tensor& bytes, const Rows& rows);
// Whether both have the same number of rows with the same number of bytes.
bool have_one_shape(const Rows& one, const Rows& other);

// The largest element, up to 8 bytes, that divides everything: kernels copy elements.
class Width {
 public:
  void divide(uint64_t number);
  void divide(const Rows& rows);
  // Reduces the width so that elements are aligned in the tensor's storage and in memory.
  void divide(const at::Tensor& tensor);

  // Returns the number of elements in |rows| in each direction.
  std::array<int64_t, 3> sizes_of(const Rows& rows) const;
  // Returns the rows of |bytes|, which must contain them.
  at::Tensor rows_of(const at::Tensor& bytes, const Rows& rows) const;
  at::ScalarType type() const;

 private:
  int64_t bytes() const { return static_cast<int64_t>(width_); }

  uint64_t width_ = 8;
};

// Returns |elements| from |bytes|, which start at |offset| and must fit. None: they are not aligned
// for their type.
std::optional<at::Tensor> elements_of(const at::Tensor& bytes, uint64_t offset, uint64_t elements,
                                      at::ScalarType type);

}  // namespace hetcomm::torch_backend
