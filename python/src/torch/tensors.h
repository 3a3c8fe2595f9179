// Converts tensors to buffers of the C ABI.
#pragma once

#include <ATen/ATen.h>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/work.h"

namespace hetcomm::torch_backend {

// Throws unless |tensor| is dense and its memory is on the host or on a device that the library can
// use.
void check_tensor(const char* operation, const at::Tensor& tensor);
// Throws unless the two tensors have the same type.
void check_types(const char* operation, const at::Tensor& tensor, const at::Tensor& other);
// Throws unless the two tensors have the same type and number of elements.
void check_same(const char* operation, const at::Tensor& tensor, const at::Tensor& other);
// Returns the only tensor of the list. Throws if the list does not have exactly one.
at::Tensor& single(const char* operation, std::vector<at::Tensor>& tensors);

// Returns the type under which |tensor| is moved: bytes if the library does not support its type.
hetcomm_datatype_t datatype_to_move(const at::Tensor& tensor);
// Returns the library's type of |tensor|. Throws if there is none.
hetcomm_datatype_t datatype_to_reduce(const char* operation, const at::Tensor& tensor);

// A Packed holds a tensor whose elements are contiguous in memory, in the order of its dimensions.
struct Packed {
  at::Tensor tensor;
  hetcomm_memory_t* memory = nullptr;  // owned by the work; null if on the host or empty
};

// Returns the elements of |tensor| in order: |tensor| itself, or a copy that |work| keeps.
Packed packed_input(OperationWork& work, const at::Tensor& tensor);
// Returns |packed|, or if |packed| shares memory with |results|, a copy that |work| keeps. Without
// the copy, peers would read memory that is being written.
Packed apart_from(OperationWork& work, const Packed& packed, const std::vector<Packed>& results);
// Returns a destination for the elements of |tensor|: |tensor| itself, or a stand-in that |work|
// copies back. |with_contents| is true if the operation also reads the tensor. If several elements
// share an address, as in an expanded tensor, the last one is kept.
Packed packed_output(OperationWork& work, const at::Tensor& tensor, bool with_contents);

hetcomm_buffer_t buffer_of(const Packed& packed);
// Returns a buffer of |count| elements that starts at element |first|.
hetcomm_buffer_t buffer_of(const Packed& packed, int64_t first, int64_t count);
std::vector<hetcomm_buffer_t> buffers_of(const std::vector<Packed>& packed);
// Returns the buffer for a tensor in host memory, which must outlive the operation.
hetcomm_buffer_t host_buffer_of(const at::Tensor& contiguous);

struct Reduction {
  hetcomm_reduction_t kind = HETCOMM_REDUCE_SUM;
  double factor = 1.0;
};
Reduction reduction_of(const c10d::ReduceOp& op);

}  // namespace hetcomm::torch_backend
