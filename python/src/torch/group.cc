#include "python/src/torch/group.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <utility>

#include "python/src/torch/status.h"
#include "python/src/torch/store_bootstrap.h"

namespace hetcomm::torch_backend {
namespace {

using Clock = std::chrono::steady_clock;

// Users' tags have 32 bits.
constexpr uint64_t kWakeTag = uint64_t{1} << 63;
// Works that may be dropped and unfinished before they are looked at.
constexpr size_t kSweepAbove = 8;
constexpr std::chrono::seconds kCloseTime(10);
// How long the watcher may miss that there is more to watch when no message can wake it.
constexpr uint64_t kDeafPauseNs = 10'000'000;

uint64_t nanoseconds(std::chrono::milliseconds time) {
  return static_cast<uint64_t>(std::max<int64_t>(time.count(), 1)) * 1'000'000;
}

}  // namespace

void fail_closed(const std::string& reason) {
  C10_THROW_ERROR(DistBackendError, "hetcomm: the process group is closed: " + reason);
}

Group::Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
             const GroupSettings& settings)
    : context_(SharedContext::get(settings.settings)) {
  StoreBootstrap bootstrap(context_->handle(), std::move(store), rank, size);
  generation_ = bootstrap.generation();
  hetcomm_communicator_options_t options{};
  options.struct_size = sizeof(options);
  options.name = settings.name.c_str();
  options.epoch = generation_;
  options.transports = settings.transports.empty() ? nullptr : settings.transports.c_str();
  options.timeout_ns = nanoseconds(settings.timeout);
  const hetcomm_status_t status =
      hetcomm_communicator_create(context_->handle(), bootstrap.handle(), &options, &communicator_);
  if (status != HETCOMM_OK) {
    std::string what = "creating group '" + settings.name + "'";
    if (!bootstrap.store_error().empty()) what += " (store: " + bootstrap.store_error() + ")";
    fail(what, status);
  }
}

Group::~Group() { close("the process group is gone"); }

void Group::keep(const WorkRef& work) {
  work->slot = pending_.size();
  pending_.push_back(work);
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
  if (pending_count_.load(std::memory_order_relaxed) <= kSweepAbove) return;
  std::vector<WorkRef> dropped;
  {
    const std::scoped_lock lock(mutex_);
    for (const WorkRef& work : pending_) {
      if (work.use_count() == 1) dropped.push_back(work);
    }
  }
  for (const WorkRef& work : dropped) work->poll();
}

hetcomm_status_t Group::peer_status(int rank) {
  const std::scoped_lock lock(mutex_);
  if (closed_) return HETCOMM_ABORTED;
  return hetcomm_communicator_peer_status(communicator_, rank);
}

void Group::abort(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (closed_ || !alive()) return;
  static_cast<void>(hetcomm_communicator_abort(communicator_, reason.c_str()));
}

void Group::close(const std::string& reason) {
  const std::scoped_lock closing(close_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    close_reason_ = reason;
  }
  if (communicator_ == nullptr) return;
  if (!alive()) {
    // A forked child: neither the thread nor the communicator is here.
    if (watcher_.joinable()) watcher_.detach();
    return;
  }
  finish_pending();
  stop_watcher();
  destroy_communicator();
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

void Group::watch(const WorkRef& work) {
  const std::scoped_lock lock(watcher_mutex_);
  if (watcher_stops_) return;  // close() has completed it, or is at it
  watch_inbox_.push_back(work);
  if (watcher_.joinable()) {
    wake_watcher();
  } else {
    watcher_ = std::thread([this] { run_watcher(); });
  }
}

// Under watcher_mutex_. One message for each time that the watcher waits.
void Group::wake_watcher() {
  watcher_called_.notify_one();
  if (!watcher_waits_) return;
  watcher_waits_ = false;
  hetcomm_request_t* request = nullptr;
  int32_t rank = 0;
  int32_t size = 0;
  if (hetcomm_communicator_rank(communicator_, &rank, &size) == HETCOMM_OK &&
      hetcomm_send(communicator_, rank, kWakeTag, hetcomm_buffer_host(this, 0), nullptr,
                   &request) == HETCOMM_OK) {
    static_cast<void>(hetcomm_request_release(request));
  }
}

void Group::stop_watcher() {
  {
    const std::scoped_lock lock(watcher_mutex_);
    watcher_stops_ = true;
    if (!watcher_.joinable()) return;
    wake_watcher();
  }
  watcher_.join();
}

// Adds what came in; false when the watcher has to go. |deaf|: messages do not wake it.
bool Group::collect_watched(std::vector<WorkRef>& watched, bool deaf) {
  std::unique_lock lock(watcher_mutex_);
  if (deaf && watched.empty()) {
    watcher_called_.wait(lock, [this] { return watcher_stops_ || !watch_inbox_.empty(); });
  }
  for (WorkRef& work : watch_inbox_) watched.push_back(std::move(work));
  watch_inbox_.clear();
  watcher_waits_ = !deaf;
  return !watcher_stops_;
}

void Group::run_watcher() {
  int32_t rank = 0;
  int32_t size = 0;
  static_cast<void>(hetcomm_communicator_rank(communicator_, &rank, &size));
  hetcomm_operation_options_t endless{};
  endless.struct_size = sizeof(endless);
  endless.timeout_ns = HETCOMM_TIMEOUT_INFINITE;
  hetcomm_request_t* wake = nullptr;
  bool deaf = false;  // the communicator was aborted: no message will come
  std::vector<WorkRef> watched;
  std::vector<hetcomm_request_t*> requests;
  while (true) {
    if (wake == nullptr && !deaf &&
        hetcomm_recv(communicator_, rank, kWakeTag, HETCOMM_EXACT_TAG, hetcomm_buffer_host(this, 0),
                     &endless, &wake) != HETCOMM_OK) {
      wake = nullptr;
      deaf = true;
    }
    std::erase_if(watched, [](const WorkRef& work) { return work->done(); });
    if (!collect_watched(watched, deaf)) break;
    requests.assign(1, wake);
    for (const WorkRef& work : watched) requests.push_back(work->next_request());
    const bool none =
        std::all_of(requests.begin(), requests.end(),
                    [](const hetcomm_request_t* request) { return request == nullptr; });
    if (none) {
      std::this_thread::yield();  // another thread is about to say that they are done
      continue;
    }
    size_t index = 0;
    hetcomm_completion_t completion;
    const hetcomm_status_t status = hetcomm_request_wait_any(
        requests.size(), requests.data(), deaf ? kDeafPauseNs : HETCOMM_TIMEOUT_INFINITE, &index,
        &completion);
    if (status == HETCOMM_OK && index == 0) {
      wake = nullptr;
      deaf = completion.status != HETCOMM_OK;
    } else if (status == HETCOMM_OK) {
      watched[index - 1]->report(requests[index], completion);
    } else if (status != HETCOMM_TIMED_OUT) {
      std::this_thread::yield();  // another thread has taken one of the reports
    }
  }
  if (wake != nullptr) {
    static_cast<void>(hetcomm_request_cancel(wake));
    static_cast<void>(hetcomm_request_wait(wake, HETCOMM_TIMEOUT_INFINITE, nullptr));
  }
}

}  // namespace hetcomm::torch_backend
