#include "python/src/torch/work.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <atomic>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <utility>

#include "python/src/torch/completions.h"
#include "python/src/torch/group.h"
#include "python/src/torch/interrupts.h"
#include "python/src/torch/log.h"
#include "python/src/torch/room.h"
#include "python/src/torch/status.h"
#include "python/src/torch/streams.h"

namespace hetcomm::torch_backend {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the nanoseconds until |deadline|, but at least 2, because a timeout of 1 means polling.
uint64_t nanoseconds_left(std::optional<Clock::time_point> deadline) {
  if (!deadline) return HETCOMM_TIMEOUT_INFINITE;
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(*deadline - Clock::now());
  return static_cast<uint64_t>(std::max<int64_t>(left.count(), 2));
}

// The work that this thread posted last, until the thread calls isCompleted() for any work. The
// pointer is never dereferenced, since the work may have been destroyed.
constinit thread_local const OperationWork* just_posted = nullptr;

uint64_t make_key() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

void complete_future(c10::ivalue::Future& future, const std::exception_ptr& failure,
                     const std::vector<at::Tensor>& results) noexcept {
  try {
    if (failure) {
      future.setError(failure);
    } else {
      future.markCompleted(c10::IValue(results));
    }
  } catch (...) {
    if (future.completed()) {
      log_thrown("a callback of a future");
      return;
    }
    try {
      future.setErrorIfNeeded(std::current_exception());
    } catch (...) {
      log_thrown("a callback of a future");
    }
  }
}

OperationWork::OperationWork(std::shared_ptr<Group> group, int rank, WorkDescription description)
    : Work(rank, description.type, description.profiling,
           description.profiling != nullptr && !description.inputs.empty()
               ? std::optional(description.inputs)
               : std::nullopt),
      group_(std::move(group)),
      name_(description.name),
      sequence_(description.sequence),
      key_(make_key()),
      results_(std::move(description.results)) {
  if (!description.internal && group_->hooks().has_end_hook()) began_ = HookClock::now();
  if (group_->is_timed()) timed_from_ = HookClock::now();
}

OperationWork::~OperationWork() { let_tensors_go(); }

hetcomm_memory_t* OperationWork::wrap(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!device_ || *device_ == tensor.device(), "hetcomm ", name_,
                    ": tensors on two devices, ", *device_, " and ", tensor.device());
  device_ = tensor.device();
  if (tensor.numel() == 0) return nullptr;
  make_room(memories_);
  memories_.push_back(translated(name_, [&] { return group_->context().wrap(tensor); }));
  return memories_.back();
}

void OperationWork::let_tensors_go() {
  // A forked child has the tensors, but not the memory handles.
  if (!memories_.empty() && !group_->alive()) memories_.clear();
  for (hetcomm_memory_t* const memory : memories_) SharedContext::unwrap(memory);
  memories_.clear();
  kept_.clear();
}

void OperationWork::add_request(hetcomm_request_t* request) noexcept {
  open_parts_.fetch_add(1, std::memory_order_relaxed);
  parts_.emplace_back(request);
}

void OperationWork::posted() noexcept {
  just_posted = this;
  part_done();
}

void OperationWork::reject(std::exception_ptr why) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = std::move(why);
  }
  part_done();
}

void OperationWork::part_done() noexcept {
  if (open_parts_.fetch_sub(1, std::memory_order_acq_rel) == 1) complete();
}

void OperationWork::fail_with(const hetcomm_completion_t& completion) noexcept {
  std::exception_ptr failure = make_exception(name_, completion);
  const std::scoped_lock lock(mutex_);
  if (failure_) return;
  failure_ = std::move(failure);
  cancelled_ = completion.status == HETCOMM_CANCELLED;
}

void OperationWork::report(Part& part, const hetcomm_completion_t& completion) noexcept {
  if (completion.status != HETCOMM_OK) {
    fail_with(completion);
  } else if (opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE) {
    source_.store(completion.source, std::memory_order_relaxed);
  }
  part.reported.store(true, std::memory_order_release);
  part_done();
}

