#include "python/src/torch/tensors.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

namespace hetcomm::torch_backend {
namespace {

// -1 when the library has no such type.
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

// Its memory holds its elements, in order and as they are.
bool is_packed(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

void check_tensor(const char* operation, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "hetcomm ", operation, ": undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided, "hetcomm ", operation,
                    ": dense tensors only, this one is ", tensor.layout());
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "hetcomm ", operation,
                    ": tensors in host memory only, this one is on ", tensor.device());
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

at::Tensor packed_input(OperationWork& work, const at::Tensor& tensor) {
  if (is_packed(tensor)) {
    work.keep(tensor);
    return tensor;
  }
  const at::NoGradGuard no_grad;
  at::Tensor packed = tensor.resolve_conj().resolve_neg().contiguous();
  work.keep(packed);
  return packed;
}

at::Tensor packed_output(OperationWork& work, const at::Tensor& tensor, bool with_contents) {
  if (is_packed(tensor)) {
    // Memory that is shared until somebody writes is no longer from here on.
    static_cast<void>(tensor.mutable_data_ptr());
    work.keep(tensor);
    return tensor;
  }
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                    "hetcomm: several elements of a result lie at one address; clone() it first");
  const at::NoGradGuard no_grad;
  at::Tensor packed =
      with_contents ? tensor.resolve_conj().resolve_neg().contiguous().clone()
                    : at::empty(tensor.sizes(),
                                tensor.options().memory_format(c10::MemoryFormat::Contiguous));
  work.keep(packed);
  work.copy_back({packed, tensor});
  return packed;
}

at::Tensor apart_from(OperationWork& work, const at::Tensor& packed,
                      const std::vector<hetcomm_buffer_t>& results) {
  const hetcomm_buffer_t input = buffer_of(packed);
  const bool overlaps =
      std::any_of(results.begin(), results.end(), [&](const hetcomm_buffer_t& result) {
        return result.offset < input.offset + input.length &&
               input.offset < result.offset + result.length;
      });
  if (!overlaps) return packed;
  const at::NoGradGuard no_grad;
  at::Tensor copy = packed.clone();
  work.keep(copy);
  return copy;
}

hetcomm_buffer_t buffer_of(const at::Tensor& packed) {
  return buffer_of(packed, 0, packed.numel());
}

hetcomm_buffer_t buffer_of(const at::Tensor& packed, int64_t first, int64_t count) {
  static constexpr char kNowhere = 0;
  // An empty tensor has no address.
  if (count == 0) return hetcomm_buffer_host(&kNowhere, 0);
  const auto size = static_cast<int64_t>(packed.element_size());
  const auto* base = static_cast<const char*>(packed.const_data_ptr());
  return hetcomm_buffer_host(base + first * size, static_cast<uint64_t>(count * size));
}

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
