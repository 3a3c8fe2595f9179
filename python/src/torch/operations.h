// Maps PyTorch's messages and collective operations to operations on one communicator.
//
// Tensors may be strided. A tensor that is not packed is copied to or from a packed one. Collective
// operations match in the order of the calls. Operations that a thread posts between
// startCoalescing and endCoalescing start together.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "python/src/torch/group.h"
#include "python/src/torch/monitored_barrier.h"
#include "python/src/torch/poster.h"
#include "python/src/torch/version.h"
#include "python/src/torch/worker.h"

namespace hetcomm::torch_backend {

// Operations is the part of a c10d::Backend that moves data. ProcessGroup is the other part.
class Operations : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using Ref = Poster::Ref;

  // supportsCoalescing() returns false although these two functions exist. Otherwise PyTorch would
  // keep state for a batch. If an exception left that state behind, later collectives would do
  // nothing. Messages need no such state, because they may be posted in any order.
  void startCoalescing() override { poster_.begin_batch(); }
  Ref endCoalescing() override { return poster_.end_batch(); }

  Ref broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Ref allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Ref allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Ref allreduce_coalesced(Tensors& tensors,
                          const c10d::AllreduceCoalescedOptions& options) override;
  Ref reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Ref allgather(TensorLists& outputs, Tensors& inputs,
                const c10d::AllgatherOptions& options) override;
  Ref _allgather_base(at::Tensor& output, at::Tensor& input,
                      const c10d::AllgatherOptions& options) override;
  Ref allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                          const c10d::AllgatherOptions& options) override;
  Ref allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) override;
  Ref gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
#if HETCOMM_TORCH_HAS_RECONFIGURE
  Ref gather_into_tensor(at::Tensor& output, at::Tensor& input,
                         const c10d::GatherOptions& options) override;
#endif
  Ref scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  Ref reduce_scatter(Tensors& outputs, TensorLists& inputs,
                     const c10d::ReduceScatterOptions& options) override;
  Ref _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                           const c10d::ReduceScatterOptions& options) override;
  Ref reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                      const c10d::ReduceScatterOptions& options) override;
  Ref alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                    std::vector<int64_t>& input_splits,
                    const c10d::AllToAllOptions& options) override;
  Ref alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Ref barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  Ref send(Tensors& tensors, int destination, int tag) override;
  Ref recv(Tensors& tensors, int source, int tag) override;
  Ref recvAnysource(Tensors& tensors, int tag) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return poster_.sequence(); }

 protected:
  // |timeout| applies to operations without their own timeout.
  Operations(int rank, int size, std::shared_ptr<Group> group, std::chrono::milliseconds timeout)
      : Backend(rank, size), poster_(std::move(group), rank, timeout) {}

  // ProcessGroup uses the poster to end posted operations, and to switch to another group in
  // reconfigure().
  Poster& poster() { return poster_; }
  const Poster& poster() const { return poster_; }
  const std::shared_ptr<Worker>& worker() const { return worker_; }
  MonitoredBarrier& monitored_barrier() { return monitored_barrier_; }

 private:
  // Returns the device whose current stream a barrier follows: the one in |options|, or the one
  // bound to the group. Returns nullopt if there is none, or if the library cannot move its
  // tensors.
  std::optional<c10::Device> device_of(const c10d::BarrierOptions& options) const;
  Ref receive(const char* name, Tensors& tensors, int source, int tag);
  void check_root(const char* operation, int64_t root) const;
  void check_peer(const char* operation, int peer) const;

  Poster poster_;
  MonitoredBarrier monitored_barrier_{poster_};
  const std::shared_ptr<Worker> worker_ = std::make_shared<Worker>();
};

}  // namespace hetcomm::torch_backend
