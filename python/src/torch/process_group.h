// The process group "hetcomm" for torch.distributed. torch's calls become operations on one
// communicator, which is made together with the group.
//
// Tensors may be strided: a tensor that is not packed goes through a packed copy. All waits are
// bounded by the group's timeout. Collective operations match in the order of the calls. Operations
// between a thread's startCoalescing and endCoalescing start together.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/group.h"
#include "python/src/torch/hooks.h"
#include "python/src/torch/tensors.h"
#include "python/src/torch/version.h"
#include "python/src/torch/work.h"
#include "python/src/torch/worker.h"

namespace hetcomm::torch_backend {

class ProcessGroup final : public c10d::Backend {
 public:
  struct Options final : public c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds limit = kBackendDefaultTimeout)
        : c10d::Backend::Options("hetcomm", limit) {}
    std::string transports;  // "shm,tcp"; "": as configured
    std::string settings;    // "NAME=value;...", overrides the environment
#if !HETCOMM_TORCH_HAS_SPLIT
    std::string group_name;
    std::vector<uint64_t> global_ranks_in_group;
#endif
#if HETCOMM_TORCH_HAS_RECONFIGURE
    c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
      return c10::make_intrusive<Options>(*this);
    }
#else
    static constexpr bool enable_reconfigure = false;
#endif
  };
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using Ref = c10::intrusive_ptr<c10d::Work>;

  // Makes the group. Collective over the |size| ranks that share |store|.
  ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
               c10::intrusive_ptr<Options> options);
  ~ProcessGroup() override;
  // Shuts down all process groups, and returns when their callbacks have run. First cancels the
  // operations of all groups, since a callback in one group may wait for an operation in another.
  // Later posts fail with |reason|. Ranks that wait for this one in a collective operation receive
  // |told|, unless it is empty. Throws the exception of a signal handler that runs during the wait.
  static void close_all(const std::string& reason, const std::string& told);

  const std::string getBackendName() const override { return "hetcomm"; }
  // Not announced by supportsCoalescing(). Otherwise torch would keep state that an exception in a
  // batch leaves behind, so that later collectives do nothing. Messages in any order need no such
  // state.
  void startCoalescing() override;
  Ref endCoalescing() override;

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
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }

  void registerOnCompletionHook(Hooks::EndHook&& hook) override;
  // Makes getDuration() available for works that begin from now on.
  void enableCollectivesTiming() override { group_->enable_timing(); }
  void waitForPendingWorks() override { group_->wait_for_pending(); }

#if HETCOMM_TORCH_HAS_SPLIT
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                          const int& rank, const int& size) override;
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
#else
  void setTimeout(std::chrono::milliseconds timeout);
#endif
#if HETCOMM_TORCH_HAS_ENDS
  void abort() override;
  void shutdown() override;
#else
  void abort();
  void shutdown();
#endif
#if HETCOMM_TORCH_HAS_SHRINK
  bool supportsShrinking() const override { return true; }
  // Makes a group from the remaining ranks, all of which must call it.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& excluded, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
#endif
#if HETCOMM_TORCH_HAS_RECONFIGURE
  // reconfigure() makes the processes with the given handles the members of the group, over the
  // same store. Pending operations end first. No other call may run during reconfigure(), which
  // returns when the group is made.
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  Ref reconfigure(const c10d::ReconfigureOptions& options) override;
#endif
#if HETCOMM_TORCH_HAS_HOOKS
  // Registers a hook that runs once for each work whose operation fails, unless it is cancelled.
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override {
    hooks_->aborts.add(id, std::move(hook));
  }
  void unregisterAbortHook(int64_t id) override { hooks_->aborts.remove(id); }
#endif
#if HETCOMM_TORCH_HAS_COMPLETION_HOOKS
  bool supportsAbortHooks() const override { return true; }
  bool supportsCompletionHooks() const override { return true; }
  // Registers a hook. Works that no thread waits for are completed soon after they have ended.
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t id) override { hooks_->completions.remove(id); }
#endif
#if HETCOMM_TORCH_HAS_HOOKS
  // Runs |attach| once, when torch has added this backend to its process group, which then accepts
  // hooks. The function that |attach| returns runs once when the group is shut down.
  using Detach = std::function<void()>;
  void set_hooks(std::function<Detach()> attach) { attach_ = std::move(attach); }
  void setGroupUid(const std::string& uid) override;
#endif
  void abort_with(const std::string& reason) { group_->abort(reason); }
  hetcomm_communicator_t* lend(std::function<void()> forget) {
    return group_->lend(std::move(forget));
  }

  c10::intrusive_ptr<Options> options() const { return options_; }
  uint32_t generation() const { return group_->generation(); }
  std::shared_ptr<SharedContext> context() const { return group_->shared_context(); }

 private:
  // Returns the device whose current stream a barrier follows: the named device, or the group's.
  std::optional<c10::Device> device_of(const c10d::BarrierOptions& options) const;
  struct Coalescing {
    std::thread::id thread;
    hetcomm_group_t* group = nullptr;
    std::vector<WorkRef> works;
  };

  void remember(const std::shared_ptr<Group>& group) const;
  uint64_t timeout_ns(std::chrono::milliseconds timeout) const;
  uint64_t next_sequence() { return sequence_.fetch_add(1, std::memory_order_relaxed); }
  // Posts by |post(communicator, group or null)| and returns the work.
  template <typename Post>
  Ref start(const WorkRef& work, Post&& post);
  // Starts a collective operation by post(communicator, options).
  template <typename Post>
  Ref start_collective(const WorkRef& work, std::chrono::milliseconds timeout, Post&& post);
  // Starts several operations together, each by post(communicator, options, index, out request).
  template <typename Post>
  Ref start_many(const WorkRef& work, std::chrono::milliseconds timeout, size_t count, Post&& post);
  WorkRef make_work(WorkDescription description);
  Ref receive(const char* name, Tensors& tensors, int source, int tag);
  // Posts a step of a monitored barrier, see monitored_barrier.cc.
  WorkRef post_monitored(const at::Tensor& tensor, int peer, uint64_t tag, bool sends,
                         std::chrono::milliseconds limit);
  void watch_arrivals(uint64_t turn, std::chrono::milliseconds limit, bool wait_all);
  void arrive(uint64_t turn, std::chrono::milliseconds limit);
  // Notifies the other ranks, which wait for the collective operation. Call in its exception
  // handler.
  void tell_refusal();
  void check_root(const char* operation, int64_t root) const;
  void check_peer(const char* operation, int peer) const;
  static bool is_of_this_thread(const Coalescing& coalescing);
  Coalescing* coalescing_here();
  std::optional<Coalescing> take_coalescing();

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> monitored_barriers_{0};
  std::atomic<bool> coalesces_{false};
  std::mutex coalescing_mutex_;
  std::list<Coalescing> coalescing_;  // at most one for each thread
#if HETCOMM_TORCH_HAS_HOOKS
  std::function<Detach()> attach_;
  Detach detach_;
#endif
  const std::string handle_;  // names this member for reconfigure()
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  std::shared_ptr<Group> group_;
  const std::shared_ptr<Worker> worker_ = std::make_shared<Worker>();
};

}  // namespace hetcomm::torch_backend

#include "python/src/torch/process_group_inl.h"
