// allreduce of sparse tensors: the ranks say how many elements they have (a collective operation),
// then each sends its indices and values to all others (messages). The second step runs in the
// worker, so that the call does not block and the order of collective operations is that of calls.
#include <c10/util/Exception.h>
#include <utility>

#include "python/src/torch/process_group.h"

namespace hetcomm::torch_backend {
namespace {

// Beside users' tags, which have 32 bits; the numbers of operations are the rest.
constexpr uint64_t kSparseTag = uint64_t{1} << 62;

at::Tensor empty_like_rows(const at::Tensor& model, int64_t rows) {
  std::vector<int64_t> sizes = model.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, model.options());
}

}  // namespace

// One operation; lives until its second step has ended.
class SparseAllreduce {
 public:
  SparseAllreduce(at::Tensor tensor, bool average, uint64_t sequence, int size)
      : tensor_(std::move(tensor)), average_(average), sequence_(sequence) {
    const at::Tensor own = tensor_.coalesce();
    // One row for each element, so that rows of all ranks go one after another.
    indices_ = own.indices().t().contiguous();
    values_ = own.values().contiguous();
    count_ = at::full({1}, indices_.size(0), at::kLong);
    counts_ = at::empty({size}, at::kLong);
  }

  at::Tensor tensor_;
  const bool average_;
  const uint64_t sequence_;
  at::Tensor indices_;
  at::Tensor values_;
  at::Tensor count_;
  at::Tensor counts_;
};

ProcessGroup::Ref ProcessGroup::allreduce_sparse(Tensors& tensors,
                                                 const c10d::AllreduceOptions& options) {
  constexpr const char* kName = "allreduce_sparse";
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_sparse() && tensors[0].device().is_cpu(),
                    "hetcomm ", kName, ": takes one sparse tensor in host memory");
  const Reduction reduction = reduction_of(options.reduceOp);
  TORCH_CHECK_VALUE(
      reduction.kind == HETCOMM_REDUCE_SUM || reduction.kind == HETCOMM_REDUCE_AVERAGE, "hetcomm ",
      kName, ": unsupported reduction operation, sum and average only");
  const at::NoGradGuard no_grad;
  auto operation = std::make_shared<SparseAllreduce>(
      tensors[0], reduction.kind == HETCOMM_REDUCE_AVERAGE, sequence_.load(), size_);
  c10d::AllgatherOptions gather;
  gather.timeout = options.timeout;
  Ref counted = _allgather_base(operation->counts_, operation->count_, gather);
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const bool accepted = worker_.run([this, counted, operation, future] {
    std::exception_ptr error;
    at::Tensor sum;
    try {
      const at::NoGradGuard unrecorded;
      counted->wait();
      sum = exchange_sparse(*operation);
    } catch (...) {
      error = std::current_exception();
    }
    // A callback may drop the last reference to this process group, or throw.
    try {
      if (error != nullptr) {
        future->setError(error);
      } else {
        future->markCompleted(c10::IValue(Tensors{sum}));
      }
    } catch (const std::exception& thrown) {
      TORCH_WARN("hetcomm allreduce_sparse: a callback of its future threw: ", thrown.what());
    }
  });
  TORCH_CHECK(accepted, "hetcomm: the process group is closed");
  return c10d::Work::create_from_future(future);
}

at::Tensor ProcessGroup::exchange_sparse(SparseAllreduce& operation) {
  const auto* counts = operation.counts_.const_data_ptr<int64_t>();
  Tensors indices;
  Tensors values;
  for (int rank = 0; rank < size_; ++rank) {
    indices.push_back(rank == rank_ ? operation.indices_
                                    : empty_like_rows(operation.indices_, counts[rank]));
    values.push_back(rank == rank_ ? operation.values_
                                   : empty_like_rows(operation.values_, counts[rank]));
  }
  const WorkRef work = make_work({.type = c10d::OpType::_ALLREDUCE_SPARSE,
                                  .name = "allreduce_sparse",
                                  .profiling = nullptr,
                                  .sequence = operation.sequence_,
                                  .inputs = {},
                                  .results = {}});
  for (const Tensors* list : {&indices, &values}) {
    for (const at::Tensor& tensor : *list) work->keep(tensor);
  }
  const uint64_t tag = kSparseTag | operation.sequence_;
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns(kNoTimeout);
  const auto post_pair = [&](hetcomm_communicator_t* communicator, int rank) {
    const auto at = static_cast<size_t>(rank);
    const hetcomm_buffer_t theirs[] = {buffer_of(indices[at]), buffer_of(values[at])};
    hetcomm_request_t* request = nullptr;
    check("allreduce_sparse",
          hetcomm_recvv(communicator, rank, tag, HETCOMM_EXACT_TAG, theirs, 2, &options, &request));
    work->add_request(request);
    const hetcomm_buffer_t mine[] = {buffer_of(operation.indices_), buffer_of(operation.values_)};
    check("allreduce_sparse", hetcomm_sendv(communicator, rank, tag, mine, 2, &options, &request));
    work->add_request(request);
  };
  start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t*) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) post_pair(communicator, rank);
    }
  })->wait();
  const at::Tensor values_of_all = at::cat(values, 0);
  at::Tensor sum =
      at::sparse_coo_tensor(at::cat(indices, 0).t(), values_of_all, operation.tensor_.sizes())
          .coalesce();
  if (operation.average_) sum = sum / size_;
  operation.tensor_.copy_(sum);
  return operation.tensor_;
}

}  // namespace hetcomm::torch_backend
