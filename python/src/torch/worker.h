// Worker runs multi-step operations on a thread. Each step needs the result of the previous one.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

#include "python/src/torch/interrupts.h"
#include "python/src/torch/log.h"
#include "python/src/torch/quiet_thread.h"

namespace hetcomm::torch_backend {

class Worker {
 public:
  Worker() = default;
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs |task| after earlier tasks. Returns false after stop(). Exceptions from a task are logged.
  // If memory or threads run out, throws and does not run the task.
  bool run(std::function<void()> task) {
    const std::scoped_lock lock(state_->mutex);
    if (state_->stops) return false;
    if (!thread_.joinable()) {
      thread_ = start_without_signals([state = state_] { loop(*state); });
      process_ = getpid();
    }
    state_->tasks.push(std::move(task));
    state_->called.notify_one();
    return true;
  }

  // Waits until all tasks have run. Returns false if they have not run after |limit|. Within a
  // task, and in a forked child, returns true at once. [any-thread]
  bool drain(std::chrono::milliseconds limit) {
    std::unique_lock lock(state_->mutex);
    if (getpid() != process_ || state_->thread == std::this_thread::get_id()) return true;
    return state_->drained.wait_for(lock, limit,
                                    [this] { return state_->tasks.empty() && !state_->busy; });
  }

  // Waits until all tasks have run. Throws the exception of a signal handler that runs during the
  // wait.
  void drain() {
    wait_in_steps("an operation of several steps",
                  [this](std::chrono::milliseconds limit) { return drain(limit); });
  }

  // Runs the remaining tasks and ends the thread.
  void stop() {
    {
      const std::scoped_lock lock(state_->mutex);
      state_->stops = true;
      state_->called.notify_one();
    }
    if (!thread_.joinable()) return;
    // A forked child does not have the thread. If a task drops the last reference to the owner of
    // this worker, this code runs on the thread, which cannot join itself.
    if (getpid() == process_ && thread_.get_id() != std::this_thread::get_id()) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

 private:
  // Shared with the thread, which may outlive the worker.
  struct State {
    std::mutex mutex;
    std::condition_variable called;
    std::condition_variable drained;
    std::queue<std::function<void()>> tasks;
    std::thread::id thread;
    bool busy = false;
    bool stops = false;
  };

  static void loop(State& state) {
    std::unique_lock lock(state.mutex);
    state.thread = std::this_thread::get_id();
    while (true) {
      state.called.wait(lock, [&state] { return state.stops || !state.tasks.empty(); });
      if (state.tasks.empty()) return;
      std::function<void()> task = std::move(state.tasks.front());
      state.tasks.pop();
      state.busy = true;
      lock.unlock();
      try {
        task();
      } catch (...) {
        log_thrown("a step of an operation");
      }
      task = nullptr;
      lock.lock();
      state.busy = false;
      state.drained.notify_all();
    }
  }

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  pid_t process_ = 0;
  std::thread thread_;
};

}  // namespace hetcomm::torch_backend
