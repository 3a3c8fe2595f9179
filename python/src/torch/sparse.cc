// Implements allreduce for sparse tensors. The ranks first exchange descriptions in a collective
// operation. Each rank then sends its indices and values to all others in messages. The second step
// runs on the worker thread, so the call does not block, and collective operations keep the order
// of the calls.
#include <algorithm>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <memory>
#include <string>
#include <utility>

#include "python/src/torch/group.h"
#include "python/src/torch/operations.h"
#include "python/src/torch/tensors.h"

namespace hetcomm::torch_backend {
namespace {

// The tag bit of these messages. User tags, which have 32 bits, do not use it. The other bits
// contain the number of the operation.
constexpr uint64_t kSparseTag = uint64_t{1} << 62;

// The exchanged fields: the number of elements and the values that must be equal on all ranks.
enum Field : int64_t { kCount, kType, kSparseDimensions, kDenseDimensions, kShape, kFields };

at::Tensor description_of(const at::Tensor& own) {
  at::Tensor fields = at::empty({kFields}, at::kLong);
  auto* const field = fields.mutable_data_ptr<int64_t>();
  field[kCount] = own._nnz();
  field[kType] = static_cast<int64_t>(own.scalar_type());
  field[kSparseDimensions] = own.sparse_dim();
  field[kDenseDimensions] = own.dense_dim();
  uint64_t hash = 0;
  for (const int64_t size : own.sizes()) {
    hash = (hash ^ static_cast<uint64_t>(size)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  field[kShape] = static_cast<int64_t>(hash);
  return fields;
}

// Throws if values that must be equal differ. All ranks compare the same values, so all of them
// throw.
void check_alike(const int64_t* descriptions, int size) {
  for (int rank = 1; rank < size; ++rank) {
    const int64_t* const theirs = descriptions + int64_t{rank} * kFields;
    if (std::equal(descriptions + kType, descriptions + kFields, theirs + kType)) continue;
    const char* what = theirs[kType] != descriptions[kType]     ? "types"
                       : theirs[kShape] != descriptions[kShape] ? "shapes"
                                                                : "sparse or dense dimensions";
    C10_THROW_ERROR(DistBackendError, std::string("hetcomm: allreduce_sparse: ranks 0 and ") +
                                          std::to_string(rank) + " have tensors of different " +
                                          what + " [MISMATCH]");
  }
}

at::Tensor empty_like_rows(const at::Tensor& model, int64_t rows) {
  std::vector<int64_t> sizes = model.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, model.options());
}

// A SparseAllreduce is one operation. It exists until its second step has ended. It does not refer
// to the process group, because a callback of an earlier operation may drop the last reference to
// the process group.
class SparseAllreduce {
 public:
  using Tensors = Operations::Tensors;

  SparseAllreduce(std::shared_ptr<Group> group, int rank, int size, at::Tensor tensor, bool average,
                  uint64_t sequence, uint64_t timeout_ns)
      : tensor_(std::move(tensor)),
        sequence_(sequence),
        group_(std::move(group)),
        rank_(rank),
        size_(size),
        average_(average),
        timeout_ns_(timeout_ns) {
    const at::Tensor own = tensor_.coalesce();
    // The indices of each element form a row, so that the rows of all ranks can be concatenated.
    indices_ = own.indices().t().contiguous();
    values_ = own.values().contiguous();
    description_ = description_of(own);
    descriptions_ = at::empty({size * kFields}, at::kLong);
  }

  // Runs the second step. Blocks until it has ended.
  void exchange();

  at::Tensor tensor_;
  const uint64_t sequence_;
  at::Tensor description_;
  at::Tensor descriptions_;

 private:
  void exchange_rows(Tensors& indices, Tensors& values) const;

  const std::shared_ptr<Group> group_;
  const int rank_;
  const int size_;
  const bool average_;
  const uint64_t timeout_ns_;
  at::Tensor indices_;
  at::Tensor values_;
};

}  // namespace

Operations::Ref Operations::allreduce_sparse(Tensors& tensors,
                                             const c10d::AllreduceOptions& options) {
  constexpr const char* kName = "allreduce_sparse";
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_sparse() && tensors[0].device().is_cpu(),
                    "hetcomm ", kName, ": takes one sparse tensor in host memory");
  TORCH_CHECK(!poster_.in_batch(), "hetcomm ", kName, ": cannot be coalesced");
  const Reduction reduction = reduction_of(options.reduceOp);
  TORCH_CHECK_VALUE(
      reduction.kind == HETCOMM_REDUCE_SUM || reduction.kind == HETCOMM_REDUCE_AVERAGE, "hetcomm ",
      kName, ": unsupported reduction operation, sum and average only");
  const at::NoGradGuard no_grad;
  auto operation = std::make_shared<SparseAllreduce>(
      poster_.group(), rank_, size_, tensors[0], reduction.kind == HETCOMM_REDUCE_AVERAGE,
      poster_.sequence(), poster_.timeout_ns(kNoTimeout));
  c10d::AllgatherOptions gather;
  gather.timeout = options.timeout;
  Ref described = _allgather_base(operation->descriptions_, operation->description_, gather);
  // The work has no requests. The worker completes it.
  const WorkRef work = poster_.make_work({.type = c10d::OpType::_ALLREDUCE_SPARSE,
                                          .name = kName,
                                          .profiling = nullptr,
                                          .sequence = operation->sequence_,
                                          .internal = true,
                                          .inputs = {},
                                          .results = {operation->tensor_}});
  const bool accepted = worker_->run([described, operation, work] {
    std::exception_ptr failure;
    try {
      described->wait();
      const c10::InferenceMode mode(operation->tensor_.is_inference());
      const at::NoGradGuard unrecorded;
      operation->exchange();
    } catch (...) {
      failure = std::current_exception();
    }
    // This comes last, because a callback may drop the last reference to this process group.
    failure != nullptr ? work->reject(failure) : work->posted();
  });
  TORCH_CHECK(accepted, "hetcomm: the process group is closed");
  return work;
}

void SparseAllreduce::exchange() {
  const auto* descriptions = descriptions_.const_data_ptr<int64_t>();
  check_alike(descriptions, size_);
  Tensors indices;
  Tensors values;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t count = descriptions[int64_t{rank} * kFields + kCount];
    indices.push_back(rank == rank_ ? indices_ : empty_like_rows(indices_, count));
    values.push_back(rank == rank_ ? values_ : empty_like_rows(values_, count));
  }
  exchange_rows(indices, values);
  const at::Tensor values_of_all = at::cat(values, 0);
  at::Tensor sum =
      at::sparse_coo_tensor(at::cat(indices, 0).t(), values_of_all, tensor_.sizes()).coalesce();
  if (average_) sum = sum / size_;
  tensor_.copy_(sum);
}

