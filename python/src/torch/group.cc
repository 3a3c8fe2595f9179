#include "python/src/torch/group.h"

#include <algorithm>
#include <array>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <utility>

#include "python/src/torch/interrupts.h"
#include "python/src/torch/log.h"
#include "python/src/torch/status.h"
#include "python/src/torch/store_bootstrap.h"
#include "python/src/torch/streams.h"

namespace hetcomm::torch_backend {
namespace {

using Clock = std::chrono::steady_clock;

// Until the first work on a device is posted, sweep() does nothing while at most this many works
// are pending.
constexpr size_t kSweepAbove = 8;
// The numbers of works that sweep() and look_at_all() collect each time they hold the lock.
constexpr size_t kSweptAtOnce = 8;
constexpr size_t kLookedAtOnce = 256;
constexpr std::chrono::seconds kCloseTime(10);

uint64_t nanoseconds(std::chrono::milliseconds time) {
  return static_cast<uint64_t>(std::max<int64_t>(time.count(), 1)) * 1'000'000;
}

// Returns the context. On failure, stores the reason in |store| for the other ranks, which are
// waiting for this one, and throws.
std::shared_ptr<SharedContext> context_or_refusal(c10d::Store& store, int rank, int size,
                                                  const std::string& settings) {
  try {
    return SharedContext::get(settings);
  } catch (const c10::Error& error) {
    StoreBootstrap::refuse(store, rank, size, error.what_without_backtrace());
    throw;
  }
}

}  // namespace

void fail_closed(const std::string& reason) {
  C10_THROW_ERROR(DistBackendError, "hetcomm: the process group is closed: " + reason);
}

Group::Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
             const GroupSettings& settings)
    : context_(context_or_refusal(*store, rank, size, settings.settings)),
      rank_(rank),
      hooks_(settings.hooks) {
  StoreBootstrap bootstrap(context_->handle(), std::move(store), rank, size);
  generation_ = bootstrap.generation();
  hetcomm_communicator_options_t options{};
  options.struct_size = sizeof(options);
  options.name = settings.name.c_str();
  options.epoch = generation_;
  options.transports = settings.transports.empty() ? nullptr : settings.transports.c_str();
  options.timeout_ns = nanoseconds(settings.timeout);
  options.share = settings.share ? 1 : 0;
  const hetcomm_status_t status =
      hetcomm_communicator_create(context_->handle(), bootstrap.handle(), &options, &communicator_);
  if (status != HETCOMM_OK) {
    bootstrap.give_up();
    std::string what = "creating group '" + settings.name + "'";
    if (!bootstrap.store_error().empty()) what += " (store: " + bootstrap.store_error() + ")";
    fail(what, status);
  }
  watchers_.start(communicator_, rank);
}

Group::Group(int rank, const GroupSettings& settings, const std::string& reason)
    : context_(SharedContext::get(settings.settings)),
      rank_(rank),
      state_(State::kClosed),
      close_reason_(reason),
      hooks_(settings.hooks) {}

Group::~Group() { close("the process group is gone"); }

// Adds an accepted work to pending_. Cannot fail, since memory was reserved before.
void Group::keep(const WorkRef& work) noexcept {
  pending_.push_back(work);
  work->slot = pending_.size() - 1;
  ++posted_;
  if (work->device()) has_device_works_.store(true, std::memory_order_relaxed);
  pending_count_.store(pending_.size(), std::memory_order_relaxed);
}

void Group::forget(OperationWork& work) {
  WorkRef dropped;  // destroyed after the lock is released
  const std::scoped_lock lock(mutex_);
  if (work.slot == OperationWork::kNoSlot) return;
  dropped = std::move(pending_[work.slot]);
  if (work.slot + 1 != pending_.size()) {
    pending_[work.slot] = std::move(pending_.back());
    pending_[work.slot]->slot = work.slot;
  }
  pending_.pop_back();
  work.slot = OperationWork::kNoSlot;
  pending_count_.store(pending_.size(), std::memory_order_relaxed);
}

void Group::sweep() noexcept {
  // Works on devices are swept immediately, because device memory is scarce.
  const size_t most = has_device_works_.load(std::memory_order_relaxed) ? 0 : kSweepAbove;
  if (pending_count_.load(std::memory_order_relaxed) <= most) return;
  bool some_ended = true;
  while (some_ended) {
    std::array<WorkRef, kSweptAtOnce> dropped;
    size_t count = 0;
    {
      const std::scoped_lock lock(mutex_);
      const size_t looks = std::min(kSweptAtOnce, pending_.size());
      for (size_t i = 0; i < looks; ++i) {
        if (swept_ >= pending_.size()) swept_ = 0;
        const WorkRef& work = pending_[swept_++];
        if (work.use_count() == 1) dropped[count++] = work;
      }
    }
    some_ended = false;
    for (size_t i = 0; i < count; ++i) some_ended = dropped[i]->isCompleted() || some_ended;
  }
}

