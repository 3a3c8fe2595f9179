#include "python/src/torch/poster.h"

#include <optional>
#include <vector>

#include "python/src/torch/joint_work.h"

namespace hetcomm::torch_backend {

void Poster::serve(std::shared_ptr<Group> group, int rank) {
  rank_ = rank;
  sequence_.store(0);
  group_ = std::move(group);
}

uint64_t Poster::timeout_ns(std::chrono::milliseconds timeout) const {
  if (timeout <= kNoTimeout) timeout = this->timeout();
  if (timeout <= kNoTimeout) return HETCOMM_TIMEOUT_DEFAULT;
  const auto nanoseconds =
      std::chrono::duration_cast<std::chrono::duration<double, std::nano>>(timeout);
  // More than about 95 years count as infinite.
  if (nanoseconds.count() > 3e18) return HETCOMM_TIMEOUT_INFINITE;
  return static_cast<uint64_t>(nanoseconds.count());
}

WorkRef Poster::make_work(WorkDescription description) const {
  return c10::make_intrusive<OperationWork>(group_, rank_, std::move(description));
}

void Poster::tell_refusal() {
  // Inside a batch, a rejected call does not count as made, because the batch is not started.
  if (in_batch()) return;
  try {
    throw;
  } catch (const c10::Error& error) {
    group_->refuse(error.what_without_backtrace());
  } catch (const std::exception& error) {
    group_->refuse(error.what());
  } catch (...) {
    group_->refuse("an exception of an unknown type");
  }
}

// If this thread has an open batch, because an exception prevented the caller from ending it, that
// batch is dropped first.
void Poster::begin_batch() {
  if (std::optional<Batch> left = batches_.take(); left && left->group != nullptr) {
    group_->drop_group(left->group);
  }
  batches_.open();
}

Poster::Ref Poster::end_batch() {
  std::optional<Batch> ended = batches_.take();
  TORCH_CHECK(ended.has_value(), "hetcomm: coalescing has not been started");
  auto joint = c10::make_intrusive<JointWork>(rank_, std::move(ended->works));
  if (ended->group != nullptr) group_->start_group(ended->group);
  return joint;
}

}  // namespace hetcomm::torch_backend
