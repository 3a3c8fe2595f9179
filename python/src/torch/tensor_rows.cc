#include "python/src/torch/tensor_rows.h"

#include <cstddef>
#include <limits>

namespace hetcomm::torch_backend {

bool fits(const at::Tensor& bytes, uint64_t offset, uint64_t size) {
  uint64_t end = 0;
  return !__builtin_add_overflow(offset, size, &end) && end <= static_cast<uint64_t>(bytes.numel());
}

bool fits(const at::Tensor& bytes, const Rows& rows) {
  if (rows.row_bytes == 0 || rows.extents[0] == 0 || rows.extents[1] == 0) return true;
  uint64_t size = rows.row_bytes;
  for (size_t d = 0; d < 2; ++d) {
    uint64_t distance = 0;
    if (__builtin_mul_overflow(rows.extents[d] - 1, rows.strides[d], &distance) ||
        __builtin_add_overflow(size, distance, &size)) {
      return false;
    }
  }
  // Rows may overlap, so their total size may exceed that of |bytes| and even overflow.
  uint64_t count = 0;
  uint64_t total = 0;
  return !__builtin_mul_overflow(rows.extents[0], rows.extents[1], &count) &&
         !__builtin_mul_overflow(count, rows.row_bytes, &total) &&
         total <= std::numeric_limits<int64_t>::max() && fits(bytes, rows.offset, size);
}

bool have_one_shape(const Rows& one, const Rows& other) {
  return one.row_bytes == other.row_bytes && one.extents[0] == other.extents[0] &&
         one.extents[1] == other.extents[1];
}

void Width::divide(uint64_t number) {
  while (number % width_ != 0) width_ /= 2;
}

void Width::divide(const Rows& rows) {
  divide(rows.offset);
  divide(rows.row_bytes);
  for (size_t d = 0; d < 2; ++d) {
    if (rows.extents[d] > 1) divide(rows.strides[d]);
  }
}

void Width::divide(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return divide(uint64_t{1});
  divide(static_cast<uint64_t>(tensor.storage_offset()));
  divide(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()));
}

std::array<int64_t, 3> Width::sizes_of(const Rows& rows) const {
  return {static_cast<int64_t>(rows.extents[0]), static_cast<int64_t>(rows.extents[1]),
          static_cast<int64_t>(rows.row_bytes) / bytes()};
}

at::Tensor Width::rows_of(const at::Tensor& tensor, const Rows& rows) const {
  const at::Tensor all = tensor.narrow(0, 0, tensor.numel() / bytes() * bytes()).view(type());
  // The stride of a dimension with fewer than two rows may have any value.
  const auto stride = [&](size_t d) {
    return rows.extents[d] > 1 ? static_cast<int64_t>(rows.strides[d]) / bytes() : 0;
  };
  const std::array<int64_t, 3> strides = {stride(0), stride(1), 1};
  return all.as_strided(sizes_of(rows), strides,
                        all.storage_offset() + static_cast<int64_t>(rows.offset) / bytes());
}

at::ScalarType Width::type() const {
  return width_ == 8 ? at::kLong : width_ == 4 ? at::kInt : width_ == 2 ? at::kShort : at::kByte;
}

std::optional<at::Tensor> elements_of(const at::Tensor& bytes, uint64_t offset, uint64_t elements,
                                      at::ScalarType type) {
  const uint64_t size = c10::elementSize(type);
  if (!bytes.has_storage()) return std::nullopt;
  const auto before = static_cast<uint64_t>(bytes.storage_offset());
  if ((before + offset) % size != 0 ||
      (reinterpret_cast<uintptr_t>(bytes.const_data_ptr()) + offset) % size != 0) {
    return std::nullopt;
  }
  return bytes.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(elements * size))
      .view(type);
}

}  // namespace hetcomm::torch_backend
