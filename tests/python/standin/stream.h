// Streams, events and faults of the stand-in device.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace standin {

inline constexpr int kDevices = 2;
inline constexpr int kPoolStreams = 8;
inline constexpr int kStreams = 1 + kPoolStreams;  // The default stream is number 0.

inline constexpr char kLost[] = "standin: the device is lost";

// Test settings and counters.
struct Settings {
  std::atomic<int64_t> copy_rate{0};  // Bytes per second; 0: no limit.
  std::atomic<int64_t> jitter_us{0};  // The longest random sleep before each task.
  std::atomic<bool> lenient{false};   // See torch.standin._set_lenient().
};
Settings& settings();

struct Counts {
  std::atomic<int64_t> copies_to_host{0}, copies_from_host{0}, copies_on_device{0};
  std::atomic<int64_t> blocking_copies{0}, events_recorded{0}, syncs{0}, pinned_allocations{0};
  std::atomic<int64_t> kernels{0}, fallbacks{0};
};
Counts& counts();

// A thread that runs tasks in order. Tickets number the tasks from 1.
class Stream {
 public:
  using Task = std::function<void()>;

  uint64_t enqueue(Task task);
  // Returns whether the task is done. Throws if that task, or an earlier one, has failed.
  bool done(uint64_t ticket);
  // Waits for the task. Throws as done() does.
  void wait(uint64_t ticket);
  // Waits for the task, whether it succeeds or fails.
  void drain(uint64_t ticket);
  // Makes tasks enqueued from now on wait for the tasks that the other stream already holds.
  void wait_for(Stream& other, uint64_t ticket);
  uint64_t last();
  void heal();

 private:
  void run();
  void throw_if_failed(uint64_t ticket) const;  // Requires the mutex.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool started_ = false;
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;
  uint64_t failed_ = 0;  // Ticket of the first failed task, or 0. Later tasks are skipped.
  std::string why_;
};

Stream& stream(int device, int64_t id);
void synchronize_device(int device);

// The calling thread's current device and streams.
int current_device();
void set_current_device(int device);
int64_t current_stream_id(int device);
void set_current_stream_id(int device, int64_t id);
int64_t next_pool_stream(int device);
inline Stream& current_stream(int device) { return stream(device, current_stream_id(device)); }

class Event {
 public:
  Event(int device, bool timed) : device_(device), timed_(timed) {}
  void record(int device, Stream& stream);
  void block(Stream& stream) const;
  bool query() const;
  void synchronize() const;
  double milliseconds_until(const Event& end) const;

 private:
  // One recording. The stream shares it, so that the event may be destroyed while it is pending.
  struct Mark {
    Stream* stream = nullptr;
    uint64_t ticket = 0;
    std::chrono::steady_clock::time_point time;
  };
  std::shared_ptr<Mark> mark() const;

  const int device_;
  const bool timed_;
  mutable std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
};

// Throws if a sticky fault has occurred.
void check_alive();
// Counts one copy. Throws if this copy has to fail in its call; returns true if it has to fail in
// the stream.
bool next_copy_fails_later();
void fail_copies(int64_t after, bool sticky);
void fail_copies_later(int64_t after);
// Waits for all streams and forgets all faults.
void heal();

}  // namespace standin