// Runs the function set by then() and copies the results back. Returns null on success, or the
// exception.
std::exception_ptr OperationWork::take_results() noexcept {
  try {
    // Inference tensors can be written only in inference mode. The caller may have been in that
    // mode even if this thread is not.
    std::optional<c10::InferenceMode> mode;
    if (std::any_of(copies_.begin(), copies_.end(),
                    [](const CopyBack& copy) { return copy.to.is_inference(); })) {
      mode.emplace();
    }
    const at::NoGradGuard no_grad;
    if (step_) step_();
    copy_results_back();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// Completes the work. The caller or the watcher holds a reference during this call.
void OperationWork::complete() noexcept {
  const Completions::Scope here(group_->completions());
  std::exception_ptr failure;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::scoped_lock lock(mutex_);
    failure = failure_;
  }
  if (!failure) failure = take_results();
  if (timed_from_) {
    const std::chrono::duration<float, std::milli> took = HookClock::now() - *timed_from_;
    duration_ms_.store(took.count(), std::memory_order_relaxed);
  }
  call_end_hook();
  group_->forget(*this);
  step_ = nullptr;
  copies_.clear();
  let_tensors_go();
  try {
    finish(failure);
  } catch (...) {  // finish() sets the result before it calls the profiler
    log_thrown("the profiler's callback");
  }
  ended_.store(true, std::memory_order_release);
  call_hooks(failure != nullptr);
  {
    const std::scoped_lock lock(mutex_);
    done_.store(true, std::memory_order_release);
    future = future_;
  }
  cv_.notify_all();
  if (future) complete_future(*future, failure, results_);
}

// Calls the end hook, if there was one when the work was made. A work that was rejected before it
// had any part never began, so the hook is not called for it.
void OperationWork::call_end_hook() const noexcept {
  if (!began_ || parts_.empty()) return;
  group_->hooks().call_end_hook([this] {
    const auto now = HookClock::now();
    return std::make_shared<c10d::WorkInfo>(opType_, sequence_, *began_, now, now - *began_);
  });
}

// Calls the completion or abort hooks, after ended_ was set. When PyTorch's flight recorder has
// stored the key of a work, it calls isCompleted(), which returns true if the work has already
// ended. If the work ends later, the recorder is notified through its hook.
void OperationWork::call_hooks(bool failed) const noexcept {
  const Hooks& hooks = group_->hooks();
  if (!failed) {
    if (hooks.completions.empty()) return;
    std::optional<float> duration;
    if (timed_from_) duration = duration_ms_.load(std::memory_order_relaxed);
    hooks.completions.call(key_, duration);
    return;
  }
  // Abort hooks are not called for works that were cancelled, or that were rejected before they had
  // any part.
  if (cancelled_ || parts_.empty()) return;
  hooks.aborts.call();
}

// Copies the results back and waits for the copies, because a thread that is notified of the end of
// the work can use the results in any stream.
void OperationWork::copy_results_back() {
  if (copies_.empty()) return;
  if (!device_) {
    for (const CopyBack& copy : copies_) copy.to.copy_(copy.from);
    return;
  }
  translated(name_, [this] { copy_on_device(); });
}

void OperationWork::copy_on_device() {
  const c10::Stream stream = group_->context().copy_stream(*device_);
  const c10::StreamGuard there(stream);
  for (const CopyBack& copy : copies_) copy.to.copy_(copy.from);
  if (!group_->context().has_streams(*device_)) {
    torch_backend::finish(stream);
    return;
  }
  c10::Event done(device_->type());
  done.record(stream);
  done.synchronize();
}

bool OperationWork::wait_for(Part& part, std::optional<Clock::time_point> deadline) {
  while (!part.reported.load(std::memory_order_acquire)) {
    hetcomm_completion_t completion;
    const hetcomm_status_t status =
        hetcomm_request_wait(part.request, nanoseconds_left(deadline), &completion);
    if (status == HETCOMM_OK) {
      report(part, completion);
      return true;
    }
    // Another thread has received the report and is about to publish it.
    if (status == HETCOMM_STALE_HANDLE) return true;
    if (status == HETCOMM_TIMED_OUT) {
      if (deadline && Clock::now() >= *deadline) return false;
      continue;
    }
    completion.status = status;
    completion.text = hetcomm_last_error();
    if (!part.reported.exchange(true)) {
      fail_with(completion);
      part_done();
    }
    return true;
  }
  return true;
}

bool OperationWork::wait_for_requests(std::optional<Clock::time_point> deadline) {
  if (Part* part = next_part()) {
    for (; part != parts_.end(); ++part) {
      if (!wait_for(*part, deadline)) return false;
    }
  }
  return true;
}

bool OperationWork::wait_until(std::optional<Clock::time_point> deadline) {
  if (!wait_for_requests(deadline)) return false;
  if (done()) return true;
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return done(); };
  if (deadline) return cv_.wait_until(lock, *deadline, is_done);
  cv_.wait(lock, is_done);
  return true;
}

