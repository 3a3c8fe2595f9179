#include "devices/sim/stream.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "src/system/clock.h"
#include "src/system/signals_blocked.h"

namespace hetcomm {
namespace {

// The unit in which streams share a bus, small enough that transfers of two streams look
// concurrent.
constexpr uint64_t kSlice = 128u << 10;
// A stream books no slice further ahead than this, so that a large copy does not block the others.
constexpr uint64_t kBookAheadNs = 200'000;
// A sleeping thread may wake up this late, so the last stretch of a wait is polled.
constexpr uint64_t kPollNs = 50'000;
constexpr size_t kFirstRing = 64;

// Sleeps until |deadline_ns| plus the kernel's wake-up delay.
void sleep_until(uint64_t deadline_ns) {
  const timespec wake = {.tv_sec = static_cast<time_t>(deadline_ns / 1'000'000'000),
                         .tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr) == EINTR) {
  }
}

// Waits until |deadline_ns|, as precisely as a loaded CPU allows.
void wait_until(uint64_t deadline_ns) {
  uint64_t now = now_ns();
  if (deadline_ns > now + kPollNs) sleep_until(deadline_ns - kPollNs);
  // A real device uses no CPU time, so this thread lets every other runnable thread run first.
  for (now = now_ns(); now < deadline_ns; now = now_ns()) sched_yield();
}

void add_one(int eventfd) {
  const uint64_t one = 1;
  const ssize_t put = write(eventfd, &one, sizeof(one));
  static_cast<void>(put);  // a full eventfd also wakes its reader
}

std::byte* row_of(const SimSide& side, const SimCopy& copy, uint64_t row) {
  return side.first + row / copy.extents[1] * side.strides[0] +
         row % copy.extents[1] * side.strides[1];
}

// Copies |length| bytes of the rows, starting at byte |begin|.
void copy_part(const SimCopy& copy, uint64_t begin, uint64_t length) {
  while (length > 0) {
    const uint64_t row = begin / copy.row_bytes;
    const uint64_t within = begin % copy.row_bytes;
    const uint64_t part = std::min(length, copy.row_bytes - within);
    std::memcpy(row_of(copy.to, copy, row) + within, row_of(copy.from, copy, row) + within, part);
    begin += part;
    length -= part;
  }
}

}  // namespace

uint64_t SimBus::book(uint64_t earliest_ns, uint64_t size) {
  if (!limited()) return earliest_ns;
  const auto duration =
      static_cast<uint64_t>(static_cast<double>(size) * 1e9 / static_cast<double>(bandwidth_));
  uint64_t free_at = free_at_ns_.load(std::memory_order_relaxed);
  uint64_t end = 0;
  do {
    end = std::max(free_at, earliest_ns) + duration;
  } while (!free_at_ns_.compare_exchange_weak(free_at, end, std::memory_order_relaxed));
  return end;
}

void SimTimeline::advance() {
  {
    std::lock_guard lock(mutex_);
    const uint64_t done = done_.load(std::memory_order_relaxed) + 1;
    done_.store(done, std::memory_order_release);
    std::erase_if(notices_, [&](const Notice& notice) {
      if (notice.count > done) return false;
      add_one(notice.file);
      return true;
    });
  }
  advanced_.notify_all();
}

void SimTimeline::notify(uint64_t count, int file) {
  std::lock_guard lock(mutex_);
  if (reached(count)) {
    add_one(file);
  } else {
    notices_.push_back({count, file});
  }
}

void SimTimeline::wait_for(uint64_t count) {
  if (reached(count)) return;
  std::unique_lock lock(mutex_);
  advanced_.wait(lock, [&] { return reached(count); });
}

void SimHold::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return is_over_; });
}

void SimHold::end() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  ended_.notify_all();
}

SimStream::SimStream(uint64_t latency_ns)
    : latency_ns_(latency_ns), timeline_(std::make_shared<SimTimeline>()), ring_(kFirstRing) {}

Result<std::unique_ptr<SimStream>> SimStream::start(uint64_t latency_ns) {
  std::unique_ptr<SimStream> stream(new SimStream(latency_ns));
  const SignalsBlocked blocked;
  // The standard library reports a failure to start a thread only by an exception.
  try {
    stream->worker_ = std::thread([self = stream.get()] { self->run(); });
  } catch (const std::system_error& error) {
    return Status(Code::kOutOfResources, error.what());
  }
  return stream;
}

SimStream::~SimStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wakeup_.notify_one();
  if (worker_.joinable()) worker_.join();
}

void SimStream::submit(SimCopy copy) {
  {
    std::lock_guard lock(mutex_);
    if (submitted_ - taken_ == ring_.size()) grow();
    ring_[submitted_ & (ring_.size() - 1)] = std::move(copy);
    ++submitted_;
  }
  wakeup_.notify_one();
}

void SimStream::submit(std::function<void()> work) {
  submit(SimCopy{.from = {},
                 .to = {},
                 .row_bytes = 0,
                 .extents = {0, 0},
                 .bus = nullptr,
                 .submitted_ns = 0,
                 .work = std::move(work)});
}

uint64_t SimStream::submitted() {
  std::lock_guard lock(mutex_);
  return submitted_;
}

void SimStream::grow() {
  std::vector<SimCopy> larger(ring_.size() * 2);
  for (uint64_t i = taken_; i != submitted_; ++i) {
    larger[i & (larger.size() - 1)] = std::move(ring_[i & (ring_.size() - 1)]);
  }
  ring_.swap(larger);
}

void SimStream::run() {
  pthread_setname_np(pthread_self(), "hetcomm-sim");
  // By default the kernel may delay each wake-up by 50 us in order to batch wake-ups.
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  std::unique_lock lock(mutex_);
  while (true) {
    wakeup_.wait(lock, [this] { return stopping_ || submitted_ != taken_; });
    if (submitted_ == taken_) return;
    const SimCopy copy = std::move(ring_[taken_ & (ring_.size() - 1)]);
    ++taken_;
    lock.unlock();
    execute(copy);
    timeline_->advance();
    lock.lock();
  }
}

void SimStream::execute(const SimCopy& copy) {
  if (copy.work != nullptr) {
    copy.work();
    due_ns_ = now_ns();
    return;
  }
  uint64_t due = std::max(due_ns_, copy.submitted_ns) + latency_ns_;
  const uint64_t size = copy.extents[0] * copy.extents[1] * copy.row_bytes;
  // A bus without a limit needs no sharing, and one large copy is fastest.
  const uint64_t slice = copy.bus->limited() ? kSlice : std::max<uint64_t>(size, 1);
  for (uint64_t done = 0; done < size; done += slice) {
    const uint64_t length = std::min(slice, size - done);
    if (due > now_ns() + kBookAheadNs) sleep_until(due - kBookAheadNs);
    due = copy.bus->book(due, length);
    copy_part(copy, done, length);
  }
  wait_until(due);
  due_ns_ = due;
}

}  // namespace hetcomm
