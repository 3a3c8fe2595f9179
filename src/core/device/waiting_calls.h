// WaitingCalls makes or defers vendor calls that may wait until users' streams resume. With many
// vendors these are the calls that free memory, pin and unpin, destroy a stream or release an
// event.
//
//   under the baton, without holds (NoHolds) --> made immediately; no hold can begin
//   under the baton, with a hold             --> deferred until the last hold has ended
//   without the baton, in a user's call      --> made immediately; hetcomm's headers say that the
//                                                user's call may wait
//
// A thread that waited under the baton would wait forever: the hold ends with an operation, which
// only makes progress under the baton.
//
// A device whose copies seem to hang has the same effect as a hold. Calls to an abandoned device
// are deferred until its abandoned copies have ended (see AbandonedCopies).
//
// Memory whose release is deferred still counts towards its pool. Events belong to no pool. If more
// than kMaxEvents of them are deferred, a separate thread, which may wait, releases the oldest
// ones.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "devices/device.h"
#include "src/core/device/abandoned_copies.h"
#include "src/system/numa_memory.h"

namespace hetcomm {

// A device call that frees, unpins or destroys |object|. It cannot fail.
struct EndingCall {
  enum class Kind : uint8_t { kFree, kFreeHost, kUnpinHost, kStreamDestroy, kEventRelease };
  void make();

  Kind kind = Kind::kFree;
  const Device* device = nullptr;
  void* object = nullptr;
  const void* owner = nullptr;  // kEventRelease: the event's user stream, if any
  NumaMemory memory{};          // freed after the call
};

class WaitingCalls {
 public:
  static constexpr size_t kMaxEvents = 4096;

  WaitingCalls() = default;
  ~WaitingCalls() { make_all(); }
  WaitingCalls(const WaitingCalls&) = delete;
  WaitingCalls& operator=(const WaitingCalls&) = delete;

  // Call this first. |hangs|(|subject|) returns whether copies of any device seem to hang. |hangs|,
  // |subject| and |abandoned| outlive this object.
  void set_abandoned(AbandonedCopies& abandoned, bool (*hangs)(const void*), const void* subject) {
    abandoned_ = &abandoned;
    hangs_ = hangs;
    subject_ = subject;
  }

  // All functions below are [any-thread], except may_make() and make_put_off().

  // Returns the mutex under which holds begin. A thread also locks it to make a call that may wait,
  // and makes the call only if there is no hold.
  std::mutex& holding() { return holding_; }
  void add_hold() {
    expect_holds();
    holds_.fetch_add(1, std::memory_order_relaxed);
  }
  void drop_hold() { holds_.fetch_sub(1, std::memory_order_release); }
  bool has_holds() const { return holds_.load(std::memory_order_acquire) != 0 || some_hang(); }
  // Allows holds. They may begin once this has returned and every thread that had the baton has
  // released it.
  void expect_holds() { may_hold_.store(true, std::memory_order_release); }

  // Makes |call|, or defers it if it might have to wait. Does not wait for a stream that is held
  // back. If the record of a deferred call cannot be allocated, the call is never made.
  void make_or_put_off(EndingCall call);
  void release_event(const Device& device, void* event, const void* owner = nullptr) {
    make_or_put_off({.kind = EndingCall::Kind::kEventRelease,
                     .device = &device,
                     .object = event,
                     .owner = owner});
  }
  // Makes all deferred event releases of |owner|, which may wait. Also waits for a call of |owner|
  // that another thread is making.
  void make_all_of(const void* owner);
  // Makes all deferred calls. No hold may begin any more.
  void make_all();

  // Call the next two under the baton.

  // Returns whether there are deferred calls and no holds.
  bool may_make() const { return put_off_.load(std::memory_order_relaxed) != 0 && !has_holds(); }
  // Makes some of the deferred calls. Returns their number.
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
  std::atomic<size_t> others_left_{0};  // calls in |others_|, plus the one being made

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<EndingCall> events_;  // events to release, oldest first
  std::deque<EndingCall> others_;
  bool helps_ = false;            // the helper is in a call
  const void* helped_ = nullptr;  // owner of the helper's call
  const void* making_ = nullptr;  // owner of make_put_off()'s current call
  bool stops_ = false;
  std::thread helper_;
};

// A NoHolds object is true if there is no hold. No hold begins while it exists, so calls that may
// wait can be made. It is false if there is a hold, or another thread may be about to begin one.
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
