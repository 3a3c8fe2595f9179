#include "python/src/torch/tensors.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <c10/core/impl/COW.h>
#include <c10/util/Exception.h>

#include "python/src/torch/device.h"

namespace hetcomm::torch_backend {
namespace {

// Returns the library's type for |type|, or -1 if there is none.
hetcomm_datatype_t find_datatype(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return HETCOMM_BOOL;
    case c10::ScalarType::Char:
      return HETCOMM_INT8;
    case c10::ScalarType::Byte:
      return HETCOMM_UINT8;
    case c10::ScalarType::Short:
      return HETCOMM_INT16;
    case c10::ScalarType::UInt16:
      return HETCOMM_UINT16;
    case c10::ScalarType::Int:
      return HETCOMM_INT32;
    case c10::ScalarType::UInt32:
      return HETCOMM_UINT32;
    case c10::ScalarType::Long:
      return HETCOMM_INT64;
    case c10::ScalarType::UInt64:
      return HETCOMM_UINT64;
    case c10::ScalarType::Half:
      return HETCOMM_FLOAT16;
    case c10::ScalarType::BFloat16:
      return HETCOMM_BFLOAT16;
    case c10::ScalarType::Float8_e4m3fn:
      return HETCOMM_FLOAT8_E4M3FN;
    case c10::ScalarType::Float8_e5m2:
      return HETCOMM_FLOAT8_E5M2;
    case c10::ScalarType::Float:
      return HETCOMM_FLOAT32;
    case c10::ScalarType::Double:
      return HETCOMM_FLOAT64;
    case c10::ScalarType::ComplexFloat:
      return HETCOMM_COMPLEX64;
    case c10::ScalarType::ComplexDouble:
      return HETCOMM_COMPLEX128;
    default:
      return -1;
  }
}

// Returns whether the tensor's memory holds the values of its elements in order.
bool is_packed(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

void check_tensor(const char* operation, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "hetcomm ", operation, ": undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided, "hetcomm ", operation,
                    ": dense tensors only, this one is ", tensor.layout());
  TORCH_CHECK_VALUE(tensor.device().is_cpu() || is_movable(tensor.device()), "hetcomm ", operation,
                    ": tensors with memory only, this one is on ", tensor.device());
}

void check_types(const char* operation, const at::Tensor& tensor, const at::Tensor& other) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == other.scalar_type(), "hetcomm ", operation,
                    ": tensors of different types: ", tensor.scalar_type(), " and ",
                    other.scalar_type());
}

void check_same(const char* operation, const at::Tensor& tensor, const at::Tensor& other) {
  check_types(operation, tensor, other);
  TORCH_CHECK_VALUE(tensor.numel() == other.numel(), "hetcomm ", operation,
                    ": tensors of different sizes: ", tensor.sizes(), " and ", other.sizes());
}

at::Tensor& single(const char* operation, std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "hetcomm ", operation, ": takes one tensor, not ",
                    tensors.size());
  check_tensor(operation, tensors[0]);
  return tensors[0];
}

hetcomm_datatype_t datatype_to_move(const at::Tensor& tensor) {
  const hetcomm_datatype_t datatype = find_datatype(tensor.scalar_type());
  return datatype < 0 ? HETCOMM_UINT8 : datatype;
}

hetcomm_datatype_t datatype_to_reduce(const char* operation, const at::Tensor& tensor) {
  const hetcomm_datatype_t datatype = find_datatype(tensor.scalar_type());
  TORCH_CHECK_VALUE(datatype >= 0, "hetcomm ", operation, ": elements of type ",
                    tensor.scalar_type(), " cannot be reduced");
  return datatype;
}

namespace {

// Wraps |contiguous| as a Packed, and keeps it alive through |work|.
Packed kept(OperationWork& work, const at::Tensor& contiguous) {
  if (contiguous.is_cpu()) {
    work.keep(contiguous);
    return {contiguous};
  }
  return {contiguous, work.wrap(contiguous)};
}

// Returns a view of |tensor| without the repetitions of an expanded tensor, and the matching view
// of |packed|. Along a dimension with stride 0, only the last element is kept.
CopyBack without_repetition(at::Tensor packed, at::Tensor tensor) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) != 0 || tensor.size(d) < 2) continue;
    packed = packed.narrow(d, tensor.size(d) - 1, 1);
    tensor = tensor.narrow(d, tensor.size(d) - 1, 1);
  }
  return {packed, tensor};
}

