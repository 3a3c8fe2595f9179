#include "python/src/torch/group.h"

#include <algorithm>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <system_error>
#include <utility>

#include "python/src/torch/interrupts.h"
#include "python/src/torch/quiet_thread.h"
#include "python/src/torch/status.h"
#include "python/src/torch/store_bootstrap.h"
#include "python/src/torch/streams.h"

namespace hetcomm::torch_backend {
namespace {

using Clock = std::chrono::steady_clock;

// Users' tags have 32 bits.
constexpr uint64_t kWakeTag = uint64_t{1} << 63;
// Works that may be dropped and unfinished before they are looked at.
constexpr size_t kSweepAbove = 8;
constexpr std::chrono::seconds kCloseTime(10);
// If no message can wake the leader, it may miss for this time that there is more to watch.
constexpr uint64_t kDeafPauseNs = 10'000'000;

uint64_t nanoseconds(std::chrono::milliseconds time) {
  return static_cast<uint64_t>(std::max<int64_t>(time.count(), 1)) * 1'000'000;
}

// The others of the group wait for this rank: they read why it does not come.
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

thread_local const Group* Group::inside_ = nullptr;

void fail_closed(const std::string& reason) {
  C10_THROW_ERROR(DistBackendError, "hetcomm: the process group is closed: " + reason);
}

Group::Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
             const GroupSettings& settings)
    : context_(context_or_refusal(*store, rank, size, settings.settings)), rank_(rank) {
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
}

Group::Group(int rank, const GroupSettings& settings, const std::string& reason)
    : context_(SharedContext::get(settings.settings)),
      rank_(rank),
      closed_(true),
      close_reason_(reason),
      closed_wholly_(true) {}

Group::~Group() { close("the process group is gone"); }

void Group::keep(const WorkRef& work) {
  work->slot = pending_.size();
  pending_.push_back(work);
  if (work->device()) has_device_works_.store(true, std::memory_order_relaxed);
  pending_count_.store(pending_.size(), std::memory_order_relaxed);
}

void Group::forget(OperationWork& work) {
  WorkRef dropped;  // outlives the lock
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

void Group::sweep() {
  // Memory of devices is scarce.
  const size_t most = has_device_works_.load(std::memory_order_relaxed) ? 0 : kSweepAbove;
  if (pending_count_.load(std::memory_order_relaxed) <= most) return;
  std::vector<WorkRef> dropped;
  {
    const std::scoped_lock lock(mutex_);
    for (const WorkRef& work : pending_) {
      if (work.use_count() == 1) dropped.push_back(work);
    }
  }
  for (const WorkRef& work : dropped) work->poll();
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
      // Events know streams of one type.
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
  open_groups_.reserve(open_groups_.size() + 1);
  hetcomm_group_t* group = nullptr;
  check("coalescing", hetcomm_group_create(communicator_, &group));
  open_groups_.push_back(group);
  return group;
}

void Group::start_group(hetcomm_group_t* group) {
  const std::scoped_lock lock(mutex_);
  if (closed_) fail_closed(close_reason_);
  // The others were dropped when one before this was closed.
  TORCH_CHECK(std::erase(open_groups_, group) == 1, "hetcomm: coalescing: it was dropped");
  const hetcomm_status_t status = hetcomm_group_start(group);
  const std::string why = status == HETCOMM_OK ? "" : hetcomm_last_error();
  hetcomm_group_destroy(group);
  TORCH_CHECK(status == HETCOMM_OK, "hetcomm: coalescing: ", why);
}

void Group::drop_group(hetcomm_group_t* group) {
  const std::scoped_lock lock(mutex_);
  // Those of a closed group were dropped with it.
  if (std::erase(open_groups_, group) == 1) hetcomm_group_destroy(group);
}

void Group::drop_open_groups() {
  const std::scoped_lock lock(mutex_);
  for (hetcomm_group_t* group : open_groups_) hetcomm_group_destroy(group);
  open_groups_.clear();
}

void Group::set_hook(std::shared_ptr<const Hook> hook) {
  const std::scoped_lock lock(mutex_);
  TORCH_CHECK(!has_hook(), "hetcomm: there is a completion hook already");
  TORCH_CHECK(pending_.empty(), "hetcomm: a completion hook comes before the operations");
  hook_ = std::move(hook);
  hooked_.store(true, std::memory_order_release);
}

void Group::call_hook(std::shared_ptr<c10d::WorkInfo> work) const {
  try {
    (*hook_)(std::move(work));
  } catch (const std::exception& error) {
    LOG(ERROR) << "hetcomm: a completion hook failed: " << error.what();
  }
}

void Group::wait_for_pending() {
  std::vector<WorkRef> works;
  {
    const std::scoped_lock lock(mutex_);
    works = pending_;
  }
  for (const WorkRef& work : works) work->wait_until(std::nullopt);
}

hetcomm_status_t Group::peer_status(int rank) {
  const std::scoped_lock lock(mutex_);
  if (closed_) return HETCOMM_ABORTED;
  return hetcomm_communicator_peer_status(communicator_, rank);
}

hetcomm_communicator_t* Group::lend(std::function<void()> forget) {
  const std::scoped_lock lock(mutex_);
  if (closed_) fail_closed(close_reason_);
  borrowers_.push_back(std::move(forget));
  return communicator_;
}

// Whoever has borrowed the communicator lets go of it.
void Group::call_borrowers() {
  std::vector<std::function<void()>> borrowers;
  {
    const std::scoped_lock lock(mutex_);
    borrowers.swap(borrowers_);
  }
  for (const std::function<void()>& forget : borrowers) {
    try {
      forget();
    } catch (const std::exception& error) {
      LOG(WARNING) << "hetcomm: the end of a group: " << error.what();
    }
  }
}

void Group::refuse(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (closed_) return;
  static_cast<void>(hetcomm_collective_refuse(communicator_, reason.c_str()));
}

void Group::abort(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (closed_ || !alive()) return;
  static_cast<void>(hetcomm_communicator_abort(communicator_, reason.c_str()));
}

void Group::close(const std::string& reason) {
  {
    std::unique_lock lock(mutex_);
    if (closed_) {
      // The thread that closes waits for the callbacks that watchers run. These do not wait for it.
      if (inside_ != this) close_over_.wait(lock, [this] { return closed_wholly_; });
      return;
    }
    closed_ = true;
    close_reason_ = reason;
  }
  const Group* const outer = std::exchange(inside_, this);
  if (communicator_ != nullptr && alive()) {
    call_borrowers();
    drop_open_groups();
    finish_pending();
    stop_watchers();
    destroy_communicator();
  } else {
    // A forked child: neither the threads nor the communicator are here.
    for (std::thread& watcher : watchers_) watcher.detach();
  }
  inside_ = outer;
  const std::scoped_lock lock(mutex_);
  closed_wholly_ = true;
  close_over_.notify_all();
}

void Group::finish_pending() {
  std::vector<WorkRef> works;
  {
    const std::scoped_lock lock(mutex_);
    works = pending_;
  }
  // Cancelled, not aborted: what other ranks still do with each other goes on.
  for (const WorkRef& work : works) {
    work->poll();
    work->abort();
  }
  const auto deadline = Clock::now() + kCloseTime;
  for (const WorkRef& work : works) {
    if (!work->wait_until(deadline)) LOG(WARNING) << "hetcomm: an operation did not end in time";
  }
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
    LOG(WARNING) << "hetcomm: a communicator could not be closed: " << hetcomm_last_error();
  }
  communicator_ = nullptr;
}

// --- watchers ----------------------------------------------------------------------------------

void Group::watch(const WorkRef& work) {
  const std::scoped_lock lock(watcher_mutex_);
  if (watchers_stop_) return;  // close() has completed it, or is at it
  watched_.push_back(work);
  try {
    call_watcher();
  } catch (...) {
    watched_.pop_back();
    throw;
  }
}

// Under watcher_mutex_: one that is not in a callback looks at what is watched.
void Group::call_watcher() {
  if (watchers_stop_) return;
  if (led_) {
    wake_leader();
  } else if (free_watchers_ > 0) {
    watcher_called_.notify_one();
  } else {
    try {
      watchers_.reserve(watchers_.size() + 1);
      watchers_.push_back(
          start_without_signals([self = shared_from_this()] { self->run_watcher(); }));
      ++free_watchers_;
    } catch (const std::system_error&) {
      // One that is in a callback looks when it comes back.
      if (watchers_.empty()) throw;
    }
  }
}

// Under watcher_mutex_. One message for each time that it sleeps.
void Group::wake_leader() {
  if (!leader_sleeps_) return;
  leader_sleeps_ = false;
  hetcomm_request_t* request = nullptr;
  if (hetcomm_send(communicator_, rank_, kWakeTag, hetcomm_buffer_host(this, 0), nullptr,
                   &request) == HETCOMM_OK) {
    static_cast<void>(hetcomm_request_release(request));
  }
}

void Group::run_watcher() {
  inside_ = this;
  std::unique_lock lock(watcher_mutex_);
  while (true) {
    watcher_called_.wait(lock, [this] { return watchers_stop_ || (!led_ && !watched_.empty()); });
    if (watchers_stop_) return;
    led_ = true;
    Report report = lead(lock);
    led_ = false;
    if (!report.work) continue;
    --free_watchers_;
    if (!watched_.empty()) call_watcher();
    lock.unlock();
    report.work->report(report.request, report.completion);
    if (report.work->next_request() == nullptr) report.work.reset();
    lock.lock();
    ++free_watchers_;
    if (!report.work) continue;
    if (watchers_stop_) {
      lock.unlock();
      report.work.reset();
      return;
    }
    watched_.push_back(std::move(report.work));
    call_watcher();
  }
}

// Until a request has ended, or there is nothing to watch, or the watchers stop.
Group::Report Group::lead(std::unique_lock<std::mutex>& lock) {
  hetcomm_operation_options_t endless{};
  endless.struct_size = sizeof(endless);
  endless.timeout_ns = HETCOMM_TIMEOUT_INFINITE;
  std::vector<hetcomm_request_t*> requests;
  std::vector<WorkRef> works;  // of the requests
  std::vector<WorkRef> over;   // dropped without the lock: tensors may go with them
  while (true) {
    requests.assign(1, nullptr);
    for (WorkRef& work : watched_) {
      // The thread that got the last report completes the work.
      hetcomm_request_t* const request = work->next_request();
      if (request != nullptr) requests.push_back(request);
      (request != nullptr ? works : over).push_back(std::move(work));
    }
    watched_ = works;
    if (watchers_stop_ || works.empty()) {
      lock.unlock();
      works.clear();
      over.clear();
      lock.lock();
      return {};
    }
    if (wake_ == nullptr && !deaf_) {
      deaf_ = hetcomm_recv(communicator_, rank_, kWakeTag, HETCOMM_EXACT_TAG,
                           hetcomm_buffer_host(this, 0), &endless, &wake_) != HETCOMM_OK;
    }
    requests[0] = wake_;
    leader_sleeps_ = !deaf_;
    lock.unlock();
    over.clear();
    size_t index = 0;
    Report report;
    const hetcomm_status_t status = hetcomm_request_wait_any(
        requests.size(), requests.data(), deaf_ ? kDeafPauseNs : HETCOMM_TIMEOUT_INFINITE, &index,
        &report.completion);
    if (status == HETCOMM_OK && index > 0) {
      report.work = std::move(works[index - 1]);
      report.request = requests[index];
    } else if (status != HETCOMM_OK && status != HETCOMM_TIMED_OUT) {
      std::this_thread::yield();  // another thread has taken one of the reports
    }
    works.clear();
    lock.lock();
    leader_sleeps_ = false;
    if (report.work) {
      std::erase(watched_, report.work);
      return report;
    }
    if (status == HETCOMM_OK) {
      wake_ = nullptr;
      deaf_ = report.completion.status != HETCOMM_OK;
    }
  }
}

void Group::stop_watchers() {
  std::vector<std::thread> watchers;
  {
    const std::scoped_lock lock(watcher_mutex_);
    watchers_stop_ = true;
    watchers.swap(watchers_);
    watcher_called_.notify_all();
    wake_leader();
  }
  for (std::thread& watcher : watchers) {
    // A callback may drop the last reference to the process group.
    if (watcher.get_id() == std::this_thread::get_id()) {
      watcher.detach();
    } else {
      watcher.join();
    }
  }
  const std::vector<WorkRef> over = std::move(watched_);
  if (wake_ == nullptr) return;
  static_cast<void>(hetcomm_request_cancel(wake_));
  static_cast<void>(hetcomm_request_wait(wake_, HETCOMM_TIMEOUT_INFINITE, nullptr));
}

}  // namespace hetcomm::torch_backend
