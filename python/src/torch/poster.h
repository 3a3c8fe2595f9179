// Posts the operations of one process group to its communicator. Adds sequence numbers, timeouts
// and batches, and notifies other ranks when this rank refuses a call that they are waiting for.
#pragma once

#include <atomic>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include <hetcomm/hetcomm.h>

#include "python/src/torch/batches.h"
#include "python/src/torch/group.h"
#include "python/src/torch/room.h"
#include "python/src/torch/status.h"
#include "python/src/torch/work.h"

namespace hetcomm::torch_backend {

class Poster {
 public:
  using Ref = c10::intrusive_ptr<c10d::Work>;

  // |timeout| applies to operations without their own timeout.
  Poster(std::shared_ptr<Group> group, int rank, std::chrono::milliseconds timeout)
      : rank_(rank), timeout_(timeout), group_(std::move(group)) {}

  const std::shared_ptr<Group>& group() const { return group_; }
  // Posts to another group from now on, as |rank|. Restarts the numbers of collective operations at
  // 0.
  void serve(std::shared_ptr<Group> group, int rank);

  std::chrono::milliseconds timeout() const { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_.store(timeout); }
  // Returns |timeout| in nanoseconds for the library, or the group's timeout if |timeout| is unset.
  uint64_t timeout_ns(std::chrono::milliseconds timeout) const;
  // Returns the number of the next collective operation.
  uint64_t sequence() const { return sequence_.load(); }
  uint64_t next_sequence() { return sequence_.fetch_add(1, std::memory_order_relaxed); }
  WorkRef make_work(WorkDescription description) const;

  // Posts |work| by calling post(communicator, group), and returns it. The group is null outside a
  // batch.
  template <typename Post>
  Ref start(const WorkRef& work, Post&& post);
  // Starts a collective operation by calling post(communicator, options, out request).
  template <typename Post>
  Ref start_collective(const WorkRef& work, std::chrono::milliseconds timeout, Post&& post);
  // Starts several operations together, each by calling post(communicator, options, index, out
  // request).
  template <typename Post>
  Ref start_many(const WorkRef& work, std::chrono::milliseconds timeout, size_t count, Post&& post);
  // Notifies the other ranks, which are waiting for the collective operation, that this rank
  // refuses it. Must be called in the handler of the exception that is the reason.
  void tell_refusal();

  // Opens a batch for this thread. Its operations start together in end_batch().
  void begin_batch();
  // Returns a work that is done when all operations of the batch are done.
  Ref end_batch();
  // Returns whether this thread has an open batch.
  bool in_batch() { return batches_.here() != nullptr; }
  // Clears the groups of all batches. Called after close() has destroyed them.
  void forget_batches() { batches_.forget_groups(); }

 private:
  int rank_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<uint64_t> sequence_{0};
  Batches batches_;
  std::shared_ptr<Group> group_;
};

template <typename Post>
Poster::Ref Poster::start(const WorkRef& work, Post&& post) {
  Batch* const batch = batches_.here();
  if (batch != nullptr) make_room(batch->works);
  try {
    group_->post(work, [&](hetcomm_communicator_t* communicator) {
      if (batch != nullptr && batch->group == nullptr) batch->group = group_->open_group();
      post(communicator, batch == nullptr ? nullptr : batch->group);
    });
  } catch (...) {
    work->reject(std::current_exception());
    // Cancels the accepted parts. In a batch, they are cancelled with the batch.
    if (batch == nullptr) work->abort();
    throw;
  }
  // The operation is in progress, so nothing below may throw.
  if (batch != nullptr) batch->works.push_back(work);
  work->posted();
  group_->sweep();
  // Hooks must be called when the work ends, even if no thread waits for it.
  if (group_->hooks().any()) group_->look_after_works();
  return work;
}

template <typename Post>
Poster::Ref Poster::start_collective(const WorkRef& work, std::chrono::milliseconds timeout,
                                     Post&& post) {
  return start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t* group) {
    hetcomm_collective_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns(timeout);
    options.group = group;
    options.stream = group_->stream_of(*work);
    hetcomm_request_t* request = nullptr;
    check(work->name(), post(communicator, options, &request));
    work->add_request(request);
  });
}

template <typename Post>
Poster::Ref Poster::start_many(const WorkRef& work, std::chrono::milliseconds timeout, size_t count,
                               Post&& post) {
  work->expect_requests(count);
  return start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t* outer) {
    hetcomm_collective_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns(timeout);
    options.stream = group_->stream_of(*work);
    // The destructor of |own| drops operations that were collected but not started.
    std::unique_ptr<hetcomm_group_t, decltype(&hetcomm_group_destroy)> own(nullptr,
                                                                           &hetcomm_group_destroy);
    options.group = outer;
    if (outer == nullptr) {
      check(work->name(), hetcomm_group_create(communicator, &options.group));
      own.reset(options.group);
    }
    hetcomm_status_t status = HETCOMM_OK;
    for (size_t i = 0; i < count && status == HETCOMM_OK; ++i) {
      hetcomm_request_t* request = nullptr;
      status = post(communicator, options, i, &request);
      if (status == HETCOMM_OK) work->add_request(request);
    }
    if (outer != nullptr) {
      check(work->name(), status);
      return;
    }
    if (status == HETCOMM_OK) status = hetcomm_group_start(own.get());
    if (status == HETCOMM_OK) return;
    const std::string why = hetcomm_last_error();
    own.reset();
    C10_THROW_ERROR(DistBackendError, "hetcomm: " + std::string(work->name()) + ": " + why + " [" +
                                          hetcomm_status_name(status) + "]");
  });
}

}  // namespace hetcomm::torch_backend
