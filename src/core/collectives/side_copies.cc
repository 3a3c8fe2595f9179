#include "src/core/collectives/side_copies.h"

#include <algorithm>

namespace hetcomm::collectives {
namespace {

// A slice holds a whole number of pages of each block.
constexpr uint64_t kPage = 4096;

}  // namespace

SideCopies::SideCopies() {
  for (Slice& slice : at_once_) slice.owner = this;
}

void SideCopies::reset() {
  side_ = nullptr;
  slices_ = started_ = ended_ = allowed_ = 0;
  copied_to_ = kAll;
  stopped_ = false;
  for (Slice& slice : at_once_) slice.busy = slice.copied = false;
}

void SideCopies::start(Side& side, Staging& staging, StreamDirection direction, bool cuts,
                       uint64_t allowed, SideCopiesClient& client) {
  side_ = &side;
  staging_ = &staging;
  client_ = &client;
  direction_ = direction;
  const uint64_t longest = side.longest_block();
  const uint64_t blocks = side.block_count();
  rows_.reserve(blocks);
  slice_bytes_ = longest;
  if (cuts && blocks > 0) {
    const uint64_t of_each = side.slice_bytes(staging, direction) / blocks;
    slice_bytes_ = std::max((of_each + kPage - 1) / kPage * kPage, kPage);
  }
  slices_ = longest == 0 ? 0 : (longest + slice_bytes_ - 1) / slice_bytes_;
  started_ = ended_ = 0;
  copied_to_ = slices_ == 0 ? kAll : 0;
  allowed_ = allowed;
  start_slices();
}

void SideCopies::allow_to(uint64_t offset) {
  if (offset <= allowed_) return;
  allowed_ = offset;
  start_slices();
}

// Starts the slices that are entirely within the allowed bytes, as long as there are free entries.
void SideCopies::start_slices() {
  while (!stopped_ && started_ < slices_ &&
         (allowed_ == kAll || allowed_ / slice_bytes_ > started_)) {
    const auto free = std::find_if(at_once_.begin(), at_once_.end(),
                                   [](const Slice& slice) { return !slice.busy; });
    if (free == at_once_.end()) return;
    free->number = started_++;
    start_slice(*free);
  }
}

void SideCopies::start_slice(Slice& slice) {
  rows_.clear();  // start() has reserved the capacity
  side_->append_rows(slice.number * slice_bytes_, slice_bytes_, direction_, &rows_);
  slice.busy = true;
  slice.copied = false;
  ++under_way_;
  staging_->start(slice.job, direction_, rows_, slice);
}

void SideCopies::finish(Slice& slice, const Status& status) {
  --under_way_;
  if (!status.ok()) {
    slice.busy = false;
    stop();
    client_->on_slice(status);
    return;
  }
  slice.copied = true;
  // Slices on several devices may end in a different order.
  for (bool again = true; again;) {
    again = false;
    for (Slice& each : at_once_) {
      if (!each.busy || !each.copied || each.number != ended_) continue;
      each.busy = false;
      ++ended_;
      again = true;
    }
  }
  copied_to_ = ended_ == slices_ ? kAll : ended_ * slice_bytes_;
  start_slices();
  client_->on_slice({});
}

}  // namespace hetcomm::collectives
