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
  // Examines works and returns whether to call it again. An exception is logged, and the function
  // is called again.
  using Look = std::function<bool()>;

  Lookout() = default;
  // Waits until no look is running. Does not wait in a forked child or if a look itself destroys
  // this object.
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  // Calls |look| on the thread until it returns false. The first call happens after kPause. Later
  // pauses last kPause or four times the duration of all looks, so that they use at most a fifth of
  // a core. [any-thread]
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
  std::thread thread_;  // guarded by the state's mutex until the destructor
  int process_ = 0;     // process that started the thread
};

}  // namespace hetcomm::torch_backend
