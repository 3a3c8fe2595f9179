// PendingChannel: the channel of a communicator that this rank is about to make. Other ranks may
// hear of it, and make theirs, before this one is done. If nothing comes of it here, they are told.
#pragma once

#include <memory>
#include <utility>

#include "src/core/job/job.h"

namespace hetcomm {

class PendingChannel {
 public:
  explicit PendingChannel(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  PendingChannel(const PendingChannel&) = delete;
  PendingChannel& operator=(const PendingChannel&) = delete;
  // The other ranks learn that this one has no communicator.
  ~PendingChannel() {
    const Engine::Baton baton(job_->engine());
    if (channel_ != nullptr) job_->members().give_up_channel(*channel_);
  }

  const std::shared_ptr<Job>& job() const { return job_; }
  Channel& open() {
    const Engine::Baton baton(job_->engine());
    channel_ = &job_->open_channel();
    return *channel_;
  }
  // Null before open(), and after it was kept or closed.
  Channel* channel() const { return channel_; }
  // A communicator has it from now on.
  void keep() { channel_ = nullptr; }
  // No communicator will be made.
  void close() {
    const Engine::Baton baton(job_->engine());
    if (channel_ != nullptr) job_->members().close_channel(*std::exchange(channel_, nullptr));
  }

 private:
  std::shared_ptr<Job> job_;
  Channel* channel_ = nullptr;
};

}  // namespace hetcomm
