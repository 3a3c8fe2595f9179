// Makes tensors of rows and ranges of a tensor's bytes, for PyTorch's copies and computations.
#pragma once

#include <ATen/ATen.h>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include <hetcomm/device_plugin.h>

namespace hetcomm::torch_backend {

using Rows = hetcomm_device_rows_t;

// Returns whether [offset, offset + size) is within |bytes|.
bool fits(const at::Tensor& bytes, uint64_t offset, uint64_t size);
// Returns whether all rows are within |bytes|.
bool fits(const at::Tensor& bytes, const Rows& rows);
// Returns whether both have the same number of rows and the same row size.
bool have_one_shape(const Rows& one, const Rows& other);

// Width is the size of the largest element, up to 8 bytes, that divides all given numbers.
// PyTorch's kernels copy element by element, so larger elements are faster.
class Width {
 public:
  void divide(uint64_t number);
  void divide(const Rows& rows);
  // Reduces the width until elements are aligned both in the tensor's storage and in memory.
  void divide(const at::Tensor& tensor);

  // Returns the extents of |rows|: two numbers of rows, and the number of elements in a row.
  std::array<int64_t, 3> sizes_of(const Rows& rows) const;
  // Returns a view of the rows, which must be within |bytes|.
  at::Tensor rows_of(const at::Tensor& bytes, const Rows& rows) const;
  at::ScalarType type() const;

 private:
  int64_t bytes() const { return static_cast<int64_t>(width_); }

  uint64_t width_ = 8;
};

// Returns a view of |elements| elements at |offset|, which must be within |bytes|. Returns nullopt
// if they are not aligned for |type|.
std::optional<at::Tensor> elements_of(const at::Tensor& bytes, uint64_t offset, uint64_t elements,
                                      at::ScalarType type);

}  // namespace hetcomm::torch_backend
