// Reports when PyTorch events complete. PyTorch can block on an event or poll it, but has no
// completion callback. A thread therefore polls. Between polls it sleeps for about a quarter of the
// time since the newest event was added.
#pragma once

#include <c10/core/Event.h>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace hetcomm::torch_backend {

class EventWatch {
 public:
  EventWatch() = default;
  // Drops the events that have not completed.
  ~EventWatch();
  EventWatch(const EventWatch&) = delete;
  EventWatch& operator=(const EventWatch&) = delete;

  // Adds 1 to the eventfd |file| when |event| has completed or failed. May throw if memory or
  // threads run out. [any-thread]
  void add(std::shared_ptr<const c10::Event> event, int file);

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    std::shared_ptr<const c10::Event> event;
    int file;
    Clock::time_point since;
  };
  void run();
  // Reports the completed events, and removes them from |all|.
  static void look(std::list<Watched>& all);

  std::mutex mutex_;  // guards the members below
  std::condition_variable called_;
  std::list<Watched> added_;
  std::thread thread_;
  bool stops_ = false;
};

}  // namespace hetcomm::torch_backend