OperationWork::Part* OperationWork::next_part() {
  size_t place = first_open_.load(std::memory_order_relaxed);
  while (place < parts_.size() && parts_[place].reported.load(std::memory_order_acquire)) ++place;
  first_open_.store(place, std::memory_order_relaxed);
  return place < parts_.size() ? &parts_[place] : nullptr;
}

void OperationWork::poll() {
  if (done()) return;
  while (Part* const part = next_part()) {
    hetcomm_completion_t completion;
    const hetcomm_status_t status = hetcomm_request_test(part->request, &completion);
    // If the handle is stale, another thread has received the report and is about to publish it.
    if (status == HETCOMM_PENDING || status == HETCOMM_STALE_HANDLE) return;
    if (status == HETCOMM_OK) {
      report(*part, completion);
    } else if (!wait_for(*part, Clock::now())) {
      return;
    }
  }
}

// Returns whether the work has ended. Right after the post, PyTorch's flight recorder calls this
// function, but only to determine whether hooks were already called. That call does not poll,
// because a poll that leaves the operation pending would wake the library's thread each time.
bool OperationWork::isCompleted() {
  const bool recorder_asks =
      std::exchange(just_posted, nullptr) == this && !group_->hooks().completions.empty();
  if (!recorder_asks) poll();
  return ended_.load(std::memory_order_acquire);
}

float OperationWork::getDuration() const {
  TORCH_CHECK(
      timed_from_.has_value(),
      "hetcomm: the group was not timed when this began; call _enable_collectives_timing()");
  TORCH_CHECK(ended_.load(std::memory_order_acquire), "hetcomm: ", name_, " has not ended");
  return duration_ms_.load(std::memory_order_relaxed);
}

bool OperationWork::isSuccess() const {
  const std::scoped_lock lock(mutex_);
  return ended_.load(std::memory_order_acquire) && !exception_;
}

// Waits like wait_until(), but Ctrl-C interrupts the wait. The operation continues.
bool OperationWork::wait_with_signals(std::optional<Clock::time_point> deadline) {
  const WaitingThread waiting;
  while (true) {
    const Clock::time_point look = Clock::now() + kSignalInterval;
    if (wait_until(deadline && *deadline < look ? deadline : look)) return true;
    if (deadline && Clock::now() >= *deadline) return false;
    check_signals();
  }
}

bool OperationWork::wait(std::chrono::milliseconds timeout) {
  if (!done()) {
    std::optional<Clock::time_point> deadline;
    if (timeout > kNoTimeout && timeout < std::chrono::hours(24 * 365)) {
      deadline = Clock::now() + timeout;
    }
    if (!wait_with_signals(deadline)) {
      C10_THROW_ERROR(DistBackendError,
                      std::string("hetcomm: ") + name_ + ": still running after " +
                          std::to_string(timeout.count()) + " ms; it goes on [TIMED_OUT]");
    }
    group_->sweep();
  }
  const std::scoped_lock lock(mutex_);
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void OperationWork::abort() {
  for (Part& part : parts_) {
    if (!part.reported.load(std::memory_order_acquire)) {
      static_cast<void>(hetcomm_request_cancel(part.request));
    }
  }
}

// Returns the devices on whose streams a future records events. A synchronous device has no
// streams.
std::vector<c10::Device> OperationWork::devices_of_future() const {
  if (!device_ || !group_->context().has_streams(*device_)) return {};
  return {*device_};
}

// Creates the future. If it has a device, PyTorch runs its callbacks in streams of that device.
c10::intrusive_ptr<c10::ivalue::Future> OperationWork::make_future() const {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  devices_of_future());
}

// Returns the future. watch() is called with the lock held that complete() needs to access future_,
// so that the future is sure to complete.
c10::intrusive_ptr<c10::ivalue::Future> OperationWork::getFuture() {
  poll();
  const std::scoped_lock lock(mutex_);
  if (!future_) {
    future_ = make_future();
    if (done()) complete_future(*future_, exception_, results_);
  }
  if (!done() && !watched_) {
    group_->watch(WorkRef::reclaim_copy(this));
    watched_ = true;
  }
  return future_;
}

}  // namespace hetcomm::torch_backend
