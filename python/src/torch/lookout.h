// A thread that looks, now and then, after works for which nobody may wait.
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
  // Looks around and returns whether it wants to be called again. What it throws is logged, and it
  // is called again.
  using Look = std::function<bool()>;

  Lookout() = default;
  // Returns when no look runs, except where a look itself destroys this, and in a forked child.
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  // Calls |look| on the thread until it returns false: first after kPause, and then after kPause
  // again or four times the time that all looks took, so that they cost a fifth of a core at most.
  // [any-thread]
  void add(Look look);

  static constexpr std::chrono::milliseconds kPause{50};

 private:
  // The thread shares it, because it may outlive this object.
  struct State {
    std::mutex mutex;
    std::condition_variable called;
    std::list<Look> added;
    bool stops = false;
  };
  static void run(State& state);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;  // under the state's mutex until the destructor
  int process_ = 0;     // that has the thread
};

}  // namespace hetcomm::torch_backend
