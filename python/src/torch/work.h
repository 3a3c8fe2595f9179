// Defines the works that a process group returns.
//
// A work is done when all of its requests have been reported. The reports are received by a waiting
// or polling thread, or by the group's watcher. The thread with the last report copies results back
// into strided tensors, completes the future and wakes the other threads.
#pragma once

#include <ATen/core/ivalue.h>
#include <atomic>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/version.h"

namespace hetcomm::torch_backend {

class Group;

// Completes |future|, with |failure| unless it is null. An exception during completion becomes the
// future's error, since a device can fail while the future records the state of its streams.
void complete_future(c10::ivalue::Future& future, const std::exception_ptr& failure,
                     const std::vector<at::Tensor>& results) noexcept;

// The clock of completion hooks, which depends on the PyTorch version.
using HookClock = decltype(c10d::WorkInfo::timeStarted)::clock;

// A pending copy of data that was received into a contiguous stand-in.
struct CopyBack {
  at::Tensor from;
  at::Tensor to;
};

struct WorkDescription {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* name = "";            // for example "allreduce"
  const char* profiling = nullptr;  // for example "hetcomm:all_reduce"
  uint64_t sequence = 0;
  bool internal = false;            // part of another operation, so the end hook is not called
  std::vector<at::Tensor> inputs;   // for the profiler
  std::vector<at::Tensor> results;  // for result() and the future
};

class OperationWork final : public c10d::Work {
 public:
  OperationWork(std::shared_ptr<Group> group, int rank, WorkDescription description);
  ~OperationWork() override;

  // Keeps |tensor| until the work is done. Called before or during the post.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  // Keeps a contiguous tensor alive and wraps its device memory. All tensors of a work are on one
  // device. Returns the memory handle, or null if the tensor is empty.
  hetcomm_memory_t* wrap(const at::Tensor& tensor);
  // Orders the work, which has no tensors, after the work in |device|'s current stream.
  void follow(c10::Device device) { device_ = device; }
  // Returns the device of the tensors, or the device passed to follow(). Returns nullopt if the
  // tensors are in host memory.
  std::optional<c10::Device> device() const { return device_; }
  // Returns the devices on whose streams the future records events.
  std::vector<c10::Device> devices_of_future() const;
  void copy_back(CopyBack copy) { copies_.push_back(std::move(copy)); }
  // Sets a function that runs before the copies when all requests have succeeded. |step| may throw.
  void then(std::function<void()> step) { step_ = std::move(step); }
  // Reserves space for |count| requests. By default there is space for two.
  void expect_requests(size_t count) { parts_.reserve(count); }
  // Adds a request. Space must have been reserved, because an accepted request cannot be returned.
  void add_request(hetcomm_request_t* request) noexcept;
  // Ends the posting: no more requests will be added.
  void posted() noexcept;
  // Ends the posting because a part was not accepted.
  void reject(std::exception_ptr why) noexcept;

  // One part of the operation, with its own request.
  struct Part {
    hetcomm_request_t* request = nullptr;
    std::atomic<bool> reported{false};
    Part() = default;
    explicit Part(hetcomm_request_t* r) : request(r) {}
    Part(const Part& o) : request(o.request), reported(o.reported.load()) {}
    Part& operator=(const Part&) = delete;
  };

  bool isCompleted() override;
  bool isSuccess() const override;
  int sourceRank() const override { return source_.load(std::memory_order_relaxed); }
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Returns the duration of a completed work in a timed group, in milliseconds. Throws for other
  // works.
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_; }
#if HETCOMM_TORCH_HAS_COMPLETION_HOOKS
  uint64_t getCompletionKey() const override { return key_; }
#endif

  const char* name() const { return name_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits until no request is open, or until |deadline|. Returns true if none is open. The work is
  // then done, or another thread is completing it. Never throws.
  bool wait_for_requests(std::optional<std::chrono::steady_clock::time_point> deadline);
  // Waits until the work is done, or until |deadline|. Returns true if it is done. Never throws.
  bool wait_until(std::optional<std::chrono::steady_clock::time_point> deadline);
  // Returns the first part whose request has not been reported yet, or null. Pointers to parts stay
  // valid after the posting.
  Part* next_part();
  // Receives the reports that are available.
  void poll();
  // Records the result of |part|. Called by the thread that received the report.
  void report(Part& part, const hetcomm_completion_t& completion) noexcept;

  // Index in the group's list of pending works. Set by the group.
  size_t slot = kNoSlot;
  static constexpr size_t kNoSlot = ~size_t{0};

 private:
  bool wait_with_signals(std::optional<std::chrono::steady_clock::time_point> deadline);
  bool wait_for(Part& part, std::optional<std::chrono::steady_clock::time_point> deadline);
  void part_done() noexcept;
  void complete() noexcept;
  void fail_with(const hetcomm_completion_t& completion) noexcept;
  std::exception_ptr take_results() noexcept;
  void call_end_hook() const noexcept;
  void call_hooks(bool failed) const noexcept;
  void copy_results_back();
  void copy_on_device();
  void let_tensors_go();
  c10::intrusive_ptr<c10::ivalue::Future> make_future() const;

  const std::shared_ptr<Group> group_;
  const char* const name_;
  const uint64_t sequence_;
  const uint64_t key_;  // unique in this process
  c10::SmallVector<Part, 2> parts_;
  std::atomic<uint32_t> open_parts_{1};  // unreported parts, plus one until posted()
  std::atomic<size_t> first_open_{0};    // index before which all parts are reported
  std::atomic<bool> ended_{false};       // the result is set, but hooks may still have to be called
  std::atomic<bool> done_{false};        // waiting threads may return
  std::atomic<int> source_{-1};
  std::vector<at::Tensor> kept_;
  std::vector<hetcomm_memory_t*> memories_;
  std::optional<c10::Device> device_;  // device of the tensors, unless they are in host memory
  std::vector<CopyBack> copies_;
  std::vector<at::Tensor> results_;
  std::function<void()> step_;
  std::optional<HookClock::time_point> began_;       // start time, if the group has an end hook
  std::optional<HookClock::time_point> timed_from_;  // start time, if the group is timed
  std::atomic<float> duration_ms_{0};                // written before the work is done
  std::exception_ptr failure_;                       // under mutex_; the first failure
  bool cancelled_ = false;                           // under mutex_; the failure was a cancellation
  c10::intrusive_ptr<c10::ivalue::Future> future_;   // under mutex_
  bool watched_ = false;                             // under mutex_; a watcher completes this work
};

using WorkRef = c10::intrusive_ptr<OperationWork>;

}  // namespace hetcomm::torch_backend