// Returns whether two contiguous tensors share any bytes.
bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  const bool on_host = one.is_cpu() && other.is_cpu();
  // Pointers of tensors on devices may be arbitrary, so only tensors with the same storage are
  // compared. In host memory, different storages can share bytes.
  if (!on_host && !one.is_alias_of(other)) return false;
  const auto begin_of = [&](const at::Tensor& tensor) {
    return on_host ? reinterpret_cast<uintptr_t>(tensor.const_data_ptr())
                   : static_cast<uintptr_t>(tensor.storage_offset()) * tensor.itemsize();
  };
  return begin_of(one) < begin_of(other) + other.nbytes() &&
         begin_of(other) < begin_of(one) + one.nbytes();
}

}  // namespace

Packed packed_input(OperationWork& work, const at::Tensor& tensor) {
  if (is_packed(tensor)) return kept(work, tensor);
  const at::NoGradGuard no_grad;
  return kept(work, tensor.resolve_conj().resolve_neg().contiguous());
}

Packed packed_output(OperationWork& work, const at::Tensor& tensor, bool with_contents) {
  if (is_packed(tensor)) {
    // Copy-on-write memory must be made private to the tensor before it is written.
    if (tensor.is_cpu() || c10::impl::cow::is_cow_data_ptr(tensor.storage().data_ptr())) {
      static_cast<void>(tensor.mutable_data_ptr());
    }
    return kept(work, tensor);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor packed =
      with_contents ? tensor.resolve_conj().resolve_neg().contiguous().clone()
                    : at::empty(tensor.sizes(),
                                tensor.options().memory_format(c10::MemoryFormat::Contiguous));
  work.copy_back(without_repetition(packed, tensor));
  return kept(work, packed);
}

Packed apart_from(OperationWork& work, const Packed& packed, const std::vector<Packed>& results) {
  const bool overlaps = std::any_of(results.begin(), results.end(), [&](const Packed& result) {
    return share_memory(result.tensor, packed.tensor);
  });
  if (!overlaps) return packed;
  const at::NoGradGuard no_grad;
  return kept(work, packed.tensor.clone());
}

hetcomm_buffer_t buffer_of(const Packed& packed) {
  return buffer_of(packed, 0, packed.tensor.numel());
}

hetcomm_buffer_t buffer_of(const Packed& packed, int64_t first, int64_t count) {
  static constexpr char kNowhere = 0;
  // An empty tensor has no address.
  if (count == 0) return hetcomm_buffer_host(&kNowhere, 0);
  const auto size = static_cast<int64_t>(packed.tensor.element_size());
  const auto begin = static_cast<uint64_t>(first * size);
  const auto length = static_cast<uint64_t>(count * size);
  if (packed.memory != nullptr) return hetcomm_buffer_memory(packed.memory, begin, length);
  return hetcomm_buffer_host(static_cast<const char*>(packed.tensor.const_data_ptr()) + begin,
                             length);
}

std::vector<hetcomm_buffer_t> buffers_of(const std::vector<Packed>& packed) {
  std::vector<hetcomm_buffer_t> buffers;
  buffers.reserve(packed.size());
  for (const Packed& each : packed) buffers.push_back(buffer_of(each));
  return buffers;
}

hetcomm_buffer_t host_buffer_of(const at::Tensor& contiguous) { return buffer_of({contiguous}); }

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {HETCOMM_REDUCE_SUM};
    case c10d::ReduceOp::AVG:
      return {HETCOMM_REDUCE_AVERAGE};
    case c10d::ReduceOp::PRODUCT:
      return {HETCOMM_REDUCE_PRODUCT};
    case c10d::ReduceOp::MIN:
      return {HETCOMM_REDUCE_MIN};
    case c10d::ReduceOp::MAX:
      return {HETCOMM_REDUCE_MAX};
    case c10d::ReduceOp::BAND:
      return {HETCOMM_REDUCE_AND};
    case c10d::ReduceOp::BOR:
      return {HETCOMM_REDUCE_OR};
    case c10d::ReduceOp::BXOR:
      return {HETCOMM_REDUCE_XOR};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* supplement =
          dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(supplement != nullptr, "hetcomm: PREMUL_SUM has no factor");
      return {HETCOMM_REDUCE_PREMUL_SUM, supplement->tensor_factor.defined()
                                             ? supplement->tensor_factor.item<double>()
                                             : supplement->double_factor};
    }
    default:
      C10_THROW_ERROR(ValueError, "hetcomm: unknown reduction");
  }
}

}  // namespace hetcomm::torch_backend
