// Defines the process group "hetcomm" for torch.distributed: its creation and end, splits, and the
// hooks that run when works end. operations.h has the operations that move data.
//
// The communicator is created together with the group. All waits are limited by the group's
// timeout.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/group.h"
#include "python/src/torch/hooks.h"
#include "python/src/torch/operations.h"
#include "python/src/torch/shared_context.h"
#include "python/src/torch/version.h"

namespace hetcomm::torch_backend {

class ProcessGroup final : public Operations {
 public:
  struct Options final : public c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds limit = kBackendDefaultTimeout)
        : c10d::Backend::Options("hetcomm", limit) {}
    std::string transports;  // for example "shm,tcp"; empty: as configured
    std::string settings;    // "NAME=value;..."; overrides the environment
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

  // Creates the group. Collective over the |size| ranks that share |store|.
  ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
               c10::intrusive_ptr<Options> options);
  ~ProcessGroup() override;

  const std::string getBackendName() const override { return "hetcomm"; }

  void registerOnCompletionHook(Hooks::EndHook&& hook) override;
  // Enables getDuration() for works that begin from now on.
  void enableCollectivesTiming() override { group().enable_timing(); }
  void waitForPendingWorks() override { group().wait_for_pending(); }

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
  // Creates a group of the ranks that are not in |excluded|. All of these ranks must call it.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& excluded, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
#endif
#if HETCOMM_TORCH_HAS_RECONFIGURE
  // reconfigure() makes the processes with the given handles the members of the group, using the
  // same store. It ends pending operations first, and returns when the new group has been created.
  // No other call may run at the same time.
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  Ref reconfigure(const c10d::ReconfigureOptions& options) override;
#endif
#if HETCOMM_TORCH_HAS_HOOKS
  // Registers a hook that runs once for each work whose operation fails without being cancelled.
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override {
    hooks_->aborts.add(id, std::move(hook));
  }
  void unregisterAbortHook(int64_t id) override { hooks_->aborts.remove(id); }
#endif
#if HETCOMM_TORCH_HAS_COMPLETION_HOOKS
  bool supportsAbortHooks() const override { return true; }
  bool supportsCompletionHooks() const override { return true; }
  // Registers a hook. Works are then completed soon after they have ended, even if no thread waits
  // for them.
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t id) override { hooks_->completions.remove(id); }
#endif
#if HETCOMM_TORCH_HAS_HOOKS
  // Stores |attach|, which is called once, when PyTorch has added this backend to its process
  // group. From then on, that group accepts hooks. The function that |attach| returns is called
  // once, when the group is shut down.
  using Detach = std::function<void()>;
  void set_hooks(std::function<Detach()> attach) { attach_ = std::move(attach); }
  void setGroupUid(const std::string& uid) override;
#endif
  void abort_with(const std::string& reason) { group().abort(reason); }
  hetcomm_communicator_t* lend(std::function<void()> forget) {
    return group().lend(std::move(forget));
  }

  c10::intrusive_ptr<Options> options() const { return options_; }
  uint32_t generation() const { return group().generation(); }
  std::shared_ptr<SharedContext> context() const { return group().shared_context(); }

 private:
  ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
               c10::intrusive_ptr<Options> options, std::shared_ptr<Hooks> hooks);
  Group& group() const { return *poster().group(); }

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
#if HETCOMM_TORCH_HAS_HOOKS
  std::function<Detach()> attach_;
  Detach detach_;
#endif
  const std::string handle_;  // identifies this member for reconfigure()
  const std::shared_ptr<Hooks> hooks_;
};

}  // namespace hetcomm::torch_backend
