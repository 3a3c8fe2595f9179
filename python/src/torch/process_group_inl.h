// Templates with which a ProcessGroup posts its operations.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "python/src/torch/process_group.h"
#include "python/src/torch/room.h"
#include "python/src/torch/status.h"

namespace hetcomm::torch_backend {

template <typename Post>
ProcessGroup::Ref ProcessGroup::start(const WorkRef& work, Post&& post) {
  Coalescing* coalescing = coalesces_.load(std::memory_order_relaxed) ? coalescing_here() : nullptr;
  if (coalescing != nullptr) make_room(coalescing->works);
  try {
    group_->post(work, [&](hetcomm_communicator_t* communicator) {
      if (coalescing != nullptr && coalescing->group == nullptr) {
        coalescing->group = group_->open_group();
      }
      post(communicator, coalescing == nullptr ? nullptr : coalescing->group);
    });
  } catch (...) {
    work->reject(std::current_exception());
    // Ends the accepted parts. The parts of a batch end with the batch.
    if (coalescing == nullptr) work->abort();
    throw;
  }
  // The operation is in progress: nothing below throws.
  if (coalescing != nullptr) coalescing->works.push_back(work);
  work->posted();
  group_->sweep();
  // Hooks must be called at the work's end even if no thread waits for it.
  if (hooks_->any()) group_->look_after_works();
  return work;
}

template <typename Post>
ProcessGroup::Ref ProcessGroup::start_collective(const WorkRef& work,
                                                 std::chrono::milliseconds timeout, Post&& post) {
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
ProcessGroup::Ref ProcessGroup::start_many(const WorkRef& work, std::chrono::milliseconds timeout,
                                           size_t count, Post&& post) {
  work->expect_requests(count);
  return start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t* outer) {
    hetcomm_collective_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns(timeout);
    options.stream = group_->stream_of(*work);
    // Its destructor drops operations that were collected but not started.
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
