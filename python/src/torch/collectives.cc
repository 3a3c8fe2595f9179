// Implements the collective operations of a process group.
#include <ATen/DeviceAccelerator.h>
#include <algorithm>
#include <c10/util/Exception.h>
#include <utility>

#include "python/src/torch/device.h"
#include "python/src/torch/operations.h"
#include "python/src/torch/tensors.h"

namespace hetcomm::torch_backend {
namespace {

using c10d::OpType;
using Buffers = std::vector<hetcomm_buffer_t>;
using Tensors = Operations::Tensors;

// Short names for parameters of the functions that start_collective() and start_many() call.
using Communicator = hetcomm_communicator_t*;
using CollectiveOptions = hetcomm_collective_options_t;

// Throws unless |list| has |size| tensors with the type of |model|. Their lengths may differ.
void check_parts(const char* name, const Tensors& list, size_t size, const at::Tensor& model) {
  TORCH_CHECK_VALUE(list.size() == size, "hetcomm ", name, ": takes a list of ", size,
                    " tensors, not ", list.size());
  for (const at::Tensor& tensor : list) {
    check_tensor(name, tensor);
    check_types(name, tensor, model);
  }
}

// Throws unless |list| has |size| tensors with the type and length of |model|.
void check_list(const char* name, const Tensors& list, size_t size, const at::Tensor& model) {
  check_parts(name, list, size, model);
  for (const at::Tensor& tensor : list) check_same(name, tensor, model);
}

std::vector<Packed> packed_outputs(OperationWork& work, const Tensors& tensors) {
  std::vector<Packed> packed;
  packed.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) packed.push_back(packed_output(work, tensor, false));
  return packed;
}

Buffers input_buffers(OperationWork& work, const Tensors& tensors) {
  Buffers buffers;
  buffers.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) buffers.push_back(buffer_of(packed_input(work, tensor)));
  return buffers;
}

Buffers output_buffers(OperationWork& work, const Tensors& tensors) {
  return buffers_of(packed_outputs(work, tensors));
}

// Throws unless |whole| is |parts| times as large as |part|.
void check_whole(const char* name, const at::Tensor& whole, const at::Tensor& part, int parts) {
  check_tensor(name, whole);
  check_tensor(name, part);
  check_types(name, whole, part);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * parts, "hetcomm ", name, ": ", whole.numel(),
                    " elements are not ", parts, " times ", part.numel());
}

// Splits |packed| along its first dimension into parts with the sizes in |splits|, or into |parts|
// equal parts if |splits| is empty. Throws if the sizes do not fit.
Buffers split_buffers(const char* name, const at::Tensor& tensor, const Packed& packed,
                      const std::vector<int64_t>& splits, int parts) {
  const int64_t rows = tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  TORCH_CHECK_VALUE(splits.empty() || splits.size() == static_cast<size_t>(parts), "hetcomm ", name,
                    ": ", splits.size(), " split sizes for ", parts, " ranks");
  TORCH_CHECK_VALUE(!splits.empty() || rows % parts == 0, "hetcomm ", name,
                    ": the first dimension, ", rows, ", is not a multiple of ", parts);
  Buffers buffers;
  int64_t at = 0;
  for (int i = 0; i < parts; ++i) {
    const int64_t count = splits.empty() ? rows / parts : splits[static_cast<size_t>(i)];
    TORCH_CHECK_VALUE(count >= 0 && at + count <= rows, "hetcomm ", name,
                      ": the split sizes do not add up to the first dimension, ", rows);
    buffers.push_back(buffer_of(packed, at * row, count * row));
    at += count;
  }
  TORCH_CHECK_VALUE(at == rows, "hetcomm ", name,
                    ": the split sizes do not add up to the first dimension, ", rows);
  return buffers;
}

}  // namespace

std::optional<c10::Device> Operations::device_of(const c10d::BarrierOptions& options) const {
  std::optional<c10::Device> device = options.device;
  const std::optional<c10::DeviceType> accelerator = at::getAccelerator();
  if (!device && !options.device_ids.empty() && accelerator) {
    device = c10::Device(*accelerator, static_cast<c10::DeviceIndex>(options.device_ids.front()));
  }
  if (!device) device = getBoundDeviceId();
  if (!device || !is_movable(*device)) return std::nullopt;
  return device;
}

// If an operation throws while it checks its tensors, it reports that to the other ranks, which are
// waiting for this one. barrier() has no tensors to check.