void Group::look_after_works() noexcept {
  if (looked_after_.load(std::memory_order_relaxed) || looked_after_.exchange(true)) return;
  try {
    context_->lookout().add([weak = weak_from_this()] {
      // |self| may be the last reference to the group. Its destruction then releases Python hooks,
      // outside all scopes of completions_. |counted| makes the shutdown of the interpreter wait
      // for that.
      const WaitingThread counted;
      const std::shared_ptr<Group> self = weak.lock();
      return self && self->look_at_all();
    });
  } catch (...) {
    looked_after_.store(false);
    log_thrown("a thread for hooks");
  }
}

// Examines all works. Returns whether there may be more works to examine.
bool Group::look_at_all() {
  // The works that are dropped here may release Python objects. close() and the shutdown of the
  // interpreter wait for this scope.
  const Completions::Scope here(completions_);
  size_t place = 0;
  size_t left = pending_count_.load(std::memory_order_relaxed);  // limit, as others may still post
  while (left > 0) {
    std::array<WorkRef, kLookedAtOnce> works;
    size_t count = 0;
    {
      const std::scoped_lock lock(mutex_);
      for (; place < pending_.size() && count < std::min(left, works.size()); ++place) {
        works[count++] = pending_[place];
      }
    }
    if (count == 0) break;
    left -= count;
    for (size_t i = 0; i < count; ++i) {
      works[i]->poll();
      if (works[i]->done()) --place;  // another work has moved to its position
    }
  }
  const std::scoped_lock lock(mutex_);
  if (!pending_.empty() || std::exchange(posted_before_, posted_) != posted_) return true;
  looked_after_.store(false);
  return false;
}

namespace {

void check_not_captured(const char* operation, const c10::Stream& stream) {
  if (!is_captured(stream)) return;
  C10_THROW_ERROR(DistBackendError,
                  std::string("hetcomm: ") + operation +
                      ": the current stream is captured into a graph [UNSUPPORTED]");
}

}  // namespace

hetcomm_stream_t* Group::stream_of(const OperationWork& work) {
  if (!work.device()) return nullptr;
  return translated(work.name(), [&] { return context_->stream(current_stream(*work.device())); });
}

hetcomm_stream_t* Group::stream_of_message(const OperationWork& work) {
  const std::optional<c10::Device> device = work.device();
  if (!device && !message_stream_) return nullptr;
  return translated(work.name(), [&] {
    if (device) {
      const c10::Stream current = current_stream(*device);
      check_not_captured(work.name(), current);
      if (!context_->has_streams(*device)) return context_->stream(current);
      if (!message_stream_) message_stream_ = make_stream(*device);
      // An event can be used only with streams of one device type.
      TORCH_CHECK_VALUE(message_stream_->device_type() == device->type(), "hetcomm ", work.name(),
                        ": the messages of a group are of one type of device, ",
                        message_stream_->device_type(), ", and of the host; this one is on ",
                        *device);
      c10::Event reached(device->type());
      reached.record(current);
      reached.block(*message_stream_);
    }
    return context_->stream(*message_stream_);
  });
}

hetcomm_group_t* Group::open_group() {
  make_room(open_groups_);
  hetcomm_group_t* group = nullptr;
  check("coalescing", hetcomm_group_create(communicator_, &group));
  open_groups_.push_back(group);
  return group;
}

void Group::start_group(hetcomm_group_t* group) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kOpen) fail_closed(close_reason_);
  // close() may have dropped |group|.
  TORCH_CHECK(std::erase(open_groups_, group) == 1, "hetcomm: coalescing: it was dropped");
  const hetcomm_status_t status = hetcomm_group_start(group);
  const std::string why = status == HETCOMM_OK ? "" : hetcomm_last_error();
  hetcomm_group_destroy(group);
  TORCH_CHECK(status == HETCOMM_OK, "hetcomm: coalescing: ", why);
}

void Group::drop_group(hetcomm_group_t* group) {
  const std::scoped_lock lock(mutex_);
  // If the group is closed, close() has already destroyed |group|.
  if (std::erase(open_groups_, group) == 1) hetcomm_group_destroy(group);
}

void Group::drop_open_groups() {
  const std::scoped_lock lock(mutex_);
  for (hetcomm_group_t* group : open_groups_) hetcomm_group_destroy(group);
  open_groups_.clear();
}

namespace {

// Waits until |work| is done. Returns false if |deadline| passes first. If |nested|, this thread
// runs a hook or a callback. It then waits only until the requests have ended, and not for the
// thread that completes the work, because a hook on that thread may be waiting for this one.
bool wait_for(OperationWork& work, bool nested, std::optional<Clock::time_point> deadline) {
  return nested ? work.wait_for_requests(deadline) : work.wait_until(deadline);
}

}  // namespace

void Group::wait_for_pending() {
  const bool nested = Completions::any_here();
  std::vector<WorkRef> works;
  {
    std::unique_lock lock(mutex_);
    // close() takes over the pending works and waits for them.
    if (state_ != State::kOpen && !nested) {
      close_over_.wait(lock, [this] { return state_ == State::kClosed; });
    }
    works = pending_;
  }
  for (const WorkRef& work : works) wait_for(*work, nested, std::nullopt);
}

