#include "python/src/torch/event_watch.h"

#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "python/src/torch/quiet_thread.h"

namespace hetcomm::torch_backend {
namespace {

using std::chrono::microseconds;

constexpr microseconds kShortestNap(30);
constexpr microseconds kLongestNap(500);

bool is_over(const c10::Event& event) {
  try {
    return event.query();
  } catch (const std::exception&) {
    return true;  // the next query of the event reports the error
  }
}

}  // namespace

EventWatch::~EventWatch() {
  {
    const std::scoped_lock lock(mutex_);
    stops_ = true;
    called_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void EventWatch::add(std::shared_ptr<const c10::Event> event, int file) {
  const std::scoped_lock lock(mutex_);
  if (!thread_.joinable()) thread_ = start_without_signals([this] { run(); });
  added_.push_back({std::move(event), file, Clock::now()});
  called_.notify_one();
}

void EventWatch::look(std::list<Watched>& all) {
  all.remove_if([](const Watched& each) {
    if (!is_over(*each.event)) return false;
    static_cast<void>(eventfd_write(each.file, 1));
    return true;
  });
}

void EventWatch::run() {
  prctl(PR_SET_NAME, "hetcomm-torch");
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; by default, short sleeps take three times as long
  std::list<Watched> all;          // newly added events are moved here without allocation
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (all.empty()) called_.wait(lock, [this] { return stops_ || !added_.empty(); });
    all.splice(all.end(), added_);
    lock.unlock();
    look(all);
    lock.lock();
    if (all.empty() || !added_.empty()) continue;
    const auto waited = Clock::now() - all.back().since;
    called_.wait_for(lock, std::clamp<Clock::duration>(waited / 4, kShortestNap, kLongestNap),
                     [this] { return stops_ || !added_.empty(); });
  }
}

}  // namespace hetcomm::torch_backend