Operations::Ref Operations::barrier(const c10d::BarrierOptions& options) {
  const WorkRef work = poster_.make_work({.type = OpType::BARRIER,
                                          .name = "barrier",
                                          .profiling = "hetcomm:barrier",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = {},
                                          .results = {}});
  if (const std::optional<c10::Device> device = device_of(options)) work->follow(*device);
  return poster_.start_collective(
      work, options.timeout,
      [](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_barrier(communicator, &o, request);
      });
}

Operations::Ref Operations::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) try {
  const at::Tensor& tensor = single("broadcast", tensors);
  check_root("broadcast", options.rootRank);
  const WorkRef work = poster_.make_work({.type = OpType::BROADCAST,
                                          .name = "broadcast",
                                          .profiling = "hetcomm:broadcast",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = tensors,
                                          .results = tensors});
  const auto root = static_cast<int32_t>(options.rootRank);
  const hetcomm_buffer_t buffer =
      buffer_of(root == rank_ ? packed_input(*work, tensor) : packed_output(*work, tensor, false));
  const hetcomm_datatype_t datatype = datatype_to_move(tensor);
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_broadcast(communicator, root, buffer, datatype, &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) try {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  const at::Tensor& tensor = single("allreduce", tensors);
  const hetcomm_datatype_t datatype = datatype_to_reduce("allreduce", tensor);
  const Reduction reduction = reduction_of(options.reduceOp);
  const WorkRef work = poster_.make_work({.type = OpType::ALLREDUCE,
                                          .name = "allreduce",
                                          .profiling = "hetcomm:all_reduce",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = tensors,
                                          .results = tensors});
  const hetcomm_buffer_t buffer = buffer_of(packed_output(*work, tensor, true));
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, CollectiveOptions& o, hetcomm_request_t** request) {
        o.factor = reduction.factor;
        return hetcomm_allreduce(communicator, buffer, buffer, datatype, reduction.kind, &o,
                                 request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) try {
  constexpr const char* kName = "allreduce_coalesced";
  const Reduction reduction = reduction_of(options.reduceOp);
  const WorkRef work = poster_.make_work({.type = OpType::ALLREDUCE_COALESCED,
                                          .name = kName,
                                          .profiling = "hetcomm:all_reduce",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = tensors,
                                          .results = tensors});
  std::vector<hetcomm_datatype_t> datatypes;
  Buffers buffers;
  for (const at::Tensor& tensor : tensors) {
    check_tensor(kName, tensor);
    datatypes.push_back(datatype_to_reduce(kName, tensor));
    buffers.push_back(buffer_of(packed_output(*work, tensor, true)));
  }
  return poster_.start_many(
      work, options.timeout, tensors.size(),
      [&](Communicator communicator, CollectiveOptions& o, size_t i, hetcomm_request_t** request) {
        o.factor = reduction.factor;
        return hetcomm_allreduce(communicator, buffers[i], buffers[i], datatypes[i], reduction.kind,
                                 &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::reduce(Tensors& tensors, const c10d::ReduceOptions& options) try {
  const at::Tensor& tensor = single("reduce", tensors);
  check_root("reduce", options.rootRank);
  const hetcomm_datatype_t datatype = datatype_to_reduce("reduce", tensor);
  const Reduction reduction = reduction_of(options.reduceOp);
  const WorkRef work = poster_.make_work({.type = OpType::REDUCE,
                                          .name = "reduce",
                                          .profiling = "hetcomm:reduce",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = tensors,
                                          .results = tensors});
  const auto root = static_cast<int32_t>(options.rootRank);
  const hetcomm_buffer_t buffer =
      buffer_of(root == rank_ ? packed_output(*work, tensor, true) : packed_input(*work, tensor));
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, CollectiveOptions& o, hetcomm_request_t** request) {
        o.factor = reduction.factor;
        return hetcomm_reduce(communicator, root, buffer, buffer, datatype, reduction.kind, &o,
                              request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

// --- gathering ---------------------------------------------------------------------------------

Operations::Ref Operations::allgather(TensorLists& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) try {
  const at::Tensor& input = single("allgather", inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1, "hetcomm allgather: takes one list of results, not ",
                    outputs.size());
  check_parts("allgather", outputs[0], static_cast<size_t>(size_), input);
  check_same("allgather", outputs[0][static_cast<size_t>(rank_)], input);
  const WorkRef work = poster_.make_work({.type = OpType::ALLGATHER,
                                          .name = "allgather",
                                          .profiling = "hetcomm:all_gather",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = inputs,
                                          .results = outputs[0]});
  const hetcomm_buffer_t send = buffer_of(packed_input(*work, input));
  const Buffers recvs = output_buffers(*work, outputs[0]);
  const hetcomm_datatype_t datatype = datatype_to_move(input);
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_allgatherv(communicator, send, recvs.data(), datatype, &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& options) try {
  check_whole("allgather", output, input, size_);
  const WorkRef work = poster_.make_work({.type = OpType::_ALLGATHER_BASE,
                                          .name = "allgather",
                                          .profiling = "hetcomm:_all_gather_base",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = {input},
                                          .results = {output}});
  const hetcomm_buffer_t send = buffer_of(packed_input(*work, input));
  const hetcomm_buffer_t recv = buffer_of(packed_output(*work, output, false));
  const hetcomm_datatype_t datatype = datatype_to_move(input);
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_allgather(communicator, send, recv, datatype, &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) try {
  constexpr const char* kName = "allgather_coalesced";
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), "hetcomm ", kName, ": ",
                    outputs.size(), " lists of results for ", size_, " ranks");
  Tensors results;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "hetcomm ", kName, ": ", list.size(),
                      " results for ", inputs.size(), " tensors");
    results.insert(results.end(), list.begin(), list.end());
  }
  const WorkRef work = poster_.make_work({.type = OpType::ALLGATHER_COALESCED,
                                          .name = kName,
                                          .profiling = "hetcomm:all_gather",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = inputs,
                                          .results = std::move(results)});
  Buffers sends;
  std::vector<Buffers> recvs(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(kName, inputs[i]);
    sends.push_back(buffer_of(packed_input(*work, inputs[i])));
    for (const Tensors& list : outputs) {
      check_tensor(kName, list[i]);
      check_same(kName, list[i], inputs[i]);
      recvs[i].push_back(buffer_of(packed_output(*work, list[i], false)));
    }
  }
  return poster_.start_many(work, options.timeout, inputs.size(),
                            [&](Communicator communicator, const CollectiveOptions& o, size_t i,
                                hetcomm_request_t** request) {
                              return hetcomm_allgatherv(communicator, sends[i], recvs[i].data(),
                                                        datatype_to_move(inputs[i]), &o, request);
                            });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) try {
  constexpr const char* kName = "allgather_into_tensor_coalesced";
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "hetcomm ", kName, ": ", outputs.size(),
                    " results for ", inputs.size(), " tensors");
  const WorkRef work = poster_.make_work({.type = OpType::COALESCED,
                                          .name = kName,
                                          .profiling = "hetcomm:_all_gather_base",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = inputs,
                                          .results = outputs});
  Buffers sends;
  Buffers recvs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(kName, outputs[i], inputs[i], size_);
    sends.push_back(buffer_of(packed_input(*work, inputs[i])));
    recvs.push_back(buffer_of(packed_output(*work, outputs[i], false)));
  }
  return poster_.start_many(work, options.timeout, inputs.size(),
                            [&](Communicator communicator, const CollectiveOptions& o, size_t i,
                                hetcomm_request_t** request) {
                              return hetcomm_allgather(communicator, sends[i], recvs[i],
                                                       datatype_to_move(inputs[i]), &o, request);
                            });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::gather(TensorLists& outputs, Tensors& inputs,
                                   const c10d::GatherOptions& options) try {
  const at::Tensor& input = single("gather", inputs);
  check_root("gather", options.rootRank);
  const auto root = static_cast<int32_t>(options.rootRank);
  if (root == rank_) {
    TORCH_CHECK_VALUE(outputs.size() == 1,
                      "hetcomm gather: the root takes one list of results, not ", outputs.size());
    check_list("gather", outputs[0], static_cast<size_t>(size_), input);
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "hetcomm gather: results are for the root only");
  }
  const WorkRef work = poster_.make_work({.type = OpType::GATHER,
                                          .name = "gather",
                                          .profiling = "hetcomm:gather",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = inputs,
                                          .results = root == rank_ ? outputs[0] : Tensors{}});
  const hetcomm_buffer_t send = buffer_of(packed_input(*work, input));
  const Buffers recvs = root == rank_ ? output_buffers(*work, outputs[0]) : Buffers{};
  const hetcomm_datatype_t datatype = datatype_to_move(input);
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_gatherv(communicator, root, send, recvs.empty() ? nullptr : recvs.data(),
                               datatype, &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

#if HETCOMM_TORCH_HAS_RECONFIGURE
Operations::Ref Operations::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                               const c10d::GatherOptions& options) try {
  check_root("gather", options.rootRank);
  const auto root = static_cast<int32_t>(options.rootRank);
  if (root == rank_) {
    check_whole("gather", output, input, size_);
  } else {
    check_tensor("gather", input);
  }
  const WorkRef work = poster_.make_work({.type = OpType::GATHER,
                                          .name = "gather",
                                          .profiling = "hetcomm:gather",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = {input},
                                          .results = root == rank_ ? Tensors{output} : Tensors{}});
  const hetcomm_buffer_t send = buffer_of(packed_input(*work, input));
  const hetcomm_buffer_t recv =
      root == rank_ ? buffer_of(packed_output(*work, output, false)) : hetcomm_buffer_t{};
  const hetcomm_datatype_t datatype = datatype_to_move(input);
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_gather(communicator, root, send, recv, datatype, &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}
#endif

Operations::Ref Operations::scatter(Tensors& outputs, TensorLists& inputs,
                                    const c10d::ScatterOptions& options) try {
  const at::Tensor& output = single("scatter", outputs);
  check_root("scatter", options.rootRank);
  const auto root = static_cast<int32_t>(options.rootRank);
  if (root == rank_) {
    TORCH_CHECK_VALUE(inputs.size() == 1,
                      "hetcomm scatter: the root takes one list of tensors, not ", inputs.size());
    check_list("scatter", inputs[0], static_cast<size_t>(size_), output);
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "hetcomm scatter: inputs are for the root only");
  }
  const WorkRef work = poster_.make_work({.type = OpType::SCATTER,
                                          .name = "scatter",
                                          .profiling = "hetcomm:scatter",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = root == rank_ ? inputs[0] : Tensors{},
                                          .results = outputs});
  const Buffers sends = root == rank_ ? input_buffers(*work, inputs[0]) : Buffers{};
  const hetcomm_buffer_t recv = buffer_of(packed_output(*work, output, false));
  const hetcomm_datatype_t datatype = datatype_to_move(output);
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_scatterv(communicator, root, sends.empty() ? nullptr : sends.data(), recv,
                                datatype, &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

// --- reducing and scattering -------------------------------------------------------------------

Operations::Ref Operations::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                           const c10d::ReduceScatterOptions& options) try {
  const at::Tensor& output = single("reduce_scatter", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, "hetcomm reduce_scatter: takes one list of tensors, not ",
                    inputs.size());
  const Tensors& parts = inputs[0];
  TORCH_CHECK_VALUE(parts.size() == static_cast<size_t>(size_),
                    "hetcomm reduce_scatter: ", parts.size(), " tensors for ", size_, " ranks");
  for (const at::Tensor& part : parts) {
    check_tensor("reduce_scatter", part);
    check_types("reduce_scatter", part, output);
  }
  check_same("reduce_scatter", output, parts[static_cast<size_t>(rank_)]);
  const hetcomm_datatype_t datatype = datatype_to_reduce("reduce_scatter", output);
  const Reduction reduction = reduction_of(options.reduceOp);
  const WorkRef work = poster_.make_work({.type = OpType::REDUCE_SCATTER,
                                          .name = "reduce_scatter",
                                          .profiling = "hetcomm:reduce_scatter",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = parts,
                                          .results = outputs});
  const Buffers sends = input_buffers(*work, parts);
  const hetcomm_buffer_t recv = buffer_of(packed_output(*work, output, false));
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, CollectiveOptions& o, hetcomm_request_t** request) {
        o.factor = reduction.factor;
        return hetcomm_reduce_scatterv(communicator, sends.data(), recv, datatype, reduction.kind,
                                       &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& options) try {
  check_whole("reduce_scatter", input, output, size_);
  const hetcomm_datatype_t datatype = datatype_to_reduce("reduce_scatter", output);
  const Reduction reduction = reduction_of(options.reduceOp);
  const WorkRef work = poster_.make_work({.type = OpType::_REDUCE_SCATTER_BASE,
                                          .name = "reduce_scatter",
                                          .profiling = "hetcomm:_reduce_scatter_base",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = {input},
                                          .results = {output}});
  const hetcomm_buffer_t send = buffer_of(packed_input(*work, input));
  const hetcomm_buffer_t recv = buffer_of(packed_output(*work, output, false));
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, CollectiveOptions& o, hetcomm_request_t** request) {
        o.factor = reduction.factor;
        return hetcomm_reduce_scatter(communicator, send, recv, datatype, reduction.kind, &o,
                                      request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) try {
  constexpr const char* kName = "reduce_scatter_tensor_coalesced";
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "hetcomm ", kName, ": ", outputs.size(),
                    " results for ", inputs.size(), " tensors");
  const Reduction reduction = reduction_of(options.reduceOp);
  const WorkRef work = poster_.make_work({.type = OpType::COALESCED,
                                          .name = kName,
                                          .profiling = "hetcomm:_reduce_scatter_base",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = inputs,
                                          .results = outputs});
  Buffers sends;
  Buffers recvs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(kName, inputs[i], outputs[i], size_);
    sends.push_back(buffer_of(packed_input(*work, inputs[i])));
    recvs.push_back(buffer_of(packed_output(*work, outputs[i], false)));
  }
  return poster_.start_many(
      work, options.timeout, inputs.size(),
      [&](Communicator communicator, CollectiveOptions& o, size_t i, hetcomm_request_t** request) {
        o.factor = reduction.factor;
        return hetcomm_reduce_scatter(communicator, sends[i], recvs[i],
                                      datatype_to_reduce(kName, inputs[i]), reduction.kind, &o,
                                      request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

// --- all to all --------------------------------------------------------------------------------

Operations::Ref Operations::alltoall_base(at::Tensor& output, at::Tensor& input,
                                          std::vector<int64_t>& output_splits,
                                          std::vector<int64_t>& input_splits,
                                          const c10d::AllToAllOptions& options) try {
  check_tensor("alltoall", input);
  check_tensor("alltoall", output);
  check_types("alltoall", input, output);
  const WorkRef work = poster_.make_work({.type = OpType::ALLTOALL_BASE,
                                          .name = "alltoall",
                                          .profiling = "hetcomm:all_to_all",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = {input},
                                          .results = {output}});
  const Packed packed_out = packed_output(*work, output, false);
  const Packed packed_in = apart_from(*work, packed_input(*work, input), {packed_out});
  const hetcomm_datatype_t datatype = datatype_to_move(input);
  // Some ranks may pass splits and others not, so all of them use the operation with splits.
  const Buffers sends = split_buffers("alltoall", input, packed_in, input_splits, size_);
  const Buffers recvs = split_buffers("alltoall", output, packed_out, output_splits, size_);
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_alltoallv(communicator, sends.data(), recvs.data(), datatype, &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

Operations::Ref Operations::alltoall(Tensors& outputs, Tensors& inputs,
                                     const c10d::AllToAllOptions& options) try {
  TORCH_CHECK_VALUE(inputs.size() == static_cast<size_t>(size_) && outputs.size() == inputs.size(),
                    "hetcomm alltoall: lists of ", inputs.size(), " and ", outputs.size(),
                    " tensors for ", size_, " ranks");
  for (const Tensors* list : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *list) {
      check_tensor("alltoall", tensor);
      check_types("alltoall", tensor, inputs[0]);
    }
  }
  const WorkRef work = poster_.make_work({.type = OpType::ALLTOALL,
                                          .name = "alltoall",
                                          .profiling = "hetcomm:all_to_all",
                                          .sequence = poster_.next_sequence(),
                                          .inputs = inputs,
                                          .results = outputs});
  const std::vector<Packed> results = packed_outputs(*work, outputs);
  const Buffers recvs = buffers_of(results);
  Buffers sends;
  for (const at::Tensor& tensor : inputs) {
    sends.push_back(buffer_of(apart_from(*work, packed_input(*work, tensor), results)));
  }
  const hetcomm_datatype_t datatype = datatype_to_move(inputs[0]);
  return poster_.start_collective(
      work, options.timeout,
      [&](Communicator communicator, const CollectiveOptions& o, hetcomm_request_t** request) {
        return hetcomm_alltoallv(communicator, sends.data(), recvs.data(), datatype, &o, request);
      });
} catch (...) {
  poster_.tell_refusal();
  throw;
}

}  // namespace hetcomm::torch_backend
