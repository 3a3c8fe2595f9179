// A thread for operations of several steps, of which each needs the result of the one before.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

namespace hetcomm::torch_backend {

class Worker {
 public:
  Worker() = default;
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs |task|, which throws nothing, after those before it. False once it was stopped.
  bool run(std::function<void()> task) {
    const std::scoped_lock lock(mutex_);
    if (stops_) return false;
    tasks_.push(std::move(task));
    if (thread_.joinable()) {
      called_.notify_one();
    } else {
      process_ = getpid();
      thread_ = std::thread([this] { loop(); });
    }
    return true;
  }

  // Runs what is left and ends the thread.
  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      stops_ = true;
      called_.notify_one();
    }
    if (!thread_.joinable()) return;
    // In a forked child there is no such thread.
    if (getpid() == process_) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      called_.wait(lock, [this] { return stops_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable called_;
  std::queue<std::function<void()>> tasks_;
  bool stops_ = false;
  pid_t process_ = 0;
  std::thread thread_;
};

}  // namespace hetcomm::torch_backend
