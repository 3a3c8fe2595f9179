// The works that a process group hands out.
//
// A work is done when all of its requests have been reported, by whichever thread was first: one
// that waits or asks, or the group's watcher. That thread copies results back into tensors with
// holes and completes the future; the others are woken.
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

// Completes |future|, with |failure| if that is not null. What goes wrong meanwhile is its error: a
// device may fail while the future notes how far its streams have come.
void complete_future(c10::ivalue::Future& future, const std::exception_ptr& failure,
                     const std::vector<at::Tensor>& results) noexcept;

// The clock of completion hooks, which differs between versions of torch.
using HookClock = decltype(c10d::WorkInfo::timeStarted)::clock;

// A copy to be made of the data that came into a contiguous stand-in.
struct CopyBack {
  at::Tensor from;
  at::Tensor to;
};

struct WorkDescription {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* name = "";            // "allreduce"
  const char* profiling = nullptr;  // "hetcomm:all_reduce"
  uint64_t sequence = 0;
  bool internal = false;            // a step of an operation: no hook learns of it
  std::vector<at::Tensor> inputs;   // for the profiler
  std::vector<at::Tensor> results;  // of result() and the future
};

class OperationWork final : public c10d::Work {
 public:
  OperationWork(std::shared_ptr<Group> group, int rank, WorkDescription description);
  ~OperationWork() override;

  // Before it is posted, or while it is: what has to live until it is done.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }
  // Does so with a contiguous tensor on a device; all of a work's are on one device. Gives the name
  // of its memory, which is null if it is empty.
  hetcomm_memory_t* wrap(const at::Tensor& tensor);
  // It is posted in the order of the current stream of |device|, and has no tensors.
  void follow(c10::Device device) { device_ = device; }
  // The device of its tensors, or that which it follows; none: they are in host memory.
  std::optional<c10::Device> device() const { return device_; }
  // Returns the devices that its future has to know.
  std::vector<c10::Device> devices_of_future() const;
  void copy_back(CopyBack copy) { copies_.push_back(std::move(copy)); }
  // Runs before the copies when all requests have succeeded; may throw.
  void then(std::function<void()> step) { step_ = std::move(step); }
  // Makes room for |count| requests. There is room for two without it.
  void expect_requests(size_t count) { parts_.reserve(count); }
  // There is room for it: a request that was accepted cannot be given back.
  void add_request(hetcomm_request_t* request) noexcept;
  // No further request will come.
  void posted() noexcept;
  // Ends the posting when a part was not accepted.
  void reject(std::exception_ptr why) noexcept;

  // One part of the operation, with a request of its own.
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
  // In milliseconds, of one that is done in a timed group; throws of others.
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_; }
#if HETCOMM_TORCH_HAS_COMPLETION_HOOKS
  uint64_t getCompletionKey() const override { return key_; }
#endif

  const char* name() const { return name_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits until no request is open, or |deadline|; true if none is. Then it is done, or another
  // thread completes it. Throws nothing.
  bool wait_for_requests(std::optional<std::chrono::steady_clock::time_point> deadline);
  // Waits until it is done, or |deadline|; true if it is. Throws nothing.
  bool wait_until(std::optional<std::chrono::steady_clock::time_point> deadline);
  // The first part whose request is not reported yet, or null. After the posting parts stay where
  // they are.
  Part* next_part();
  // Takes reports that are there.
  void poll();
  // This thread has got the report of |part|.
  void report(Part& part, const hetcomm_completion_t& completion) noexcept;

  // Place in the group's list of pending works; the group's.
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
  const uint64_t key_;  // of no other work of this process
  c10::SmallVector<Part, 2> parts_;
  std::atomic<uint32_t> open_parts_{1};  // one more until posted()
  std::atomic<size_t> first_open_{0};    // all parts before it are reported
  std::atomic<bool> ended_{false};       // the result is there; hooks may still have to learn it
  std::atomic<bool> done_{false};        // whoever waits may return
  std::atomic<int> source_{-1};
  std::vector<at::Tensor> kept_;
  std::vector<hetcomm_memory_t*> memories_;
  std::optional<c10::Device> device_;  // of the tensors that are not in host memory
  std::vector<CopyBack> copies_;
  std::vector<at::Tensor> results_;
  std::function<void()> step_;
  std::optional<HookClock::time_point> began_;       // where the group has a hook
  std::optional<HookClock::time_point> timed_from_;  // where the group is timed
  std::atomic<float> duration_ms_{0};                // written before it is done
  std::exception_ptr failure_;                       // under mutex_; the first
  bool cancelled_ = false;                           // under mutex_; how that came
  c10::intrusive_ptr<c10::ivalue::Future> future_;   // under mutex_
  bool watched_ = false;                             // under mutex_; a watcher completes it
};

using WorkRef = c10::intrusive_ptr<OperationWork>;

}  // namespace hetcomm::torch_backend
