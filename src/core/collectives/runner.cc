#include "src/core/collectives/runner.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "src/base/baton_role.h"
#include "src/base/copy.h"

namespace hetcomm::collectives {
namespace {

// The bits of a tag that distinguish segments.
constexpr uint64_t kSegmentMask = 0xff;

}  // namespace

class Runner::SegmentAddresses final : public Addresses {
 public:
  SegmentAddresses(const Runner& runner, const Segment& segment)
      : runner_(runner), segment_(segment) {}
  std::byte* of(const Range& range) const override HETCOMM_UNDER_BATON {
    if (range.buffer == BufferKind::kScratch) return segment_.scratch + range.offset;
    return range.length == 0 ? nullptr : runner_.client_->user_address(range);
  }

 private:
  const Runner& runner_;
  const Segment& segment_;
};

void Runner::start(MessagingCommunicator& communicator, RunnerClient& client, uint64_t segments,
                   uint64_t tag) {
  communicator_ = &communicator;
  client_ = &client;
  tag_ = tag;
  segments_ = segments;
  next_segment_ = segments_done_ = 0;
  for (Segment& segment : slots_) segment.reset();
  const uint64_t at_once = std::min<uint64_t>(segments, kSegmentsAtOnce);
  if (slots_.size() < at_once) slots_.resize(at_once);
  running_ = true;
}

void Runner::advance() {
  bool again = true;
  while (again && running_) {
    again = false;
    for (size_t slot = 0; slot < slots_.size() && running_; ++slot) {
      Segment& segment = slots_[slot];
      if (!segment.active && next_segment_ < segments_ &&
          next_segment_ - oldest_segment() <= kSegmentMask && client_->may_begin(next_segment_)) {
        open_segment(segment, slot);
      }
      if (!segment.active || segment.pending > 0) continue;
      advance(segment, slot);
      again = again ||
              (!segment.active && next_segment_ < segments_ && client_->may_begin(next_segment_));
    }
  }
}

void Runner::open_segment(Segment& segment, size_t slot) {
  segment.index = next_segment_++;
  client_->make_steps(segment.index, &segment.steps);
  if (segment.steps.scratch_bytes > 0) {
    segment.scratch = client_->take_scratch(slot, segment.steps.scratch_bytes);
    if (segment.scratch == nullptr) throw std::bad_alloc();
  }
  segment.active = true;
}

// Tags can distinguish only the returned segment and the kSegmentMask segments after it.
uint64_t Runner::oldest_segment() const {
  uint64_t oldest = next_segment_;
  for (const Segment& segment : slots_) {
    if (segment.active) oldest = std::min(oldest, segment.index);
  }
  return oldest;
}

void Runner::advance(Segment& segment, size_t slot) {
  const std::vector<Step>& steps = segment.steps.list;
  while (running_) {
    if (segment.next == steps.size()) {
      client_->finish_segment(segment.steps, SegmentAddresses(*this, segment));
      if (segment.scratch != nullptr) client_->give_scratch(slot);
      segment.reset();
      ++segments_done_;
      return;
    }
    if (!segment.posted) {
      post_round(segment, slot);
      if (segment.pending > 0) return;
      continue;  // the loop ends if a message has failed
    }
    if (!run_locals(segment, slot)) return;
    segment.next = segment.local = end_of_round(segment);
    segment.posted = false;
  }
}

size_t Runner::end_of_round(const Segment& segment) {
  const std::vector<Step>& steps = segment.steps.list;
  size_t end = segment.next;
  while (end < steps.size() && steps[end].round == steps[segment.next].round) ++end;
  return end;
}

// Posts the messages of a round. Receives are posted first, so that they match messages that arrive
// immediately.
void Runner::post_round(Segment& segment, size_t slot) {
  segment.posted = true;
  const size_t end = end_of_round(segment);
  const SegmentAddresses addresses(*this, segment);
  ++segment.pending;  // keeps the round incomplete until all messages are posted
  for (const StepKind kind : {StepKind::kReceive, StepKind::kSend}) {
    for (size_t i = segment.next; i < end && running_; ++i) {
      const Step& step = segment.steps.list[i];
      if (step.kind != kind) continue;
      messages_.reserve(messages_.size() + 1);
      Operation* message = communicator_->starter().make_internal(
          {.kind = kind == StepKind::kSend ? OperationKind::kSend : OperationKind::kReceive,
           .peer = client_->job_rank(step.peer),
           .tag = tag_ | (segment.index & kSegmentMask),
           .bytes = {addresses.of(step.to), step.to.length},
           .handler = this});
      if (message == nullptr) throw std::bad_alloc();
      message->internal.cookie = slot;
      messages_.push_back(message);
      ++segment.pending;
      communicator_->starter().start_internal(*message);
    }
  }
  --segment.pending;
}

// Runs the remaining local steps of the round. Returns false if one of them is still in progress.
bool Runner::run_locals(Segment& segment, size_t slot) {
  const size_t end = end_of_round(segment);
  while (segment.local < end) {
    if (run_step(segment, slot, segment.steps.list[segment.local++])) continue;
    ++segment.pending;
    ++locals_;
    return false;
  }
  return true;
}

void Runner::end_local(size_t slot) {
  --locals_;
  --slots_[slot].pending;
  client_->runner_ready();
}

// Runs |step|. Returns false if the step is still in progress.
bool Runner::run_step(const Segment& segment, size_t slot, const Step& step) {
  if (step.kind == StepKind::kSend || step.kind == StepKind::kReceive) return true;
  const SegmentAddresses addresses(*this, segment);
  if (step.kind != StepKind::kCopy) {
    return client_->run_local(slot, segment.steps, step, addresses);
  }
  std::byte* const to = addresses.of(step.to);
  const std::byte* const from = addresses.of(step.first);
  if (to != from && step.to.length > 0) copy_long(to, from, step.to.length);
  return true;
}

void Runner::on_end(Operation& message) {
  std::erase(messages_, &message);
  Segment& segment = slots_[message.internal.cookie];
  const bool whole =
      message.kind == OperationKind::kSend || message.outcome.bytes_sent == message.length;
  const bool failed = running_ && (message.outcome.code != Code::kOk || !whole);
  if (!failed) --segment.pending;
  if (failed) {
    client_->message_failed(message);
  } else if (!running_ || segment.pending == 0) {
    client_->runner_ready();
  }
}

void Runner::stop() {
  running_ = false;
  // A message that ends is removed from |messages_| by on_end(), and some end immediately.
  for (size_t i = messages_.size(); i-- > 0;) {
    if (i >= messages_.size()) continue;
    communicator_->end(*messages_[i], Code::kCancelled,
                       "the collective operation that it belongs to has failed");
  }
}

std::vector<int> Runner::awaited() const {
  std::vector<int> ranks;
  for (const Operation* message : messages_) {
    if (message->kind == OperationKind::kReceive) ranks.push_back(message->peer);
  }
  return ranks;
}

}  // namespace hetcomm::collectives
