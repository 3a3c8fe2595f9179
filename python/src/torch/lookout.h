// A thread that periodically examines works for which no thread may be waiting.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace hetcomm::torch_backend {

class Lookout {
 public:
  // Examines works and returns whether it wants to be called again. An exception is logged, and it
  // is called again.
  using Look = std::function<bool()>;

  Lookout() = default;
  // Returns when no look runs. It does not wait in a forked child or if a look itself destroys
  // this.
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  // Calls |look| on the thread until it returns false. The first call comes after kPause. Later
  // pauses take kPause or four times the duration of all looks, so that they cost a fifth of a core
  // at most. [any-thread]
  void add(Look look);

  static constexpr std::chrono::milliseconds kPause{50};

 private:
  // Shared with the thread, which may outlive this object.
  struct State {
    std::mutex mutex;
    std::condition_variable called;
    std::list<Look> added;
    bool stops = false;
  };
  static void run(State& state);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;  // under the state's mutex until the destructor
  int process_ = 0;     // process of the thread
};

}  // namespace hetcomm::torch_backend
