// SimStream is a stream of a simulated device. Each stream has one worker thread, which copies in
// order at the speed of the simulated bus and sleeps while it is idle.
//
//   submit --> queue --> worker: latency, then slices: book the bus, copy --> wait for the bus
//   --> done
//
// All times are absolute deadlines. A copy begins when it was submitted or when the previous copy
// was due, whichever is later, regardless of when the worker thread was scheduled. So delays never
// accumulate, and a long series of copies takes its nominal time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

// Reserves bus time for transfers in one direction between host and device, or within the device.
// All streams of a device share its buses.
class SimBus {
 public:
  explicit SimBus(uint64_t bandwidth_bytes_per_s) : bandwidth_(bandwidth_bytes_per_s) {}

  // Reserves the next free time for |size| bytes, but not before |earliest_ns|. Returns the end of
  // the reserved time.
  uint64_t book(uint64_t earliest_ns, uint64_t size);
  bool limited() const { return bandwidth_ != 0; }

 private:
  uint64_t bandwidth_;
  std::atomic<uint64_t> free_at_ns_{0};
};

// Counts the completed copies in a stream. Events share the timeline and can outlive the stream.
class SimTimeline {
 public:
  bool reached(uint64_t count) const { return done_.load(std::memory_order_acquire) >= count; }
  void wait_for(uint64_t count);
  // Adds 1 to the eventfd |file| when |count| copies are done.
  void notify(uint64_t count, int file);
  // Counts one more copy. Called only by the stream's worker.
  void advance();

 private:
  struct Notice {
    uint64_t count;
    int file;
  };
  std::atomic<uint64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable advanced_;
  std::vector<Notice> notices_;  // guarded by |mutex_|
};

// A hold blocks a stream until end().
class SimHold {
 public:
  void wait();
  void end();

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;  // guarded by |mutex_|
};

// Rows on one side of a copy.
struct SimSide {
  std::byte* first = nullptr;
  uint64_t strides[2] = {0, 0};
};

struct SimCopy {
  SimSide from;
  SimSide to;
  uint64_t row_bytes;
  uint64_t extents[2];
  SimBus* bus;
  uint64_t submitted_ns;
  std::function<void()> work{};          // called instead of copying, if set
  std::shared_ptr<std::byte[]> early{};  // the bytes of |from|, if they were read at submission
};

class SimStream final {
 public:
  // Starts a stream. kOutOfResources: the process cannot create another thread.
  static Result<std::unique_ptr<SimStream>> start(uint64_t latency_ns);
  // Waits until everything submitted is done, then stops the worker.
  ~SimStream();
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  // Submits a copy. The memory on both sides must stay valid until the copy is done. Thread-safe.
  void submit(SimCopy copy);
  // Returns the number of copies submitted so far. An event that is recorded now waits for this
  // count.
  uint64_t submitted();
  // Submits |work|, which is called once all earlier copies are done.
  void submit(std::function<void()> work);
  const std::shared_ptr<SimTimeline>& timeline() const { return timeline_; }

 private:
  explicit SimStream(uint64_t latency_ns);
  void run();
  void execute(const SimCopy& copy);
  void grow();  // call with mutex_ held

  const uint64_t latency_ns_;
  const std::shared_ptr<SimTimeline> timeline_;
  uint64_t due_ns_ = 0;  // when the last copy was due; used only by the worker

  std::mutex mutex_;
  std::condition_variable wakeup_;
  std::vector<SimCopy> ring_;  // size is a power of two; grows, never shrinks
  uint64_t submitted_ = 0;     // copies ever submitted; the next one's index is submitted_ % size
  uint64_t taken_ = 0;         // copies ever removed from the ring
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace hetcomm
