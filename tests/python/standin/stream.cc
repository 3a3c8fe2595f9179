// Streams, events and faults of the stand-in device.
#include "tests/python/standin/stream.h"

#include <pthread.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <random>
#include <thread>

namespace standin {

// Nothing here is ever destroyed: the stream threads live until the process exits.
Settings& settings() {
  static auto* const all = new Settings;
  return *all;
}

Counts& counts() {
  static auto* const all = new Counts;
  return *all;
}

uint64_t Stream::enqueue(Task task) {
  const std::lock_guard lock(mutex_);
  if (!started_) std::thread([this] { run(); }).detach();
  started_ = true;
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return ++enqueued_;
}

void Stream::throw_if_failed(uint64_t ticket) const {
  TORCH_CHECK(failed_ == 0 || failed_ > ticket, why_);
}

bool Stream::done(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  throw_if_failed(ticket);
  return done_ >= ticket;
}

void Stream::wait(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
  throw_if_failed(ticket);
}

void Stream::drain(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

void Stream::wait_for(Stream& other, uint64_t ticket) {
  if (&other == this) return;
  enqueue([&other, ticket] { other.wait(ticket); });
}

uint64_t Stream::last() {
  const std::lock_guard lock(mutex_);
  return enqueued_;
}

void Stream::heal() {
  const std::lock_guard lock(mutex_);
  failed_ = 0;
  why_.clear();
}

void Stream::run() {
  pthread_setname_np(pthread_self(), "standin");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::NoGradGuard no_grad;
  std::minstd_rand random(std::random_device{}());
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !tasks_.empty(); });
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    const bool skipped = failed_ != 0;
    lock.unlock();
    if (const int64_t jitter = settings().jitter_us; jitter > 0) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, jitter)(random)));
    }
    std::string why;
    bool failed = false;
    try {
      if (!skipped) task();
    } catch (const c10::Error& error) {
      failed = true;
      why = error.what_without_backtrace();
    } catch (const std::exception& error) {
      failed = true;
      why = error.what();
    }
    task = nullptr;
    lock.lock();
    ++done_;
    if (failed) {
      failed_ = done_;
      why_ = why;
    }
    changed_.notify_all();
  }
}

namespace {

std::array<std::array<Stream, kStreams>, kDevices>& streams() {
  static auto* const all = new std::array<std::array<Stream, kStreams>, kDevices>;
  return *all;
}

thread_local int the_device = 0;
thread_local std::array<int64_t, kDevices> the_streams{};

void check_device(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "standin: there is no device ", device);
}

}  // namespace

Stream& stream(int device, int64_t id) {
  check_device(device);
  TORCH_CHECK(id >= 0 && id < kStreams, "standin: there is no stream ", id);
  return streams()[device][id];
}

void synchronize_device(int device) {
  check_device(device);
  for (Stream& each : streams()[device]) each.wait(each.last());
}

int current_device() { return the_device; }

void set_current_device(int device) {
  check_device(device);
  the_device = device;
}

int64_t current_stream_id(int device) {
  check_device(device);
  return the_streams[device];
}

void set_current_stream_id(int device, int64_t id) {
  stream(device, id);  // Checks the id.
  the_streams[device] = id;
}

int64_t next_pool_stream(int device) {
  static std::array<std::atomic<uint64_t>, kDevices> next{};
  check_device(device);
  return 1 + static_cast<int64_t>(next[device]++ % kPoolStreams);
}

std::shared_ptr<Event::Mark> Event::mark() const {
  const std::lock_guard lock(mutex_);
  return mark_;
}

void Event::record(int device, Stream& stream) {
  TORCH_CHECK(device == device_, "standin: an event of device ", device_,
              " is recorded on a stream of device ", device);
  auto mark = std::make_shared<Mark>();
  mark->stream = &stream;
  mark->ticket = stream.enqueue([mark] { mark->time = std::chrono::steady_clock::now(); });
  const std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
}

void Event::block(Stream& stream) const {
  if (const auto last = mark()) stream.wait_for(*last->stream, last->ticket);
}

bool Event::query() const {
  const auto last = mark();
  return !last || last->stream->done(last->ticket);
}

void Event::synchronize() const {
  if (const auto last = mark()) last->stream->wait(last->ticket);
}

double Event::milliseconds_until(const Event& end) const {
  const auto first = mark();
  const auto last = end.mark();
  TORCH_CHECK(timed_ && end.timed_, "standin: an event was made without timing");
  TORCH_CHECK(first && last && query() && end.query(), "standin: an event is not completed");
  return std::chrono::duration<double, std::milli>(last->time - first->time).count();
}

namespace {

struct Faults {
  std::mutex mutex;
  int64_t now = -1;    // Number of copies until one fails in its call; negative: none.
  int64_t later = -1;  // Number of copies until one fails in its stream.
  bool sticky = false;
  std::atomic<bool> lost{false};
};

Faults& faults() {
  static auto* const all = new Faults;
  return *all;
}

bool counted_down(int64_t& left) { return left >= 0 && left-- == 0; }

}  // namespace

void check_alive() { TORCH_CHECK(!faults().lost, kLost); }

bool next_copy_fails_later() {
  check_alive();
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  if (counted_down(all.now)) {
    all.lost = all.sticky;
    TORCH_CHECK(false, kLost);
  }
  return counted_down(all.later);
}

void fail_copies(int64_t after, bool sticky) {
  const std::lock_guard lock(faults().mutex);
  faults().now = after;
  faults().sticky = sticky;
}

void fail_copies_later(int64_t after) {
  const std::lock_guard lock(faults().mutex);
  faults().later = after;
}

void heal() {
  {
    const std::lock_guard lock(faults().mutex);
    faults().now = faults().later = -1;
    faults().lost = false;
  }
  for (auto& device : streams()) {
    for (Stream& each : device) each.drain(each.last());
  }
  for (auto& device : streams()) {
    for (Stream& each : device) each.heal();
  }
}

}  // namespace standin