// Sends this rank's rows to the others and receives theirs.
void SparseAllreduce::exchange_rows(Tensors& indices, Tensors& values) const {
  const WorkRef work =
      c10::make_intrusive<OperationWork>(group_, rank_,
                                         WorkDescription{.type = c10d::OpType::_ALLREDUCE_SPARSE,
                                                         .name = "allreduce_sparse",
                                                         .profiling = nullptr,
                                                         .sequence = sequence_,
                                                         .inputs = {},
                                                         .results = {}});
  for (const Tensors* list : {&indices, &values}) {
    for (const at::Tensor& tensor : *list) work->keep(tensor);
  }
  work->expect_requests(2 * static_cast<size_t>(size_));
  const uint64_t tag = kSparseTag | sequence_;
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns_;
  const auto post_pair = [&](hetcomm_communicator_t* communicator, int rank) {
    const auto at = static_cast<size_t>(rank);
    const hetcomm_buffer_t theirs[] = {host_buffer_of(indices[at]), host_buffer_of(values[at])};
    hetcomm_request_t* request = nullptr;
    check("allreduce_sparse",
          hetcomm_recvv(communicator, rank, tag, HETCOMM_EXACT_TAG, theirs, 2, &options, &request));
    work->add_request(request);
    const hetcomm_buffer_t mine[] = {host_buffer_of(indices_), host_buffer_of(values_)};
    check("allreduce_sparse", hetcomm_sendv(communicator, rank, tag, mine, 2, &options, &request));
    work->add_request(request);
  };
  try {
    group_->post(work, [&](hetcomm_communicator_t* communicator) {
      for (int rank = 0; rank < size_; ++rank) {
        if (rank != rank_) post_pair(communicator, rank);
      }
    });
  } catch (...) {
    work->reject(std::current_exception());
    work->abort();  // cancels the parts that were accepted
    throw;
  }
  work->posted();
  work->wait();
}

}  // namespace hetcomm::torch_backend
