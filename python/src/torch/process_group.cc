#include "python/src/torch/process_group.h"

#include <Python.h>

#include <algorithm>
#include <c10/util/Exception.h>
#include <random>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "python/src/torch/joint_work.h"
#include "python/src/torch/living_groups.h"
#include "python/src/torch/log.h"

namespace hetcomm::torch_backend {
namespace {

GroupSettings settings_of(const ProcessGroup::Options& options, std::shared_ptr<Hooks> hooks) {
  return {.name = options.group_name.empty() ? "torch" : options.group_name,
          .settings = options.settings,
          .transports = options.transports,
          .timeout = options.timeout,
          // PyTorch lists no ranks for the default group.
          .share = !options.global_ranks_in_group.empty(),
          .hooks = std::move(hooks)};
}

std::shared_ptr<Group> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  const ProcessGroup::Options& options,
                                  const std::shared_ptr<Hooks>& hooks) {
  const GroupSettings settings = settings_of(options, hooks);
  if (options.enable_reconfigure) {
    return std::make_shared<Group>(rank, settings, "reconfigure() has not made it yet");
  }
  return std::make_shared<Group>(store, rank, size, settings);
}

// Makes a random handle that is unique among all process groups of all processes.
std::string random_handle() {
  std::random_device device;
  std::string text = "hetcomm";
  for (int i = 0; i < 4; ++i) text += "-" + std::to_string(device());
  return text;
}

// Releases the GIL while the object exists, if this thread holds it. Python destroys process groups
// with the GIL held, and threads that are ending may be waiting for it.
class WithoutPythonLock {
 public:
  WithoutPythonLock() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) state_ = PyEval_SaveThread();
  }
  ~WithoutPythonLock() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                           c10::intrusive_ptr<Options> options)
    : ProcessGroup(std::move(store), rank, size, std::move(options), std::make_shared<Hooks>()) {}

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                           c10::intrusive_ptr<Options> options, std::shared_ptr<Hooks> hooks)
    : Operations(rank, size, make_group(store, rank, size, *options, hooks), options->timeout),
      store_(std::move(store)),
      options_(std::move(options)),
      handle_(random_handle()),
      hooks_(std::move(hooks)) {
  init();
  LivingGroups::all().add(poster().group(), worker());
}

ProcessGroup::~ProcessGroup() {
  const WithoutPythonLock unlocked;
  try {
    group().close("it was dropped");
  } catch (...) {
    log_thrown("the wait for the callbacks of a group that was dropped");
  }
  worker()->stop();
}

// --- creation and end --------------------------------------------------------------------------

void ProcessGroup::abort() {
  group().abort("rank " + std::to_string(rank_) + " has aborted the process group");
}

void ProcessGroup::shutdown() {
  const WithoutPythonLock unlocked;
  group().close("it was shut down");
  // A hook or callback does not wait for the worker, because another hook may wait for it.
  if (!Completions::any_here()) worker()->drain();
#if HETCOMM_TORCH_HAS_HOOKS
  if (const auto detach = std::exchange(detach_, nullptr)) detach();
#endif
}

#if HETCOMM_TORCH_HAS_HOOKS
void ProcessGroup::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  if (const auto attach = std::exchange(attach_, nullptr)) detach_ = attach();
}
#endif

void ProcessGroup::setTimeout(std::chrono::milliseconds timeout) {
  poster().set_timeout(timeout);
  options_->timeout = timeout;
}

void ProcessGroup::registerOnCompletionHook(Hooks::EndHook&& hook) {
  TORCH_CHECK(!group().has_pending(), "hetcomm: a completion hook comes before the operations");
  hooks_->set_end_hook(std::move(hook));
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo>&) {};  // for PyTorch's hasHooks()
}

#if HETCOMM_TORCH_HAS_COMPLETION_HOOKS
void ProcessGroup::registerCompletionHook(int64_t id, c10d::CompletionHook hook) {
  hooks_->completions.add(id, [hook = std::move(hook)](uint64_t key, std::optional<float> took) {
    hook({.completionKey = key, .duration_ms = took});
  });
}
#endif

