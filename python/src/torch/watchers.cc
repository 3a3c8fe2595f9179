#include "python/src/torch/watchers.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "python/src/torch/quiet_thread.h"
#include "python/src/torch/room.h"

namespace hetcomm::torch_backend {
namespace {

// The tag of messages that wake the leader. User tags have 32 bits, so they cannot equal it.
constexpr uint64_t kWakeTag = uint64_t{1} << 63;
// The longest sleep of a leader that messages cannot wake. It does not notice new works in this
// time.
constexpr uint64_t kDeafPauseNs = 10'000'000;
// Minimum time between two rounds.
constexpr std::chrono::microseconds kShortestRoundPause(100);
// A pause is this many times as long as the round before it.
constexpr int kPausePerRound = 4;

}  // namespace

Watchers::Watchers(Completions& completions) : completions_(completions) {
  window_.requests.reserve(kWindow + 1);
  window_.parts.reserve(kWindow);
  window_.works.reserve(kWindow);
}

void Watchers::watch(const WorkRef& work, const std::shared_ptr<void>& owner) {
  const std::scoped_lock lock(mutex_);
  if (stops_) return;  // the thread that called stop() completes the work
  added_.push_back(work);
  try {
    call_watcher(owner);
  } catch (...) {
    added_.pop_back();
    throw;
  }
}

// Makes a thread that is not in a callback examine the watched works. Called with mutex_ held.
void Watchers::call_watcher(const std::shared_ptr<void>& owner) {
  if (stops_) return;
  if (led_) {
    wake_leader();
  } else if (free_threads_ > 0) {
    called_.notify_one();
  } else {
    try {
      make_room(threads_);
      threads_.push_back(start_without_signals([this, held = owner]() mutable {
        // |held| may be the last reference to the group. Its destruction then releases Python
        // hooks, outside all scopes. |counted| makes the shutdown of the interpreter wait for that.
        const WaitingThread counted = run(held);
        held.reset();
      }));
      ++free_threads_;
    } catch (const std::exception&) {
      // A thread that is in a callback will examine the works when the callback returns.
      if (threads_.empty()) throw;
    }
  }
}

// If the leader is asleep, sends it a message that wakes it, once per sleep. Called with mutex_
// held.
void Watchers::wake_leader() {
  if (!leader_sleeps_) return;
  leader_sleeps_ = false;
  woken_ = true;
  hetcomm_request_t* request = nullptr;
  if (hetcomm_send(communicator_, rank_, kWakeTag, hetcomm_buffer_host(this, 0), nullptr,
                   &request) == HETCOMM_OK) {
    static_cast<void>(hetcomm_request_destroy(request));
  }
}

WaitingThread Watchers::run(const std::shared_ptr<void>& owner) {
  const Completions::Scope here(completions_);
  std::unique_lock lock(mutex_);
  while (true) {
    called_.wait(lock,
                 [this] { return stops_ || (!led_ && !(watched_.empty() && added_.empty())); });
    if (stops_) return {};
    led_ = true;
    leader_ = std::this_thread::get_id();
    Report report = lead(lock);
    led_ = false;
    if (report.work.empty()) continue;
    --free_threads_;
    if (!watched_.empty() || !added_.empty()) call_watcher(owner);
    lock.unlock();
    OperationWork& work = *report.work.front();
    work.report(*report.part, report.completion);
    if (work.next_part() == nullptr) report.work.clear();
    lock.lock();
    ++free_threads_;
    if (report.work.empty()) continue;
    if (stops_) {
      lock.unlock();
      report.work.clear();
      return {};
    }
    added_.splice(added_.end(), report.work);
    call_watcher(owner);
  }
}

// Runs as the leader until a request has ended, there is nothing to watch, or the watchers stop.
Watchers::Report Watchers::lead(std::unique_lock<std::mutex>& lock) {
  hetcomm_operation_options_t endless{};
  endless.struct_size = sizeof(endless);
  endless.timeout_ns = HETCOMM_TIMEOUT_INFINITE;
  Report report;
  while (!stops_) {
    watched_.splice(watched_.end(), added_);
    if (watched_.empty()) break;
    if (wake_ == nullptr && !deaf_) {
      deaf_ = hetcomm_recv(communicator_, rank_, kWakeTag, HETCOMM_EXACT_TAG,
                           hetcomm_buffer_host(this, 0), &endless, &wake_) != HETCOMM_OK;
    }
    leader_sleeps_ = !deaf_ && !woken_;
    lock.unlock();
    if (watched_.size() > kWindow && (in_round_ || Clock::now() >= next_round_)) {
      report = go_round();
    }
    if (report.work.empty()) {
      fill(watched_.begin(), wake_);
      // If fill() has found completed works, the window is filled again before the wait.
      if (over_.empty()) report = wait_in_window(pause_ns());
    }
    over_.clear();
    lock.lock();
    leader_sleeps_ = false;
    if (wake_ == nullptr) woken_ = false;
    if (!report.work.empty()) return report;
  }
  if (stops_) end_lead(lock);
  return report;
}

// Releases the leader's state, and drops the remaining works without holding the lock.
void Watchers::end_lead(std::unique_lock<std::mutex>& lock) {
  Works left = std::move(added_);
  left.splice(left.end(), watched_);
  hetcomm_request_t* const wake = std::exchange(wake_, nullptr);
  lock.unlock();
  left.clear();
  if (wake != nullptr) {
    static_cast<void>(hetcomm_request_cancel(wake));
    static_cast<void>(hetcomm_request_wait(wake, HETCOMM_TIMEOUT_INFINITE, nullptr));
  }
  lock.lock();
}

// Returns how long the leader sleeps while it waits for a window.
uint64_t Watchers::pause_ns() const {
  if (watched_.size() <= kWindow) return deaf_ ? kDeafPauseNs : HETCOMM_TIMEOUT_INFINITE;
  const auto left =
      std::chrono::duration_cast<std::chrono::nanoseconds>(next_round_ - Clock::now());
  // At least 2, because a timeout of one nanosecond means polling.
  return static_cast<uint64_t>(std::max<int64_t>(left.count(), 2));
}

// Fills the window with |first| and with works of the list from |from| on. Returns the position
// after the last work. Completed works move from watched_ to over_.
Watchers::Works::iterator Watchers::fill(Works::iterator from, hetcomm_request_t* first) {
  window_.requests.assign(1, first);
  window_.parts.clear();
  window_.works.clear();
  for (size_t looks = 0; from != watched_.end() && looks < kWindow; ++looks) {
    const auto work = from++;
    // If all parts are reported, the thread that received the last report completes the work.
    OperationWork::Part* const part = (*work)->next_part();
    if (part == nullptr) {
      if (in_round_ && round_at_ == work) round_at_ = from;
      over_.splice(over_.end(), watched_, work);
      continue;
    }
    window_.requests.push_back(part->request);
    window_.parts.push_back(part);
    window_.works.push_back(work);
  }
  return from;
}

// Waits until one request of the window has ended, or until |timeout_ns| has passed. The work of
// that request moves from watched_ to the returned report.
Watchers::Report Watchers::wait_in_window(uint64_t timeout_ns) {
  Report report;
  size_t index = 0;
  const hetcomm_status_t status = hetcomm_request_wait_any(
      window_.requests.size(), window_.requests.data(), timeout_ns, &index, &report.completion);
  if (status == HETCOMM_OK && index == 0) {
    wake_ = nullptr;
    deaf_ = report.completion.status != HETCOMM_OK;
  } else if (status == HETCOMM_OK) {
    const auto work = window_.works[index - 1];
    report.part = window_.parts[index - 1];
    if (in_round_ && round_at_ == work) ++round_at_;
    report.work.splice(report.work.end(), watched_, work);
  } else if (status != HETCOMM_TIMED_OUT) {
    std::this_thread::yield();  // another thread has received one of the reports
  }
  return report;
}

// Examines the watched works in turn, until one has ended, kWindow completed ones have been found,
// or the round is complete. The next call continues the round, or begins the next one.
Watchers::Report Watchers::go_round() {
  const auto began = Clock::now();
  Report report;
  if (!in_round_) {
    in_round_ = true;
    round_at_ = watched_.begin();
    round_cost_ = Clock::duration::zero();
  }
  while (round_at_ != watched_.end() && over_.size() < kWindow) {
    const auto next = fill(round_at_, nullptr);
    if (!window_.works.empty()) report = wait_in_window(HETCOMM_TIMEOUT_POLL);
    if (!report.work.empty()) break;
    round_at_ = next;
  }
  const auto now = Clock::now();
  round_cost_ += now - began;
  if (round_at_ == watched_.end() && report.work.empty()) {
    in_round_ = false;
    next_round_ =
        now + std::max<Clock::duration>(kShortestRoundPause, kPausePerRound * round_cost_);
  }
  return report;
}

void Watchers::stop() {
  const std::scoped_lock lock(mutex_);
  stops_ = true;
  called_.notify_all();
  wake_leader();
}

void Watchers::let_go(bool waits) {
  std::unique_lock lock(mutex_);
  std::vector<std::thread> threads;
  threads.swap(threads_);
  lock.unlock();
  for (std::thread& thread : threads) {
    // Without |waits|, the threads are only detached, because a callback of one thread may wait for
    // a callback of another. A thread that drops the last reference to the process group cannot
    // join itself.
    if (waits && thread.get_id() != std::this_thread::get_id()) {
      thread.join();
    } else {
      thread.detach();
    }
  }
  lock.lock();
  // If another thread is the leader, it calls end_lead() when it wakes up.
  if (!led_ || leader_ == std::this_thread::get_id()) end_lead(lock);
}

void Watchers::forget_threads() {
  for (std::thread& thread : threads_) thread.detach();
}

}  // namespace hetcomm::torch_backend