hetcomm_status_t Group::peer_status(int rank) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kOpen) return HETCOMM_ABORTED;
  return hetcomm_communicator_peer_status(communicator_, rank);
}

hetcomm_communicator_t* Group::lend(std::function<void()> forget) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kOpen) fail_closed(close_reason_);
  borrowers_.push_back(std::move(forget));
  return communicator_;
}

// Calls the |forget| functions passed to lend(). After that, borrowers no longer use the
// communicator.
void Group::call_borrowers() noexcept {
  std::vector<std::function<void()>> borrowers;
  {
    const std::scoped_lock lock(mutex_);
    borrowers.swap(borrowers_);
  }
  for (const std::function<void()>& forget : borrowers) {
    try {
      forget();
    } catch (...) {
      log_thrown("the end of a borrowed communicator");
    }
  }
}

void Group::refuse(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kOpen || !alive()) return;
  static_cast<void>(hetcomm_collective_refuse(communicator_, reason.c_str()));
}

void Group::abort(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kOpen || !alive()) return;
  static_cast<void>(hetcomm_communicator_abort(communicator_, reason.c_str()));
}

void Group::cancel_all(const std::string& reason) {
  std::string why = reason;
  const std::scoped_lock lock(mutex_);
  if (state_ != State::kOpen || !alive()) return;
  state_ = State::kRefuses;
  close_reason_.swap(why);
  for (const WorkRef& work : pending_) work->abort();
}

void Group::close(const std::string& reason) {
  std::string why = reason;
  const bool nested = Completions::any_here();
  {
    std::unique_lock lock(mutex_);
    if (state_ == State::kCloses || state_ == State::kClosed) {
      lock.unlock();
      if (!nested) wait_until_closed();
      return;
    }
    if (state_ == State::kOpen) close_reason_.swap(why);
    state_ = State::kCloses;
  }
  const std::exception_ptr raised = close_open_group(nested);
  {
    const std::scoped_lock lock(mutex_);
    state_ = State::kClosed;
    close_over_.notify_all();
  }
  if (raised) std::rethrow_exception(raised);
}

// Waits until another call of close() has closed the group, and until no hook is running. If that
// call was made by a hook, hooks may still run afterwards.
void Group::wait_until_closed() {
  if (!alive()) return;  // a forked child does not have the threads
  wait_in_steps("another thread that ends it", [this](std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return close_over_.wait_for(lock, limit, [this] { return state_ == State::kClosed; });
  });
  wait_for_completions(/*own=*/0);
}

// Closes the group. Returns the exception of a signal handler, or null.
std::exception_ptr Group::close_open_group(bool nested) noexcept {
  const Completions::Scope here(completions_);
  // A forked child has neither the threads nor the communicator.
  if (communicator_ == nullptr || !alive()) {
    watchers_.forget_threads();
    return nullptr;
  }
  call_borrowers();
  drop_open_groups();
  finish_pending(nested);
  watchers_.stop();
  std::exception_ptr raised;
  try {
    if (!nested) wait_for_completions(/*own=*/1);
  } catch (...) {
    raised = std::current_exception();
  }
  watchers_.let_go(/*waits=*/!nested && !raised);
  destroy_communicator();
  return raised;
}

// Moves all works out of pending_, so that no other thread finds them there. Cancels them, and
// waits for at most kCloseTime until they are done. Does not allocate memory.
void Group::finish_pending(bool nested) {
  std::vector<WorkRef> works;
  {
    const std::scoped_lock lock(mutex_);
    works.swap(pending_);
    for (const WorkRef& work : works) work->slot = OperationWork::kNoSlot;
    pending_count_.store(0, std::memory_order_relaxed);
  }
  // Cancels each work instead of aborting the communicator, so that operations among the other
  // ranks continue.
  for (const WorkRef& work : works) {
    work->poll();
    work->abort();
  }
  const auto deadline = Clock::now() + kCloseTime;
  for (const WorkRef& work : works) {
    if (!wait_for(*work, nested, deadline)) log_warning("an operation did not end in time");
  }
}

// Waits for the hooks and callbacks of completed works on other threads. |own| is the number of
// scopes of the calling thread.
void Group::wait_for_completions(size_t own) {
  wait_in_steps("a hook or a callback of one of its operations",
                [this, own](std::chrono::milliseconds limit) {
                  return completions_.wait_for_others(own, limit);
                });
}

void Group::destroy_communicator() {
  const auto deadline = Clock::now() + kCloseTime;
  hetcomm_status_t status = hetcomm_communicator_destroy(communicator_);
  while (status == HETCOMM_BUSY && Clock::now() < deadline) {
    static_cast<void>(hetcomm_context_progress(context_->handle()));
    std::this_thread::yield();
    status = hetcomm_communicator_destroy(communicator_);
  }
  if (status != HETCOMM_OK) {
    log_warning("a communicator could not be closed: ", hetcomm_last_error());
  }
  communicator_ = nullptr;
}

}  // namespace hetcomm::torch_backend
