// Each context has one control thread, which runs all its control planes, in both progress modes.
// The thread sleeps in epoll, reads and writes control connections, and runs timers. It never takes
// the progress baton, so a rank whose threads compute or wait for each other still answers.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/status.h"
#include "src/net/poller.h"
#include "src/system/processors.h"
#include "src/system/unique_fd.h"

namespace hetcomm::liveness {

// An object that the control thread drives. Only that thread calls it.
class Resident {
 public:
  virtual ~Resident() = default;
  virtual void tick(uint64_t now_ns) = 0;
  virtual uint64_t next_timer_ns() const = 0;
  // Returns whether the resident has nothing left to do. The thread then destroys it.
  virtual bool finished(uint64_t now_ns) const = 0;
};

class ControlThread {
 public:
  // Restricts the thread to |processors| by narrow_thread(). An empty set leaves it unrestricted.
  static Result<std::unique_ptr<ControlThread>> create(const ProcessorSet& processors = {});
  // The destructor waits until all residents have finished.
  ~ControlThread();
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  // Runs |command| on the control thread asynchronously. Commands run in order. A std::bad_alloc
  // that |command| throws is ignored. [any-thread]
  void post(std::function<void()> command);
  // Runs |command| on the control thread and waits until it has returned or thrown std::bad_alloc,
  // which is ignored. Must not be called on the control thread itself. [any-thread]
  void call(const std::function<void()>& command);

  // Only the control thread may call these two.
  Poller& poller() { return poller_; }
  void add(std::unique_ptr<Resident> resident) { residents_.push_back(std::move(resident)); }

 private:
  class Wake final : public Watcher {
   public:
    explicit Wake(UniqueFd fd) : fd_(std::move(fd)) {}
    int get() const { return fd_.get(); }
    void ring() const;
    void on_events(uint32_t events) override;

   private:
    UniqueFd fd_;
  };

  ControlThread(Poller poller, UniqueFd wake)
      : poller_(std::move(poller)), wake_(std::move(wake)) {}
  void run();
  void run_commands();
  void drive();

  Poller poller_;
  Wake wake_;
  std::vector<std::unique_ptr<Resident>> residents_;
  std::mutex mutex_;
  std::condition_variable called_;
  std::vector<std::function<void()>> commands_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hetcomm::liveness
