#include "src/liveness/control_thread.h"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "src/system/clock.h"
#include "src/system/short_slices.h"
#include "src/system/signals_blocked.h"

namespace hetcomm::liveness {

void ControlThread::Wake::ring() const {
  const uint64_t one = 1;
  const ssize_t put = ::write(fd_.get(), &one, sizeof(one));
  static_cast<void>(put);  // if the counter is full, a wake-up is already pending
}

void ControlThread::Wake::on_events(uint32_t /*events*/) {
  uint64_t count = 0;
  const ssize_t got = ::read(fd_.get(), &count, sizeof(count));
  static_cast<void>(got);  // if this fails, the level-triggered event comes again
}

Result<std::unique_ptr<ControlThread>> ControlThread::create(const ProcessorSet& processors) {
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) return poller.status().annotate("control thread");
  UniqueFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return status_from_errno(errno, "control thread: eventfd");
  std::unique_ptr<ControlThread> made(
      new ControlThread(std::move(poller).value(), std::move(wake)));
  HETCOMM_RETURN_IF_ERROR(made->poller_.add(made->wake_.get(), EPOLLIN, made->wake_));
  try {
    const SignalsBlocked blocked;
    made->thread_ = std::thread([thread = made.get()] { thread->run(); });
  } catch (const std::system_error& error) {
    return status_of_no_thread("control thread", error);
  }
  (void)narrow_thread(made->thread_.native_handle(), processors);
  return made;
}

ControlThread::~ControlThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.ring();
  thread_.join();
}

void ControlThread::post(std::function<void()> command) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.ring();
}

void ControlThread::call(const std::function<void()>& command) {
  bool done = false;
  post([&] {
    try {
      command();
    } catch (const std::bad_alloc&) {
      // The caller notices the failure, because |command| has set no result.
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    done = true;
    called_.notify_all();
  });
  std::unique_lock<std::mutex> lock(mutex_);
  called_.wait(lock, [&] { return done; });
}

void ControlThread::run_commands() {
  std::vector<std::function<void()>> commands;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
  }
  for (const auto& command : commands) {
    try {
      command();
    } catch (const std::bad_alloc&) {
      // The command is dropped, as if its author had run out of memory.
    }
  }
}

// Reads everything before it checks the clock, so that received data is counted before any rank is
// declared dead.
void ControlThread::drive() {
  run_commands();
  constexpr int kMaxRounds = 16;
  for (int round = 0; round < kMaxRounds && poller_.poll() > 0; ++round) {
  }
  run_commands();
  const uint64_t now = now_ns();
  for (const auto& resident : residents_) resident->tick(now);
  std::erase_if(residents_, [now](const auto& resident) { return resident->finished(now); });
}

void ControlThread::run() {
  ask_for_short_slices();
  prctl(PR_SET_NAME, "hetcomm-control");
  while (true) {
    try {
      drive();
    } catch (const std::bad_alloc&) {
      // The dropped work is repeated later: news and letters are kept, and each tick checks for
      // silence.
    }
    uint64_t next = kForever;
    for (const auto& resident : residents_) next = std::min(next, resident->next_timer_ns());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!commands_.empty()) continue;
      if (stopping_ && residents_.empty()) return;
    }
    const uint64_t now = now_ns();
    if (next > now) poller_.wait(next == kForever ? kForever : next - now);
  }
}

}  // namespace hetcomm::liveness
