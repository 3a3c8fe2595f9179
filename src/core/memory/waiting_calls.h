// Vendor calls that may wait until users' streams go on. With many vendors these are the calls that
// free memory, pin and unpin, end a stream or release an event.
//
//   under the baton, and no hold of the context stands (NoHolds) --> made at once; none can begin
//   under the baton, and one stands      --> put off until the last hold has ended
//   without it, in a call of the user's  --> made at once: the header says that the call may wait
//
// A thread that waited under the baton would wait forever: the hold ends with an operation, which
// goes on only under the baton.
//
// A device whose copies do not end counts as held back. Calls of a device that was given up wait
// until its abandoned copies have ended (AbandonedCopies).
//
// Memory that is put off still counts where it came from. At most kMaxEvents events wait, since
// nobody counts them; a separate thread, which may wait, releases the oldest ones beyond that.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "devices/device.h"
#include "src/core/memory/abandoned_copies.h"
#include "src/system/numa_memory.h"

namespace hetcomm {

// A call of a device that ends something and never fails.
struct EndingCall {
  enum class Kind : uint8_t { kFree, kFreeHost, kUnpinHost, kStreamDestroy, kEventRelease };
  void make();

  Kind kind = Kind::kFree;
  const Device* device = nullptr;
  void* object = nullptr;
  const void* owner = nullptr;  // kEventRelease: the user's stream that the event is of, if any
  NumaMemory memory{};          // freed after the call
};

class WaitingCalls {
 public:
  static constexpr size_t kMaxEvents = 4096;

  WaitingCalls() = default;
  ~WaitingCalls() { make_all(); }
  WaitingCalls(const WaitingCalls&) = delete;
  WaitingCalls& operator=(const WaitingCalls&) = delete;

  // Call this before anything else. |hangs|(|subject|) says whether copies of some device do not
  // end. |hangs|, |subject| and |abandoned| outlive this.
  void set_abandoned(AbandonedCopies& abandoned, bool (*hangs)(const void*), const void* subject) {
    abandoned_ = &abandoned;
    hangs_ = hangs;
    subject_ = subject;
  }

  // [any-thread], except may_make() and make_put_off():

  // A hold is begun under this mutex. A call that may wait is made under it, if no hold stands.
  std::mutex& holding() { return holding_; }
  void add_hold() {
    expect_holds();
    holds_.fetch_add(1, std::memory_order_relaxed);
  }
  void drop_hold() { holds_.fetch_sub(1, std::memory_order_release); }
  bool has_holds() const { return holds_.load(std::memory_order_acquire) != 0 || some_hang(); }
  // Holds may begin once this has returned and every thread that had the baton has given it up.
  void expect_holds() { may_hold_.store(true, std::memory_order_release); }

  // Makes |call|, or puts it off. Does not wait for what is held back. Without memory to note a
  // call that is put off, it is never made.
  void make_or_put_off(EndingCall call);
  void release_event(const Device& device, void* event, const void* owner = nullptr) {
    make_or_put_off({.kind = EndingCall::Kind::kEventRelease,
                     .device = &device,
                     .object = event,
                     .owner = owner});
  }
  // Makes all calls that were put off for |owner|, and waits as they do.
  void make_all_of(const void* owner);
  // Makes all calls that were put off. No hold may begin any more.
  void make_all();

  // Under the baton.
  // Whether something was put off and nothing is held back any more.
  bool may_make() const { return put_off_.load(std::memory_order_relaxed) != 0 && !has_holds(); }
  // Makes some of the calls that were put off. Returns their number.
  int make_put_off();

 private:
  bool some_hang() const { return hangs_ != nullptr && hangs_(subject_); }
  void finish(EndingCall& call);
  bool take(std::deque<EndingCall>& from, EndingCall* call);
  void make(EndingCall& call);
  void start_helper();
  void help();

  AbandonedCopies* abandoned_ = nullptr;
  bool (*hangs_)(const void*) = nullptr;
  const void* subject_ = nullptr;
  std::mutex holding_;
  std::atomic<int64_t> holds_{0};
  std::atomic<bool> may_hold_{false};
  std::atomic<size_t> put_off_{0};
  std::atomic<size_t> others_left_{0};  // size of |others_|, plus the one that is being made

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<EndingCall> events_;  // events to release, the oldest first
  std::deque<EndingCall> others_;
  bool helps_ = false;            // the helper is in a call
  const void* helped_ = nullptr;  // for this owner
  const void* making_ = nullptr;  // owner of the call that make_put_off() is in
  bool stops_ = false;
  std::thread helper_;
};

// While this exists, no hold stands and none begins, so calls that may wait can be made. False: a
// hold stands, or another thread is about to begin one.
class NoHolds {
 public:
  explicit NoHolds(WaitingCalls& calls)
      : lock_(calls.holding(), std::try_to_lock),
        is_sure_(lock_.owns_lock() && !calls.has_holds()) {}
  NoHolds(const NoHolds&) = delete;
  NoHolds& operator=(const NoHolds&) = delete;
  explicit operator bool() const { return is_sure_; }

 private:
  const std::unique_lock<std::mutex> lock_;
  const bool is_sure_;
};

}  // namespace hetcomm
