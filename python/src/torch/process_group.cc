#include "python/src/torch/process_group.h"

#include <Python.h>

#include <algorithm>
#include <c10/util/Exception.h>
#include <random>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "python/src/torch/interrupts.h"
#include "python/src/torch/log.h"

namespace hetcomm::torch_backend {
namespace {

// Several works that were started together. It is done when all of them are done.
class JointWork final : public c10d::Work {
 public:
  JointWork(int rank, std::vector<WorkRef> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const WorkRef& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const WorkRef& work) { return work->isSuccess(); });
  }
  // Returns the first failure of the works.
  std::exception_ptr exception() const override {
    for (const WorkRef& work : works_) {
      if (const std::exception_ptr failure = work->exception()) return failure;
    }
    return nullptr;
  }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    for (const WorkRef& work : works_) work->wait(timeout);
    return true;
  }
  void abort() override {
    for (const WorkRef& work : works_) work->abort();
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const WorkRef& work : works_) {
      for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
    }
    return all;
  }
  // Returns a future that the last of the works' futures completes.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto joint = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices());
    struct State {
      std::atomic<size_t> open;
      std::atomic<bool> failed{false};
      std::vector<at::Tensor> results;
    };
    auto state = std::make_shared<State>();
    state->open = works_.size();
    state->results = result();
    if (works_.empty()) complete_future(*joint, nullptr, state->results);
    for (const WorkRef& work : works_) {
      work->getFuture()->addCallback([joint, state](c10::ivalue::Future& part) {
        if (part.hasError() && !state->failed.exchange(true)) {
          complete_future(*joint, part.exception_ptr(), {});
        }
        if (state->open.fetch_sub(1) == 1 && !state->failed.load()) {
          complete_future(*joint, nullptr, state->results);
        }
      });
    }
    return joint;
  }

 private:
  // Returns the devices without duplicates. torch has devices of one type.
  std::vector<c10::Device> devices() const {
    std::vector<c10::Device> all;
    for (const WorkRef& work : works_) {
      for (const c10::Device device : work->devices_of_future()) {
        if (std::find(all.begin(), all.end(), device) == all.end()) all.push_back(device);
      }
    }
    return all;
  }
  const std::vector<WorkRef> works_;
};

// The parts of all process groups that must be closed at exit.
struct Living {
  std::mutex mutex;
  std::vector<std::pair<std::weak_ptr<Group>, std::weak_ptr<Worker>>> groups;
};
Living& living() {
  static auto* const all = new Living();  // used until the process ends
  return *all;
}

GroupSettings settings_of(const ProcessGroup::Options& options, std::shared_ptr<Hooks> hooks) {
  return {.name = options.group_name.empty() ? "torch" : options.group_name,
          .settings = options.settings,
          .transports = options.transports,
          .timeout = options.timeout,
          // torch gives the default group no list
          .share = !options.global_ranks_in_group.empty(),
          .hooks = std::move(hooks)};
}

void drain(Worker& worker) {
  wait_in_steps("an operation of several steps",
                [&worker](std::chrono::milliseconds limit) { return worker.drain(limit); });
}

// Makes a handle that names this process group in this process only.
std::string random_handle() {
  std::random_device device;
  std::string text = "hetcomm";
  for (int i = 0; i < 4; ++i) text += "-" + std::to_string(device());
  return text;
}

// Releases the GIL. Python destroys process groups under the GIL, which ending threads may wait
// for.
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
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      timeout_(options_->timeout),
      handle_(random_handle()),
      group_(options_->enable_reconfigure
                 ? std::make_shared<Group>(rank, settings_of(*options_, hooks_),
                                           "reconfigure() has not made it yet")
                 : std::make_shared<Group>(store_, rank, size, settings_of(*options_, hooks_))) {
  init();
  remember(group_);
}

ProcessGroup::~ProcessGroup() {
  const WithoutPythonLock unlocked;
  try {
    group_->close("it was dropped");
  } catch (...) {
    log_thrown("the wait for the callbacks of a group that was dropped");
  }
  worker_->stop();
}

void ProcessGroup::remember(const std::shared_ptr<Group>& group) const {
  Living& all = living();
  const std::scoped_lock lock(all.mutex);
  std::erase_if(all.groups, [](const auto& each) { return each.first.expired(); });
  all.groups.emplace_back(group, worker_);
}