#if HETCOMM_TORCH_HAS_SPLIT
c10::intrusive_ptr<c10d::Backend> ProcessGroup::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return nullptr;
  return merge(store, options, static_cast<int>(own - ranks.begin()),
               static_cast<int>(ranks.size()));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank, const int& size) {
  auto theirs = c10::make_intrusive<Options>(*options_);
  if (options) {
    if (const auto* given = dynamic_cast<const Options*>(options.get())) {
      theirs = c10::make_intrusive<Options>(*given);
    }
    theirs->timeout = options->timeout;
    theirs->group_name = options->group_name;
    theirs->global_ranks_in_group = options->global_ranks_in_group;
  }
#if HETCOMM_TORCH_HAS_RECONFIGURE
  theirs->enable_reconfigure = false;
#endif
  const auto scoped =
      c10::make_intrusive<c10d::PrefixStore>(theirs->group_name + "/hetcomm/", store);
  return c10::make_intrusive<ProcessGroup>(scoped, rank, size, theirs);
}
#endif

#if HETCOMM_TORCH_HAS_RECONFIGURE
ProcessGroup::Ref ProcessGroup::reconfigure(const c10d::ReconfigureOptions& options) {
  std::vector<c10d::ReconfigureHandle> members;
  if (const auto* ordered = std::get_if<std::vector<c10d::ReconfigureHandle>>(&options.handles)) {
    members = *ordered;
  } else {
    const auto& set = std::get<std::unordered_set<c10d::ReconfigureHandle>>(options.handles);
    members.assign(set.begin(), set.end());
    std::sort(members.begin(), members.end());
  }
  const auto own = std::find(members.begin(), members.end(), handle_);
  TORCH_CHECK_VALUE(own != members.end(),
                    "hetcomm reconfigure: the handle of this rank is not among those given");
  const WithoutPythonLock unlocked;
  group().close("it is being reconfigured");
  worker()->drain();
  poster().forget_batches();  // close() has destroyed their groups
  GroupSettings settings = settings_of(*options_, hooks_);
  options_->global_ranks_in_group.clear();
  if (options.timeout) settings.timeout = *options.timeout;
  const auto rank = static_cast<int>(own - members.begin());
  const auto size = static_cast<int>(members.size());
  const auto made = std::make_shared<Group>(
      c10::make_intrusive<c10d::PrefixStore>("reconfigure/" + std::to_string(options.uuid), store_),
      rank, size, settings);
  if (group().is_timed()) made->enable_timing();
  LivingGroups::all().add(made, worker());
  rank_ = rank;
  size_ = size;
  monitored_barrier().restart();
  poster().serve(made, rank);
  return c10::make_intrusive<JointWork>(rank_, std::vector<WorkRef>{});
}
#endif

#if HETCOMM_TORCH_HAS_SHRINK
c10::intrusive_ptr<c10d::Backend> ProcessGroup::shrink(
    const std::vector<int64_t>& excluded, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  constexpr int kAbort = 1;  // torch.distributed.distributed_c10d.SHRINK_ABORT
  auto shrunk = c10::make_intrusive<Options>(*options_);
  shrunk->group_name += "/shrunk";
  shrunk->global_ranks_in_group.clear();
  std::vector<int> left;
  std::string scope = "shrink";
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) != excluded.end()) continue;
    left.push_back(rank);
    scope += "/" + std::to_string(rank);
    if (options_->global_ranks_in_group.size() == static_cast<size_t>(size_)) {
      shrunk->global_ranks_in_group.push_back(
          options_->global_ranks_in_group[static_cast<size_t>(rank)]);
    }
  }
  TORCH_CHECK_VALUE(std::find(left.begin(), left.end(), rank_) != left.end(),
                    "hetcomm shrink: this rank, ", rank_, ", is one of those to leave out");
  if ((flags & kAbort) != 0) {
    group().abort("rank " + std::to_string(rank_) + " shrinks the process group");
  }
  return split(c10::make_intrusive<c10d::PrefixStore>(scope, store_), left,
               options ? options : c10::intrusive_ptr<c10d::Backend::Options>(shrunk));
}
#endif

}  // namespace hetcomm::torch_backend
