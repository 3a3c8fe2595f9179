// A PendingChannel holds the channel of a communicator that this rank is about to make. Other ranks
// may learn of the channel, and make their communicators, before this rank has made its own. If
// this rank then fails, the others are notified.
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
  // Notifies the other ranks that this rank has no communicator, if the channel was opened and
  // neither kept nor closed.
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
  // Returns the channel. Null before open(), and after keep() or close().
  Channel* channel() const { return channel_; }
  // Hands the channel over to the communicator that was made.
  void keep() { channel_ = nullptr; }
  // Closes the channel, because no communicator will be made.
  void close() {
    const Engine::Baton baton(job_->engine());
    if (channel_ != nullptr) job_->members().close_channel(*std::exchange(channel_, nullptr));
  }

 private:
  std::shared_ptr<Job> job_;
  Channel* channel_ = nullptr;
};

}  // namespace hetcomm