void ProcessGroup::close_all(const std::string& reason, const std::string& told) {
  Living& all = living();
  std::unique_lock lock(all.mutex);
  const auto groups = all.groups;
  lock.unlock();
  bool any_ends = WaitingThread::any();
  for (const auto& [weak_group, weak_worker] : groups) {
    const auto group = weak_group.lock();
    if (!group) continue;
    any_ends = any_ends || group->has_pending();
    if (!told.empty()) group->refuse(told);
    group->cancel_all(reason);
  }
  std::exception_ptr raised;  // the first exception
  for (const auto& [weak_group, weak_worker] : groups) {
    try {
      if (const auto group = weak_group.lock()) group->close(reason);
      if (const auto worker = weak_worker.lock()) drain(*worker);
    } catch (...) {
      if (!raised) raised = std::current_exception();
    }
  }
  if (any_ends || WaitingThread::any()) WaitingThread::let_all_return();
  if (raised) std::rethrow_exception(raised);
}

uint64_t ProcessGroup::timeout_ns(std::chrono::milliseconds timeout) const {
  if (timeout <= kNoTimeout) timeout = timeout_.load(std::memory_order_relaxed);
  if (timeout <= kNoTimeout) return HETCOMM_TIMEOUT_DEFAULT;
  const auto nanoseconds =
      std::chrono::duration_cast<std::chrono::duration<double, std::nano>>(timeout);
  // 100 years or more count as infinite.
  if (nanoseconds.count() > 3e18) return HETCOMM_TIMEOUT_INFINITE;
  return static_cast<uint64_t>(nanoseconds.count());
}

WorkRef ProcessGroup::make_work(WorkDescription description) {
  return c10::make_intrusive<OperationWork>(group_, rank_, std::move(description));
}

void ProcessGroup::tell_refusal() {
  // A rejected call of a batch counts as never made: the batch is not started.
  if (coalesces_.load(std::memory_order_relaxed) && coalescing_here() != nullptr) return;
  try {
    throw;
  } catch (const c10::Error& error) {
    group_->refuse(error.what_without_backtrace());
  } catch (const std::exception& error) {
    group_->refuse(error.what());
  } catch (...) {
    group_->refuse("an exception of an unknown type");
  }
}

void ProcessGroup::check_root(const char* operation, int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "hetcomm ", operation,
                    ": invalid root rank: ", root);
}

void ProcessGroup::check_peer(const char* operation, int peer) const {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size_, "hetcomm ", operation, ": invalid rank: ", peer);
}

// --- coalescing --------------------------------------------------------------------------------

bool ProcessGroup::is_of_this_thread(const Coalescing& coalescing) {
  return coalescing.thread == std::this_thread::get_id();
}

ProcessGroup::Coalescing* ProcessGroup::coalescing_here() {
  const std::scoped_lock lock(coalescing_mutex_);
  const auto found = std::find_if(coalescing_.begin(), coalescing_.end(), is_of_this_thread);
  return found == coalescing_.end() ? nullptr : &*found;
}

// Starts a batch. A batch that is still open was abandoned by an exception before the caller could
// end it. It is dropped.
void ProcessGroup::startCoalescing() {
  if (std::optional<Coalescing> left = take_coalescing(); left && left->group != nullptr) {
    group_->drop_group(left->group);
  }
  const std::scoped_lock lock(coalescing_mutex_);
  coalescing_.push_back({.thread = std::this_thread::get_id(), .group = nullptr, .works = {}});
  coalesces_.store(true, std::memory_order_relaxed);
}

ProcessGroup::Ref ProcessGroup::endCoalescing() {
  std::optional<Coalescing> ended = take_coalescing();
  TORCH_CHECK(ended.has_value(), "hetcomm: coalescing has not been started");
  auto joint = c10::make_intrusive<JointWork>(rank_, std::move(ended->works));
  if (ended->group != nullptr) group_->start_group(ended->group);
  return joint;
}

// Removes this thread's batch from the list.
std::optional<ProcessGroup::Coalescing> ProcessGroup::take_coalescing() {
  const std::scoped_lock lock(coalescing_mutex_);
  const auto here = std::find_if(coalescing_.begin(), coalescing_.end(), is_of_this_thread);
  if (here == coalescing_.end()) return std::nullopt;
  std::optional<Coalescing> taken(std::move(*here));
  coalescing_.erase(here);
  coalesces_.store(!coalescing_.empty(), std::memory_order_relaxed);
  return taken;
}

