// PendingChannel: the channel of a communicator that this rank is about to make. Other ranks may
// hear of it, and make theirs, before this one is done: where nothing comes of it here they are
// told.
#pragma once

#include <memory>
#include <utility>

#include "src/core/job/mesh.h"

namespace hetcomm {

class PendingChannel {
 public:
  explicit PendingChannel(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {}
  PendingChannel(const PendingChannel&) = delete;
  PendingChannel& operator=(const PendingChannel&) = delete;
  // The other ranks learn that this one has no communicator.
  ~PendingChannel() {
    const Engine::Baton baton(mesh_->engine());
    if (channel_ != nullptr) mesh_->give_up_channel(*channel_);
  }

  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  Channel& open() {
    const Engine::Baton baton(mesh_->engine());
    channel_ = &mesh_->open_channel();
    return *channel_;
  }
  // Null before open(), and after it was kept or closed.
  Channel* channel() const { return channel_; }
  // A communicator has it from now on.
  void keep() { channel_ = nullptr; }
  // Nobody makes a communicator.
  void close() {
    const Engine::Baton baton(mesh_->engine());
    if (channel_ != nullptr) mesh_->close_channel(*std::exchange(channel_, nullptr));
  }

 private:
  std::shared_ptr<Mesh> mesh_;
  Channel* channel_ = nullptr;
};

}  // namespace hetcomm
