// Rows and ranges of the bytes of a tensor, as tensors that torch copies and calculates with.
#pragma once

#include <ATen/ATen.h>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include <hetcomm/device_plugin.h>

namespace hetcomm::torch_backend {

using Rows = hetcomm_device_rows_t;

// Whether |size| bytes from |offset| on lie in |bytes|.
bool fits(const at::Tensor& bytes, uint64_t offset, uint64_t size);
// Whether all rows lie in |bytes|.
bool fits(const at::Tensor& bytes, const Rows& rows);
// Whether both have as many rows of as many bytes.
bool have_one_shape(const Rows& one, const Rows& other);

// The largest element, up to 8 bytes, of which everything is a multiple: kernels copy elements.
class Width {
 public:
  void divide(uint64_t number);
  void divide(const Rows& rows);
  // Its elements are aligned, in its storage and in memory.
  void divide(const at::Tensor& tensor);

  // How many elements the rows have, in each direction.
  std::array<int64_t, 3> sizes_of(const Rows& rows) const;
  // The rows of |bytes|, which fit.
  at::Tensor rows_of(const at::Tensor& bytes, const Rows& rows) const;
  at::ScalarType type() const;

 private:
  int64_t bytes() const { return static_cast<int64_t>(width_); }

  uint64_t width_ = 8;
};

// |elements| of |bytes|, in which they fit, from |offset| on; none: they are not aligned for their
// type.
std::optional<at::Tensor> elements_of(const at::Tensor& bytes, uint64_t offset, uint64_t elements,
                                      at::ScalarType type);

}  // namespace hetcomm::torch_backend