// --- messages ----------------------------------------------------------------------------------

ProcessGroup::Ref ProcessGroup::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor& tensor = single("send", tensors);
  check_peer("send", destination);
  const WorkRef work = make_work({.type = c10d::OpType::SEND,
                                  .name = "send",
                                  .profiling = "hetcomm:send",
                                  .sequence = 0,
                                  .inputs = tensors,
                                  .results = {}});
  const hetcomm_buffer_t buffer = buffer_of(packed_input(*work, tensor));
  return start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t* group) {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns(kNoTimeout);
    options.group = group;
    options.stream = group_->stream_of_message(*work);
    hetcomm_request_t* request = nullptr;
    check("send", hetcomm_send(communicator, destination, static_cast<uint32_t>(tag), buffer,
                               &options, &request));
    work->add_request(request);
  });
}

ProcessGroup::Ref ProcessGroup::receive(const char* name, Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = single(name, tensors);
  const bool any = source == HETCOMM_ANY_SOURCE;
  const WorkRef work = make_work({.type = any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
                                  .name = name,
                                  .profiling = any ? "hetcomm:recvAnySource" : "hetcomm:recv",
                                  .sequence = 0,
                                  .inputs = tensors,
                                  .results = tensors});
  // A message may be shorter than the tensor. The rest of the tensor stays unchanged.
  const hetcomm_buffer_t buffer = buffer_of(packed_output(*work, tensor, true));
  return start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t* group) {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns(kNoTimeout);
    options.group = group;
    options.stream = group_->stream_of_message(*work);
    hetcomm_request_t* request = nullptr;
    check(name, hetcomm_recv(communicator, source, static_cast<uint32_t>(tag), HETCOMM_EXACT_TAG,
                             buffer, &options, &request));
    work->add_request(request);
  });
}

ProcessGroup::Ref ProcessGroup::recv(Tensors& tensors, int source, int tag) {
  check_peer("recv", source);
  return receive("recv", tensors, source, tag);
}

ProcessGroup::Ref ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  return receive("recvAnysource", tensors, HETCOMM_ANY_SOURCE, tag);
}

// --- life --------------------------------------------------------------------------------------

void ProcessGroup::abort() {
  group_->abort("rank " + std::to_string(rank_) + " has aborted the process group");
}

void ProcessGroup::shutdown() {
  const WithoutPythonLock unlocked;
  group_->close("it was shut down");
  // A hook or callback does not drain: another hook may wait for it.
  if (!Completions::any_here()) drain(*worker_);
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
  timeout_.store(timeout);
  options_->timeout = timeout;
}

void ProcessGroup::registerOnCompletionHook(Hooks::EndHook&& hook) {
  TORCH_CHECK(!group_->has_pending(), "hetcomm: a completion hook comes before the operations");
  hooks_->set_end_hook(std::move(hook));
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo>&) {};  // for hasHooks()
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
  group_->close("it is being reconfigured");
  drain(*worker_);
  {
    const std::scoped_lock lock(coalescing_mutex_);
    for (Coalescing& open : coalescing_) open.group = nullptr;  // dropped with the group
  }
  GroupSettings settings = settings_of(*options_, hooks_);
  options_->global_ranks_in_group.clear();
  if (options.timeout) settings.timeout = *options.timeout;
  const auto rank = static_cast<int>(own - members.begin());
  const auto size = static_cast<int>(members.size());
  const auto made = std::make_shared<Group>(
      c10::make_intrusive<c10d::PrefixStore>("reconfigure/" + std::to_string(options.uuid), store_),
      rank, size, settings);
  if (group_->is_timed()) made->enable_timing();
  remember(made);
  rank_ = rank;
  size_ = size;
  sequence_.store(0);
  monitored_barriers_.store(0);
  group_ = made;
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
    group_->abort("rank " + std::to_string(rank_) + " shrinks the process group");
  }
  return split(c10::make_intrusive<c10d::PrefixStore>(scope, store_), left,
               options ? options : c10::intrusive_ptr<c10d::Backend::Options>(shrunk));
}
#endif

}  // namespace hetcomm::torch_backend
