// A Lookout runs a thread that periodically examines works for which no other thread may be
// waiting.
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
  // Examines works, and returns whether it should be called again. If it throws, the exception is
  // logged, and it is called again.
  using Look = std::function<bool()>;

  Lookout() = default;
  // Waits until no Look is running. Does not wait in a forked child, or if a Look itself destroys
  // this object.
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  // Calls |look| on the lookout's thread until it returns false. After each round of calls, the
  // thread pauses for kPause or four times the duration of the round, whichever is longer, so the
  // calls use at most a fifth of a core. The first call of |look| follows a pause. [any-thread]
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
